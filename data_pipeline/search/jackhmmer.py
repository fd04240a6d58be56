"""Search a FASTA database for homologs of a target with jackhmmer, from pyhmmer or the HMMER program."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pyhmmer.easel import AA, DigitalMSA, KeyHash, TextSequence
from pyhmmer.plan7 import Background, Builder, Trace

from data_pipeline.io.config import at_least
from data_pipeline.io.errors import InputError
from data_pipeline.io.processors import available_processors
from data_pipeline.parse.fasta import check_sequence
from data_pipeline.search.fasta_chunks import database_identity, is_gzip
from data_pipeline.search.process import program_version, read_output, run_program, working_directory
from data_pipeline.search.profile_search import (
    AMINO,
    PYHMMER_VERSION,
    Hits,
    HmmerOptions,
    HmmerSearch,
    ProteinProfile,
    Threshold,
    search_profiles,
    to_stockholm,
)

_DOMAIN_E_VALUES = {"domE": 10.0, "incdomE": 1e-3}  # jackhmmer's defaults, which AlphaFold uses
_TARGET_NAME = "query"  # of the target row, as in AlphaFold's files
_SEQUENCE_OWNER = "the target's sequence"  # in errors


@dataclass(frozen=True, kw_only=True)
class JackhmmerOptions(HmmerOptions):
    """Iterations and thresholds of jackhmmer; the defaults are AlphaFold's (AlphaFold 2, Suppl. Sec. 1.2.2).

    The filters F1, F2 and F3 are the max P-values to pass the MSV, Viterbi and Forward filters. `e_value` is the max
    E-value of reported sequences, and `inclusion_e_value` of sequences in the alignment. `z_value` is the number of
    sequences for E-values; None: those in the database. The options in `identity` have the order of the fields.
    """

    iterations: Annotated[int, at_least(1)] = 1
    e_value: Threshold = 1e-4  # max E-value of reported sequences
    inclusion_e_value: Threshold = 1e-4  # max E-value of sequences in the alignment
    filter_f1: Threshold = 0.0005  # max P-value to pass the MSV filter
    filter_f2: Threshold = 0.00005  # max P-value to pass the Viterbi filter
    filter_f3: Threshold = 0.0000005  # max P-value to pass the Forward filter
    z_value: Threshold | None = None  # database size for E-values; None: the number of sequences in the database

    def arguments(self) -> list[str]:
        """Return the iterations and thresholds as command-line options of the program."""
        return ["-N", str(self.iterations), *super().arguments()]


class _TargetSearch:
    """The search state of one target: its current alignment, and whether it has converged."""

    def __init__(self, sequence: str) -> None:
        self._target = TextSequence(name=_TARGET_NAME, sequence=sequence).digitize(AMINO)
        self._builder = Builder(AMINO, architecture="hand")
        self._ranking = KeyHash()
        self._rows = 1
        self.alignment: "DigitalMSA[AA] | None" = None
        self.converged = False

    def profile(self) -> ProteinProfile:
        """Return the profile for the next iteration."""
        if self.alignment is None:
            return self._builder.build(self._target, Background(AMINO))[0]
        return self._builder.build_msa(self.alignment, Background(AMINO))[0]

    def update(self, hits: Hits, iteration: int) -> None:
        """Align the hits of an iteration, and check for convergence."""
        new = hits.compare_ranking(self._ranking)
        alignment = hits.to_msa(
            AMINO,
            sequences=[self._target],
            traces=[Trace.from_sequence(self._target)],
            digitize=True,
            all_consensus_cols=True,
        )
        assert isinstance(alignment, DigitalMSA)
        alignment.name = f"{_TARGET_NAME}-i{iteration}"
        rows = len(alignment.names)
        self.converged = new == 0 and rows <= self._rows
        self.alignment, self._rows = alignment, rows


@dataclass(frozen=True)
class InProcessJackhmmer(HmmerSearch):
    """jackhmmer search with pyhmmer; the database is streamed, and the rows are the same as with the HMMER program."""

    targets_per_pass = 16  # each target needs memory for a profile and its hits

    options: JackhmmerOptions

    def identity(self) -> str:
        """Return version, options and database in one line; equal lines give equal results."""
        arguments = " ".join(self.options.arguments())
        return f"jackhmmer of pyhmmer {PYHMMER_VERSION} {arguments} {database_identity(self.database)}"

    def search(self, sequence: str) -> bytes:
        """Return the Stockholm alignment of all hits, the target ("query") first."""
        return self.search_many([sequence])[0]

    def search_many(self, sequences: Sequence[str]) -> list[bytes]:
        """Return the result of `search` for each target; the database is read once for all targets."""
        for sequence in sequences:
            check_sequence(sequence, _SEQUENCE_OWNER)
        searches = [_TargetSearch(sequence) for sequence in sequences]
        thresholds = {**_DOMAIN_E_VALUES, **self.options.thresholds()}
        for iteration in range(1, self.options.iterations + 1):
            active = [search for search in searches if not search.converged]
            if not active:
                break
            profiles = [search.profile() for search in active]
            results = search_profiles(profiles, self.database, thresholds, cpus=self.cpus)
            for search, hits in zip(active, results, strict=True):
                search.update(hits, iteration)
        author = f"jackhmmer (pyhmmer {PYHMMER_VERSION})"
        return [to_stockholm(search.alignment, author) for search in searches if search.alignment is not None]


@dataclass(frozen=True)
class JackhmmerProgram(HmmerSearch):
    """jackhmmer search with the installed HMMER program; `timeout` is in seconds for one target.

    The constructor raises `InputError` for a gzip file, which the program cannot read.
    """

    options: JackhmmerOptions
    program: Path
    timeout: float | None = field(default=None, kw_only=True)  # seconds for one target

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_gzip(self.database):
            raise InputError.at(
                self.database,
                "the jackhmmer program cannot read gzip files; unpack it, or search with pyhmmer",
            )

    def identity(self) -> str:
        """Return version, options and database in one line; equal lines give equal results."""
        arguments = " ".join(self.options.arguments())
        return f"jackhmmer {program_version(self.program)} {arguments} {database_identity(self.database)}"

    def search(self, sequence: str) -> bytes:
        """Return the Stockholm alignment of all hits, the target ("query") first."""
        check_sequence(sequence, _SEQUENCE_OWNER)
        with working_directory() as directory:
            target, result = directory / "query.fasta", directory / "output.sto"
            target.write_text(f">{_TARGET_NAME}\n{sequence}\n", encoding="ascii")
            outputs = ("-o", "/dev/null", "-A", result, "--noali", "--cpu", str(self.cpus or available_processors()))
            files: tuple[str | Path, ...] = (target, self.database.absolute())
            command = (self.program, *outputs, *self.options.arguments(), *files)
            run_program(command, timeout=self.timeout, directory=directory)
            return read_output(self.program, result)
