"""Finding chains of known structure with hmmbuild and hmmsearch: in this process, or with HMMER's programs."""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pyhmmer.easel import TextMSA, TextSequence
from pyhmmer.errors import EaselError, UnexpectedError
from pyhmmer.plan7 import Background, Builder, HMMFile

from data_pipeline.errors import InputError, SearchError, printable
from data_pipeline.parse.stockholm import stockholm_rows
from data_pipeline.search.fasta_chunks import (
    database_identity,
    has_nucleic_acids,
    is_gzip,
    read_fasta_chunks,
    without_nucleic_acids,
)
from data_pipeline.search.process import program_version, run_program, working_directory
from data_pipeline.search.profile_search import (
    AMINO,
    PYHMMER_VERSION,
    HmmerSearch,
    ProteinProfile,
    Thresholds,
    available_cpus,
    check_positive,
    program_options,
    search_profiles,
    stockholm,
)
from data_pipeline.search.tool import FileFormat

_NAME = "query"  # of the profile, as in AlphaFold's files
_REFERENCE = b"#=GC RF"


@dataclass(frozen=True, kw_only=True)
class HmmsearchOptions:
    """How far templates may be; the values are AlphaFold's, which keep what is barely similar (AlphaFold-Multimer)."""

    e_value: float = 100.0  # of chains that are reported,
    domain_e_value: float = 100.0  # and of their domains
    inclusion_e_value: float = 100.0  # of chains that enter the alignment,
    domain_inclusion_e_value: float = 100.0  # and of their domains
    filter_f1: float = 0.1  # P-values that let a chain pass the MSV,
    filter_f2: float = 0.1  # the Viterbi
    filter_f3: float = 0.1  # and the Forward filter

    def __post_init__(self) -> None:
        check_positive(vars(self))

    def thresholds(self) -> Thresholds:
        """The same by HMMER's own names."""
        return {
            "F1": self.filter_f1,
            "F2": self.filter_f2,
            "F3": self.filter_f3,
            "E": self.e_value,
            "domE": self.domain_e_value,
            "incE": self.inclusion_e_value,
            "incdomE": self.domain_inclusion_e_value,
        }

    def arguments(self) -> list[str]:
        """The same as options of the program."""
        return program_options(self.thresholds())


@dataclass(frozen=True)
class InProcessHmmsearch(HmmerSearch):
    """hmmbuild and hmmsearch without the programs; the database is streamed, and the hits are those of the programs.

    Chains of nucleic acids (`mol:na` in pdb_seqres) are left out, as in the file that AlphaFold's scripts make.
    """

    input_format: ClassVar[FileFormat] = "sto"

    options: HmmsearchOptions

    def identity(self) -> str:
        """One line for what determines the result: version, options and database."""
        arguments = " ".join(self.options.arguments())
        return f"hmmsearch of pyhmmer {PYHMMER_VERSION} {arguments} {database_identity(self.database)}"

    def search(self, alignment: bytes) -> bytes:
        """The Stockholm alignment of the hits, without the target; empty, as the program's file, if there are none.

        `alignment` is Stockholm with the target's columns marked in `#=GC RF`.
        """
        [hits] = search_profiles(
            [build_profile(alignment)],
            self.database,
            self.options.thresholds(),
            cpus=self.cpus,
            select=without_nucleic_acids,
        )
        if not any(True for hit in hits.included for _ in hit.domains.included):
            return b""
        aligned = hits.to_msa(AMINO, all_consensus_cols=True)
        aligned.name = _NAME
        return stockholm(aligned, f"hmmsearch (pyhmmer {PYHMMER_VERSION})")


@dataclass(frozen=True)
class HmmsearchProgram(HmmerSearch):
    """HMMER's hmmbuild and hmmsearch, for where they are installed."""

    input_format: ClassVar[FileFormat] = "sto"

    options: HmmsearchOptions
    program: Path
    hmmbuild: Path
    timeout: float | None = field(default=None, kw_only=True)  # seconds for each of the two programs

    def identity(self) -> str:
        """One line for what determines the result: versions, options and database."""
        versions = f"hmmbuild {program_version(self.hmmbuild)} hmmsearch {program_version(self.program)}"
        return f"{versions} {' '.join(self.options.arguments())} {database_identity(self.database)}"

    def search(self, alignment: bytes) -> bytes:
        """As `InProcessHmmsearch.search`."""
        _reference(alignment)
        with working_directory() as directory:
            rows, profile, result = directory / "query.sto", directory / "query.hmm", directory / "output.sto"
            rows.write_bytes(alignment)
            command: tuple[str | Path, ...] = (self.hmmbuild, "-n", _NAME, "--hand", "--amino", profile, rows)
            run_program(command, timeout=self.timeout, directory=directory)
            outputs = ("-o", "/dev/null", "-A", result, "--noali", "--cpu", str(self.cpus or available_cpus()))
            command = (self.program, *outputs, *self.options.arguments(), profile, self._proteins(directory))
            run_program(command, timeout=self.timeout, directory=directory)
            if not result.exists():
                raise SearchError(f"{printable(self.program.name)} ended well but wrote no {result.name}")
            return result.read_bytes()

    def _proteins(self, directory: Path) -> Path:
        """The database as the program can read it: unpacked, and without nucleic acids."""
        if not is_gzip(self.database) and not has_nucleic_acids(self.database):
            return self.database.absolute()
        proteins = directory / "proteins.fasta"
        with proteins.open("wb") as file:
            for piece in read_fasta_chunks(self.database):
                file.write(without_nucleic_acids(piece).content)
        return proteins


def build_profile(alignment: bytes) -> ProteinProfile:
    """hmmbuild's profile of a Stockholm alignment, whose match states are the columns marked in `#=GC RF`."""
    rows = stockholm_rows(alignment, "the alignment for the template search")
    reference = _reference(alignment)
    width = len(next(iter(rows.values())))
    if len(reference) != width:
        raise InputError(f"the alignment has {width} columns, and its line '#=GC RF' has {len(reference)}")
    try:
        # The rows are handed over one by one: HMMER's own reader ends the process when it meets some malformed files.
        sequences = [TextSequence(name=str(i), sequence=row.decode("ascii")) for i, row in enumerate(rows.values())]
        table = TextMSA(name=_NAME, sequences=sequences)
        table.reference = reference.decode("ascii")
        profile = Builder(AMINO, architecture="hand").build_msa(table.digitize(AMINO), Background(AMINO))[0]
        # As the program reads it: through the text of a profile file, which rounds probabilities to five digits.
        text = io.BytesIO()
        profile.write(text)
        text.seek(0)
        with HMMFile(text, alphabet=AMINO) as file:
            rounded = file.read()
    except (ValueError, EaselError, UnexpectedError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"no profile can be made of the alignment for the template search: {reason}") from error
    assert rounded is not None
    return rounded


def _reference(alignment: bytes) -> bytes:
    parts = [line[len(_REFERENCE) :].strip() for line in alignment.splitlines() if line.startswith(_REFERENCE)]
    reference = b"".join(parts)
    marks = reference.translate(None, b"-._~")
    if not marks or b" " in marks or b"\t" in marks:
        problem = "has no line '#=GC RF' that marks the target's columns ('x') and the others ('.')"
        raise InputError(f"the alignment for the template search {problem}")
    return reference
