"""Search for chains of known structure with hmmbuild and hmmsearch, from pyhmmer or the HMMER programs."""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pyhmmer.easel import TextMSA, TextSequence
from pyhmmer.errors import EaselError, UnexpectedError
from pyhmmer.plan7 import Background, Builder, HMMFile

from data_pipeline.io.errors import InputError, SearchError, printable
from data_pipeline.io.processors import available_processors
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
    HmmerOptions,
    HmmerSearch,
    ProteinProfile,
    Threshold,
    search_profiles,
    to_stockholm,
)
from data_pipeline.search.tool import FileFormat

_PROFILE_NAME = "query"  # of the profile, as in AlphaFold's files
_RF_LINE = b"#=GC RF"


@dataclass(frozen=True, kw_only=True)
class HmmsearchOptions(HmmerOptions):
    """Thresholds of a template search; the defaults are AlphaFold-Multimer's, which keep distant templates.

    The filters F1, F2 and F3 are the max P-values to pass the MSV, Viterbi and Forward filters. Other values are max
    E-values: of reported chains and domains, and with `inclusion`, of those in the alignment. The options in `identity`
    have the order of the fields.
    """

    filter_f1: Threshold = 0.1  # max P-value to pass the MSV filter
    filter_f2: Threshold = 0.1  # max P-value to pass the Viterbi filter
    filter_f3: Threshold = 0.1  # max P-value to pass the Forward filter
    e_value: Threshold = 100.0  # max E-value of reported chains
    domain_e_value: Threshold = 100.0  # max E-value of reported domains
    inclusion_e_value: Threshold = 100.0  # max E-value of chains in the alignment
    domain_inclusion_e_value: Threshold = 100.0  # max E-value of domains in the alignment


@dataclass(frozen=True)
class InProcessHmmsearch(HmmerSearch):
    """Template search with pyhmmer; the database is streamed, and the hits are the same as with the HMMER programs.

    Nucleic acids (`mol:na` in pdb_seqres) are left out, as in AlphaFold's download scripts.
    """

    input_format: ClassVar[FileFormat] = "sto"

    options: HmmsearchOptions

    def identity(self) -> str:
        """Return version, options and database in one line; equal lines give equal results."""
        arguments = " ".join(self.options.arguments())
        return f"hmmsearch of pyhmmer {PYHMMER_VERSION} {arguments} {database_identity(self.database)}"

    def search(self, alignment: bytes) -> bytes:
        """Return the Stockholm alignment of the hits without the target, or no content without hits.

        `alignment` is in Stockholm format, with the target's columns marked in `#=GC RF`.
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
        aligned.name = _PROFILE_NAME
        return to_stockholm(aligned, f"hmmsearch (pyhmmer {PYHMMER_VERSION})")


@dataclass(frozen=True)
class HmmsearchProgram(HmmerSearch):
    """Template search with the installed HMMER programs: `hmmbuild`, and hmmsearch as `program`.

    `timeout` is in seconds for each of the two programs.
    """

    input_format: ClassVar[FileFormat] = "sto"

    options: HmmsearchOptions
    program: Path
    hmmbuild: Path
    timeout: float | None = field(default=None, kw_only=True)  # seconds for each of the two programs

    def identity(self) -> str:
        """Return versions, options and database in one line; equal lines give equal results."""
        versions = f"hmmbuild {program_version(self.hmmbuild)} hmmsearch {program_version(self.program)}"
        return f"{versions} {' '.join(self.options.arguments())} {database_identity(self.database)}"

    def search(self, alignment: bytes) -> bytes:
        """Return the Stockholm alignment of the hits, as `InProcessHmmsearch.search` does."""
        _reference(alignment)
        with working_directory() as directory:
            rows, profile, result = directory / "query.sto", directory / "query.hmm", directory / "output.sto"
            rows.write_bytes(alignment)
            command: tuple[str | Path, ...] = (self.hmmbuild, "-n", _PROFILE_NAME, "--hand", "--amino", profile, rows)
            run_program(command, timeout=self.timeout, directory=directory)
            outputs = ("-o", "/dev/null", "-A", result, "--noali", "--cpu", str(self.cpus or available_processors()))
            command = (self.program, *outputs, *self.options.arguments(), profile, self._proteins(directory))
            run_program(command, timeout=self.timeout, directory=directory)
            if not result.exists():
                raise SearchError(f"{printable(self.program.name)} succeeded but did not write {result.name}")
            return result.read_bytes()

    def _proteins(self, directory: Path) -> Path:
        """Return the path of the database unpacked and without nucleic acids, as the program needs it."""
        if not is_gzip(self.database) and not has_nucleic_acids(self.database):
            return self.database.absolute()
        proteins = directory / "proteins.fasta"
        with proteins.open("wb") as file:
            for chunk in read_fasta_chunks(self.database):
                file.write(without_nucleic_acids(chunk).content)
        return proteins


def build_profile(alignment: bytes) -> ProteinProfile:
    """Build a profile from a Stockholm alignment as hmmbuild does, with match states at columns marked in `#=GC RF`.

    Probabilities are rounded as in a profile file. Raise `InputError` for an alignment without valid marks or rows.
    """
    rows = stockholm_rows(alignment, "the alignment for the template search")
    column_marks = _reference(alignment)
    width = len(next(iter(rows.values())))
    if len(column_marks) != width:
        raise InputError(f"the alignment has {width} columns, but its line '#=GC RF' has {len(column_marks)}")
    try:
        # Rows are passed one by one, because HMMER's reader aborts the process on some malformed files.
        sequences = [TextSequence(name=str(i), sequence=row.decode("ascii")) for i, row in enumerate(rows.values())]
        table = TextMSA(name=_PROFILE_NAME, sequences=sequences)
        table.reference = column_marks.decode("ascii")
        profile = Builder(AMINO, architecture="hand").build_msa(table.digitize(AMINO), Background(AMINO))[0]
        # The program reads the profile from a text file, which rounds probabilities to five digits.
        text = io.BytesIO()
        profile.write(text)
        text.seek(0)
        with HMMFile(text, alphabet=AMINO) as file:
            rounded = file.read()
    except (ValueError, EaselError, UnexpectedError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"cannot build a profile from the alignment for the template search: {reason}") from error
    assert rounded is not None
    return rounded


def _reference(alignment: bytes) -> bytes:
    """Return the marks of all columns from the '#=GC RF' lines of a Stockholm alignment; raise an error without any."""
    parts = [line[len(_RF_LINE) :].strip() for line in alignment.splitlines() if line.startswith(_RF_LINE)]
    column_marks = b"".join(parts)
    marks = column_marks.translate(None, b"-._~")
    if not marks or b" " in marks or b"\t" in marks:
        problem = "has no line '#=GC RF', which marks the target's columns ('x') and other columns ('.')"
        raise InputError(f"the alignment for the template search {problem}")
    return column_marks
