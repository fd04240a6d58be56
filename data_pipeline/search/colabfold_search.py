"""Search ColabFold's databases for many targets at once, with the results of `colabfold_search`.

Results are kept by their content hash, so that runs and targets with equal sequences share them.
"""

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from data_pipeline.errors import SearchError, check_at_least
from data_pipeline.files import atomic_write
from data_pipeline.search.colabfold_databases import ClusterDatabase, check_sequences, database_size
from data_pipeline.search.colabfold_steps import (
    PAIRED,
    TEMPLATE_HITS,
    UNPAIRED,
    ColabfoldOptions,
    Step,
    paired_steps,
    unpaired_steps,
)
from data_pipeline.search.mmseqs_program import MAX_RESIDUES
from data_pipeline.search.process import program_version, read_output, run_program, working_directory
from data_pipeline.search.tool import FileFormat

# Alignments are as small as a fifth even so, and a search of a thousand targets does not wait for the processor.
_LEVEL = 1


@dataclass(frozen=True)
class SharedResults:
    """A folder of results, each in a file named after the hash of its search and its query.

    Any number of processes may read and write it at once. What is damaged is searched again; to save space, delete
    any file.
    """

    directory: Path

    def find(self, identity: str, query: str) -> bytes | None:
        """Return the result of an earlier search with this identity and query; None if there is none."""
        try:
            packed = self._path(identity, query).read_bytes()
            return gzip.decompress(packed) if packed else None
        except (OSError, EOFError, zlib.error):
            return None

    def save(self, identity: str, query: str, content: bytes) -> None:
        """Keep a result; raise `OSError` if it cannot be written."""
        path = self._path(identity, query)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, sync=False) as temporary:
            temporary.write_bytes(gzip.compress(content, _LEVEL, mtime=0))

    def _path(self, identity: str, query: str) -> Path:
        name = hashlib.sha256(f"{identity}\n{query}".encode()).hexdigest()
        return self.directory / name[:2] / f"{name[2:]}.gz"


_FIRST_NAME = 101  # ColabFold's names of the sequences of a target
# Steps that have no option for threads.
_SINGLE = ("mvdb", "lndb", "rmdb", "mergedbs")
_WITH_LENGTH = ("search", "align")


@dataclass(frozen=True, kw_only=True)
class MmseqsBatch:
    """A run of MMseqs2's programs over many queries, with one result for each."""

    program: Path
    cpus: int = 4
    timeout: float | None = None  # seconds, for each step

    def __post_init__(self) -> None:
        check_at_least(self, cpus=1)

    def version(self) -> str:
        """Return what the program prints as its version."""
        return program_version(self.program, "version")

    def run(self, groups: Sequence[Sequence[str]], steps: Sequence[Step], results: Sequence[str]) -> list[list[bytes]]:
        """Run the steps for groups of sequences (complexes, or single ones); return each result by sequence.

        Sequences of a group are known to MMseqs2 as those of one file. Raise `SearchError` if a step fails.
        """
        sequences = [sequence for group in groups for sequence in group]
        longest = max(map(len, sequences))
        with working_directory() as directory:
            names = (str(_FIRST_NAME + index) for group in groups for index in range(len(group)))
            records = (f">{name}\n{sequence}\n" for name, sequence in zip(names, sequences, strict=True))
            directory.joinpath("queries.fasta").write_text("".join(records))
            self._run(directory, ["createdb", "queries.fasta", "queries", "--shuffle", "0", "--dbtype", "1"])
            numbers = (number for number, group in enumerate(groups) for _ in group)
            lines = (f"{key}\t{number}\t{number}\n" for key, number in enumerate(numbers))
            directory.joinpath("queries.lookup").write_text("".join(lines))
            for step in steps:
                threads = [] if step[0] in _SINGLE else ["--threads", str(self.cpus)]
                is_longer = longest > MAX_RESIDUES and step[0] in _WITH_LENGTH
                self._run(directory, [*step, *threads, *(["--max-seq-len", str(longest)] if is_longer else [])])
            return [self._unpacked(directory, name, len(sequences)) for name in results]

    def _unpacked(self, directory: Path, name: str, count: int) -> list[bytes]:
        folder = directory / f"{name}_files"
        self._run(directory, ["unpackdb", name, folder.name, "--unpack-name-mode", "0", "--unpack-suffix", ".txt"])
        files = [folder / f"{key}.txt" for key in range(count)]
        if name == TEMPLATE_HITS:  # a query without hits has no lines
            return [file.read_bytes() if file.is_file() else b"" for file in files]
        return [read_output(self.program, file) for file in files]

    def _run(self, directory: Path, words: Step) -> None:
        run_program([self.program, *words, "-v", "2"], timeout=self.timeout, directory=directory)


@dataclass(frozen=True, kw_only=True)
class ColabfoldSearch:
    """Search of UniRef30, and of environmental sequences if given, for the homologs of many targets at once.

    Results are those of `colabfold_search` with the same program, byte for byte, but for letters of the target that
    MMseqs2 replaces. Equal sequences are searched once; with `shared`, results are kept for other runs.
    """

    file_format: ClassVar[FileFormat] = "a3m"
    targets_per_pass: ClassVar[int] = 10_000

    batch: MmseqsBatch
    uniref: ClusterDatabase
    environmental: ClusterDatabase | None = None
    templates: Path | None = None  # database of chains with known structures, searched in the same pass
    options: ColabfoldOptions = field(default_factory=ColabfoldOptions)
    shared: SharedResults | None = None

    def __post_init__(self) -> None:
        if self.templates is not None:
            check_sequences(self.templates)

    def identity(self) -> str:
        """Return tool, version, options and databases in one line; equal lines give equal results."""
        databases = [self.uniref] if self.environmental is None else [self.uniref, self.environmental]
        names = " ".join(database.identity() for database in databases)
        search = " ".join(self.options.search())
        filtered = "filtered" if self.options.filtered else "unfiltered"
        return f"mmseqs {self.batch.version()} colabfold {search} {filtered} in {names}"

    def template_identity(self) -> str:
        """Return the line of the search for templates, which depends on the profile and thus on UniRef."""
        name = "" if self.templates is None else f"{self.templates.name}:{database_size(self.templates)}"
        search = " ".join([*self.options.search(), *self.options.template_search()])
        return f"mmseqs {self.batch.version()} colabfold {search} in {self.uniref.identity()} then {name}"

    def search(self, sequence: str) -> bytes:
        """Return the a3m of all homologs, first the target under the name "101", as ColabFold has it."""
        (result,) = self.search_many([sequence])
        return result

    def search_many(self, sequences: Sequence[str]) -> list[bytes]:
        """Return the result of `search` for each sequence; raise `SearchError` if MMseqs2 fails."""
        return [alignment for alignment, _ in self._results(sequences)]

    def template_hits(self, sequence: str) -> bytes:
        """Return the table of template hits of a sequence (MMseqs2's m8 with CIGAR strings), the best first."""
        ((_, hits),) = self._results([sequence])
        return hits

    def _results(self, sequences: Sequence[str]) -> list[tuple[bytes, bytes]]:
        """Return alignment and template hits of each sequence, kept or searched; equal ones are searched once."""
        found: dict[str, tuple[bytes, bytes]] = {}
        for sequence in dict.fromkeys(sequences):
            kept = self._kept(sequence)
            if kept is not None:
                found[sequence] = kept
        missing = [sequence for sequence in dict.fromkeys(sequences) if sequence not in found]
        if missing:
            found |= zip(missing, self._searched(missing), strict=True)
        return [found[sequence] for sequence in sequences]

    def _kept(self, sequence: str) -> tuple[bytes, bytes] | None:
        if self.shared is None:
            return None
        alignment = self.shared.find(self.identity(), sequence)
        hits = b"" if self.templates is None else self.shared.find(self.template_identity(), sequence)
        return None if alignment is None or hits is None else (alignment, hits)

    def _searched(self, sequences: Sequence[str]) -> Iterable[tuple[bytes, bytes]]:
        steps = unpaired_steps(self.options, self.uniref, self.environmental, self.templates)
        names = [UNPAIRED] if self.templates is None else [UNPAIRED, TEMPLATE_HITS]
        alignments, *tables = self.batch.run([[sequence] for sequence in sequences], steps, names)
        alignments = list(map(with_own_query, alignments, sequences))
        hits = tables[0] if tables else [b""] * len(sequences)
        for sequence, alignment, table in zip(sequences, alignments, hits, strict=True):
            self._keep(self.identity, sequence, alignment)
            if self.templates is not None:
                self._keep(self.template_identity, sequence, table)
        return zip(alignments, hits, strict=True)

    def _keep(self, identity: Callable[[], str], sequence: str, content: bytes) -> None:
        if self.shared is not None:
            with suppress(OSError):  # a full disk only means that it is searched again
                self.shared.save(identity(), sequence, content)


@dataclass(frozen=True, kw_only=True)
class ColabfoldTemplates:
    """Search for chains of known structure with the profile of a `ColabfoldSearch`, which names their database."""

    input_format: ClassVar[FileFormat] = "a3m"
    file_format: ClassVar[FileFormat] = "m8"

    alignments: ColabfoldSearch

    def identity(self) -> str:
        """Return tool, version, options and databases in one line; equal lines give equal results."""
        return self.alignments.template_identity()

    def search(self, alignment: bytes) -> bytes:
        """Return the hits of the target of an a3m, its first row; the other rows are not read.

        The profile is made by the search of UniRef, so this is quick if that search has kept its results.
        """
        return self.alignments.template_hits(alignment.split(b"\n", 2)[1].decode())


@dataclass(frozen=True, kw_only=True)
class ColabfoldPairing:
    """Search of UniRef30 for rows of all sequences of complexes that are paired by species."""

    batch: MmseqsBatch
    database: ClusterDatabase
    options: ColabfoldOptions = field(default_factory=ColabfoldOptions)
    complete: bool = False  # only species that every sequence of the complex has a hit of
    shared: SharedResults | None = None

    def identity(self) -> str:
        """Return tool, version, options and database in one line; equal lines give equal results."""
        mode = "complete" if self.complete else "greedy"
        search = " ".join(self.options.search())
        return f"mmseqs {self.batch.version()} colabfold pair {mode} {search} in {self.database.identity()}"

    def search(self, sequences: Sequence[str]) -> list[bytes]:
        """Return the a3m of each of these different sequences, first the sequence itself, under "101", "102", ....

        All have equally many rows; rows of one number are of one species, and are gaps alone for a sequence that has
        none. A sequence alone has its own row, and with `complete` one of each species. Raise `SearchError` if MMseqs2
        fails.
        """
        (results,) = self.search_many([sequences])
        return results

    def search_many(self, complexes: Sequence[Sequence[str]]) -> list[list[bytes]]:
        """Return the result of `search` for each complex; they are searched together, equal ones once."""
        for sequences in complexes:
            if len(set(sequences)) < max(1, len(sequences)):
                raise ValueError("rows are paired between different sequences")
        keys = [":".join(sequences) for sequences in complexes]
        groups = dict(zip(keys, complexes, strict=True))
        found = {key: kept for key, group in groups.items() if (kept := self._kept(group)) is not None}
        missing = [group for key, group in groups.items() if key not in found]
        if missing:
            steps = paired_steps(self.options, self.database, complete=self.complete)
            (contents,) = self.batch.run(missing, steps, [PAIRED])
            results = iter(contents)
            for group in missing:
                own = [with_own_query(next(results), sequence) for sequence in group]
                found[":".join(group)] = own
                self._keep(group, own)
        return [found[key] for key in keys]

    def _kept(self, sequences: Sequence[str]) -> list[bytes] | None:
        if self.shared is None:
            return None
        found = [self.shared.find(self.identity(), query) for query in _queries(sequences)]
        return None if None in found else [content for content in found if content is not None]

    def _keep(self, sequences: Sequence[str], contents: Sequence[bytes]) -> None:
        if self.shared is not None:
            with suppress(OSError):
                for query, content in zip(_queries(sequences), contents, strict=True):
                    self.shared.save(self.identity(), query, content)


def _queries(sequences: Sequence[str]) -> list[str]:
    """Return what tells the result of each sequence of a complex from those of other complexes and sequences."""
    return [f"{index} of {':'.join(sequences)}" for index in range(len(sequences))]


def with_own_query(content: bytes, sequence: str) -> bytes:
    """Return the a3m with the target's own letters: MMseqs2 writes D for B, E for Z and L for J."""
    header, _, rest = content.partition(b"\n")
    row, newline, rest = rest.partition(b"\n")
    if not header.startswith(b">") or len(row) != len(sequence):
        raise SearchError("mmseqs wrote an alignment whose first row is not the target")
    return header + b"\n" + sequence.encode() + newline + rest
