"""Finding a target's relatives in a FASTA database with jackhmmer: in this process, or with HMMER's program."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyhmmer.easel import AA, DigitalMSA, KeyHash, TextSequence
from pyhmmer.plan7 import Background, Builder, Trace

from data_pipeline.errors import InputError, check_at_least
from data_pipeline.parse.fasta import find_invalid_letter
from data_pipeline.search.fasta_chunks import database_identity, is_gzip
from data_pipeline.search.process import program_version, read_output, run_program, working_directory
from data_pipeline.search.profile_search import (
    AMINO,
    PYHMMER_VERSION,
    Hits,
    HmmerSearch,
    ProteinProfile,
    Thresholds,
    available_cpus,
    check_positive,
    program_options,
    search_profiles,
    stockholm,
)

_DOMAIN_E_VALUES = {"domE": 10.0, "incdomE": 1e-3}  # jackhmmer's own, which AlphaFold leaves
_NAME = "query"  # of the target's row, as in AlphaFold's files


@dataclass(frozen=True, kw_only=True)
class JackhmmerOptions:
    """How far relatives may be; the values are AlphaFold's (AlphaFold 2, Suppl. Sec. 1.2.2)."""

    iterations: int = 1
    e_value: float = 1e-4  # of sequences that are reported
    inclusion_e_value: float = 1e-4  # of sequences that enter the alignment
    filter_f1: float = 0.0005  # P-values that let a sequence pass the MSV,
    filter_f2: float = 0.00005  # the Viterbi
    filter_f3: float = 0.0000005  # and the Forward filter
    z_value: float | None = None  # sequences that E-values are computed for; None: those in the database

    def __post_init__(self) -> None:
        check_at_least(self, iterations=1)
        check_positive(vars(self))

    def thresholds(self) -> Thresholds:
        """The same by HMMER's own names."""
        return {
            "E": self.e_value,
            "incE": self.inclusion_e_value,
            "F1": self.filter_f1,
            "F2": self.filter_f2,
            "F3": self.filter_f3,
            **({} if self.z_value is None else {"Z": self.z_value}),
        }

    def arguments(self) -> list[str]:
        """The same as options of the program."""
        return ["-N", str(self.iterations), *program_options(self.thresholds())]


class _Search:
    """The iterations of one target: what it has found so far, and whether that still grows."""

    def __init__(self, sequence: str) -> None:
        self._target = TextSequence(name=_NAME, sequence=sequence).digitize(AMINO)
        self._builder = Builder(AMINO, architecture="hand")
        self._ranking = KeyHash()
        self._rows = 1
        self.alignment: "DigitalMSA[AA] | None" = None
        self.converged = False

    def profile(self) -> ProteinProfile:
        if self.alignment is None:
            return self._builder.build(self._target, Background(AMINO))[0]
        return self._builder.build_msa(self.alignment, Background(AMINO))[0]

    def take(self, hits: Hits, iteration: int) -> None:
        new = hits.compare_ranking(self._ranking)
        alignment = hits.to_msa(
            AMINO,
            sequences=[self._target],
            traces=[Trace.from_sequence(self._target)],
            digitize=True,
            all_consensus_cols=True,
        )
        assert isinstance(alignment, DigitalMSA)
        alignment.name = f"{_NAME}-i{iteration}"
        rows = len(alignment.names)
        self.converged = new == 0 and rows <= self._rows
        self.alignment, self._rows = alignment, rows


@dataclass(frozen=True)
class InProcessJackhmmer(HmmerSearch):
    """jackhmmer without its program; the database is streamed, and the rows found are those of the program."""

    options: JackhmmerOptions

    def identity(self) -> str:
        """One line for what determines the result: version, options and database."""
        arguments = " ".join(self.options.arguments())
        return f"jackhmmer of pyhmmer {PYHMMER_VERSION} {arguments} {database_identity(self.database)}"

    def search(self, sequence: str) -> bytes:
        """The Stockholm alignment of everything found, the target ("query") first."""
        return self.search_many([sequence])[0]

    def search_many(self, sequences: Sequence[str]) -> list[bytes]:
        """The same for each of several targets, with one reading of the database for all."""
        for sequence in sequences:
            _check_target(sequence)
        searches = [_Search(sequence) for sequence in sequences]
        thresholds = {**_DOMAIN_E_VALUES, **self.options.thresholds()}
        for iteration in range(1, self.options.iterations + 1):
            active = [search for search in searches if not search.converged]
            if not active:
                break
            profiles = [search.profile() for search in active]
            results = search_profiles(profiles, self.database, thresholds, cpus=self.cpus)
            for search, hits in zip(active, results, strict=True):
                search.take(hits, iteration)
        author = f"jackhmmer (pyhmmer {PYHMMER_VERSION})"
        return [stockholm(search.alignment, author) for search in searches if search.alignment is not None]


@dataclass(frozen=True)
class JackhmmerProgram(HmmerSearch):
    """HMMER's jackhmmer, for where it is installed; it reads no gzip files."""

    options: JackhmmerOptions
    program: Path
    timeout: float | None = field(default=None, kw_only=True)  # seconds for one target

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_gzip(self.database):
            raise InputError.at(
                self.database, "the jackhmmer program reads no gzip files; unpack it, or search in process"
            )

    def identity(self) -> str:
        """One line for what determines the result: version, options and database."""
        arguments = " ".join(self.options.arguments())
        return f"jackhmmer {program_version(self.program)} {arguments} {database_identity(self.database)}"

    def search(self, sequence: str) -> bytes:
        """The Stockholm alignment of everything found, the target ("query") first."""
        _check_target(sequence)
        with working_directory() as directory:
            target, result = directory / "query.fasta", directory / "output.sto"
            target.write_text(f">{_NAME}\n{sequence}\n", encoding="ascii")
            outputs = ("-o", "/dev/null", "-A", result, "--noali", "--cpu", str(self.cpus or available_cpus()))
            files: tuple[str | Path, ...] = (target, self.database.absolute())
            command = (self.program, *outputs, *self.options.arguments(), *files)
            run_program(command, timeout=self.timeout, directory=directory)
            return read_output(self.program, result)


def _check_target(sequence: str) -> None:
    if not sequence:
        raise InputError("the target's sequence is empty; give at least one residue")
    found = find_invalid_letter(sequence)
    if found is not None:
        raise InputError(f"the target's residue {found[0] + 1}: {found[1]}")
