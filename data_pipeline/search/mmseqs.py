"""Run MMseqs2 on this machine to search for homologs of a sequence, and to cluster the sequences of training sets."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from data_pipeline.io.config import POSITIVE, Checked, at_least, between
from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.io.user_cache import writable_cache
from data_pipeline.search.mmseqs_program import MAX_RESIDUES, require_mmseqs
from data_pipeline.search.process import program_version, read_output, run_program, working_directory
from data_pipeline.search.tool import FileFormat

_SEQUENCE_TYPE, _TYPE_BITS = 0, 0xFFFF  # in the `.dbtype` file: amino acids, not profiles, nucleotides or clusters
# As in ColabFold: if there are more than 1,000 rows, keep the 3,000 most diverse rows of each block of 50 columns at
# each of these identities to the target, without near-duplicates.
_ROW_FILTER = (
    "--filter-msa 1 --filter-min-enable 1000 --diff 3000 --qid 0.0,0.2,0.4,0.6,0.8,1.0 --qsc 0 --max-seq-id 0.95"
)
# MMseqs2 fails if no sequence has a k-mer that it can index (all are very short, repeats or unknown), so add this one.
_INDEXABLE_SEQUENCE = "ACDEFGHIKLMNPQRSTVWYYWVTSRQPNMLKIHGFEDCA"
_HIT_FILTER = "--qid 0 --qsc 0.8 --diff 0 --max-seq-id 1.0 --filter-min-enable 100"


@dataclass(frozen=True, kw_only=True)
class MmseqsOptions(Checked):
    """Options of an MMseqs2 search; the defaults are ColabFold's (Mirdita et al., Nat. Methods 2022).

    Unlike ColabFold's databases, databases of plain sequences have no clusters to expand and realign. `max_hits` is the
    number of hits that pass the prefilter. `filtered` drops poor hits if there are over 100, and near-duplicate rows if
    over 1,000.
    """

    sensitivity: Annotated[float, between(1, 10)] = 8.0
    iterations: Annotated[int, between(1, 10)] = 3
    e_value: Annotated[float, POSITIVE] = 0.1
    max_hits: Annotated[int, at_least(1)] = 10_000  # hits that pass the prefilter
    filtered: bool = True  # drop poor hits if there are over 100, and near-duplicate rows if over 1,000

    def arguments(self) -> list[str]:
        """Return the options, except `filtered`, as command-line arguments of `mmseqs search`."""
        arguments = ["-s", f"{self.sensitivity:g}", "--num-iterations", str(self.iterations)]
        return [*arguments, "-e", f"{self.e_value:g}", "--max-seqs", str(self.max_hits)]


@dataclass(frozen=True, kw_only=True)
class Mmseqs(Checked):
    """Search of a database of plain sequences for homologs of a sequence; the result is an a3m.

    `database` is a FASTA file, plain or gzip, or a database of `mmseqs createdb`. A FASTA file is converted once, into
    the folder `cache`, or by each process if this is not writable. `timeout` is in seconds for each step.
    """

    file_format: ClassVar[FileFormat] = "a3m"

    program: Path
    database: Path  # FASTA (plain or gzip), or a database of `mmseqs createdb`
    # Folder for databases converted from FASTA. If it is not writable, each process converts the file again.
    cache: Path
    options: MmseqsOptions = field(default_factory=MmseqsOptions)
    cpus: Annotated[int, at_least(1)] = 4
    timeout: float | None = None  # seconds, for each step

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.database.is_file():
            raise InputError.at(self.database, "no such database; pass a FASTA file or a database of mmseqs createdb")
        table = self.database.with_name(f"{self.database.name}.dbtype")
        if table.is_file() and int.from_bytes(table.read_bytes()[:4], "little") & _TYPE_BITS != _SEQUENCE_TYPE:
            raise InputError.at(self.database, "not a database of protein sequences; create one with mmseqs createdb")

    def identity(self) -> str:
        """Return tool, version, options and database in one line; equal lines give equal results."""
        filters = f"{_HIT_FILTER} {_ROW_FILTER}" if self.options.filtered else "unfiltered"
        database = f"{self.database.name}:{self.database.stat().st_size}"
        version = program_version(self.program, "version")
        return f"mmseqs {version} {' '.join(self.options.arguments())} {filters} in {database}"

    def search(self, sequence: str) -> bytes:
        """Return the a3m of all homologs; the target is the first row, named "query"."""
        database = str(self._database_path())
        length = ["--max-seq-len", str(len(sequence))] if len(sequence) > MAX_RESIDUES else []
        with working_directory() as directory:
            directory.joinpath("query.fasta").write_text(f">query\n{sequence}\n")
            self._run(directory, "createdb", "query.fasta", "query", "--dbtype", "1")
            options = [*self.options.arguments(), "-a", *length]
            self._run(directory, "search", "query", database, "hits", "steps", *options, "--threads", str(self.cpus))
            hits, row_filter = "hits", []
            if self.options.filtered:
                self._run(directory, "filterresult", "query", database, "hits", "good", *_HIT_FILTER.split())
                hits, row_filter = "good", _ROW_FILTER.split()
            self._run(directory, "result2msa", "query", database, hits, "rows", "--msa-format-mode", "6", *row_filter)
            self._run(directory, "unpackdb", "rows", "unpacked", "--unpack-name-mode", "0", "--unpack-suffix", ".a3m")
            return _with_own_query(read_output(self.program, directory / "unpacked" / "0.a3m"), sequence)

    def _run(self, directory: Path, *words: str) -> None:
        run_program([self.program, *words, "-v", "2"], timeout=self.timeout, directory=directory)

    def _database_path(self) -> Path:
        """Return the path of the database, after converting it from FASTA if necessary."""
        if self.database.with_name(f"{self.database.name}.dbtype").is_file():
            return self.database.absolute()
        stat = self.database.stat()
        key = f"{self.database.absolute()} {stat.st_size} {stat.st_mtime_ns}"
        name = f"{self.database.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        folder = self.cache.absolute() / name
        if not folder.is_dir():
            folder = writable_cache(self.cache.absolute()) / name
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with working_directory(folder.parent) as directory:
                new = directory / "new"
                new.mkdir()
                self._run(new, "createdb", str(self.database.absolute()), "sequences", "--dbtype", "1")
                try:
                    os.rename(new, folder)
                except OSError as error:
                    if not folder.is_dir():  # else another process was faster
                        raise SearchError(f"cannot create {folder}: {error}") from error
        return folder / "sequences"


def _with_own_query(content: bytes, sequence: str) -> bytes:
    """Return the a3m with the target's own letters: MMseqs2 writes D for B, E for Z and L for J."""
    header, row, rest = content.split(b"\n", 2)
    if not header.startswith(b">query") or len(row) != len(sequence):
        raise SearchError("the first row of an alignment of mmseqs is not the target")
    return b">query\n" + sequence.encode() + b"\n" + rest


def cluster_sequences(
    sequences: Mapping[str, str],
    *,
    min_identity: float = 0.4,
    coverage: float = 0.8,
    cpus: int = 4,
    timeout: float | None = None,
) -> dict[str, str]:
    """Cluster sequences by similarity, and return the name of each sequence's cluster representative by its name.

    Members have at least `min_identity` to their representative over the fraction `coverage` of both sequences
    (AlphaFold 2, Suppl. Sec. 1.2.5: MMseqs2 clusters at 40 % identity). Equal sequences are always in one cluster, and
    the first of their names represents them. The result does not depend on the order of `sequences`, which are by name.
    `timeout` is in seconds for each step of MMseqs2.
    """
    for name, value in (("min_identity", min_identity), ("coverage", coverage)):
        if not 0 < value <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, got {value}")
    names: dict[str, list[str]] = {}
    for name in sorted(sequences):
        sequence = sequences[name]
        if not (sequence.isascii() and sequence.isalpha()):
            raise ValueError(f"the sequence of '{name}' must be letters of residues, got {sequence[:20]!r}")
        names.setdefault(sequence.upper(), []).append(name)
    if not names:
        return {}
    # MMseqs2 breaks ties by order, so sort by sequence.
    unique_sequences = sorted(names, key=lambda sequence: (-len(sequence), sequence))
    program = require_mmseqs()
    length = ["--max-seq-len", str(len(unique_sequences[0]))] if len(unique_sequences[0]) > MAX_RESIDUES else []
    with working_directory() as directory:
        # Indices instead of names, because MMseqs2 may interpret names.
        records = (f">{index}\n{sequence}\n" for index, sequence in enumerate([*unique_sequences, _INDEXABLE_SEQUENCE]))
        directory.joinpath("all.fasta").write_text("".join(records))
        # A single step, because MMseqs2's cascade does not guarantee the identity of members to their representative,
        # and more neighbours than the default of 20, because protein families are larger.
        options = f"--min-seq-id {min_identity:g} -c {coverage:g} --cov-mode 0 --single-step-clustering 1"
        limits = f"--max-seqs 1000 --threads {cpus}"
        for step in (
            ["createdb", "all.fasta", "all", "--dbtype", "1", "--shuffle", "0"],
            ["cluster", "all", "clusters", "steps", *options.split(), *limits.split(), *length],
            ["createtsv", "all", "all", "clusters", "clusters.tsv"],
        ):
            run_program([program, *step, "-v", "2"], timeout=timeout, directory=directory)
        table = read_output(program, directory / "clusters.tsv").decode()
    representatives = {index: index for index in range(len(unique_sequences))}
    for line in table.splitlines():
        representative, member = line.split("\t")
        if max(int(representative), int(member)) < len(unique_sequences):
            representatives[int(member)] = int(representative)
    return {
        name: names[unique_sequences[representatives[index]]][0]
        for index, sequence in enumerate(unique_sequences)
        for name in names[sequence]
    }
