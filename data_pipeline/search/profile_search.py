"""Search a FASTA database of any size with HMM profiles by pyhmmer, with the same results as HMMER's programs.

`AMINO` is pyhmmer's alphabet of amino acids. `Thresholds` are by their names in HMMER, such as "incE". A `Threshold` is
a positive number. `Hits` are the hits of one profile.
"""

import io
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from pyhmmer.easel import AA, MSA, Alphabet, SequenceFile
from pyhmmer.plan7 import HMM, OptimizedProfile, Pipeline, Profile, TopHits

from data_pipeline.io.config import POSITIVE, Checked, at_least
from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.io.processors import available_processors
from data_pipeline.search.fasta_chunks import (
    MAX_TARGET_RESIDUES,
    FastaChunk,
    longest_record,
    read_fasta_chunks,
    require_database,
)
from data_pipeline.search.process import working_directory
from data_pipeline.search.tool import FileFormat

AMINO = Alphabet.amino()
PYHMMER_VERSION = version("pyhmmer")

# pyhmmer's classes have type parameters for type checkers only.
ProteinProfile: TypeAlias = "HMM[AA]"
Hits: TypeAlias = "TopHits[HMM[AA] | Profile[AA] | OptimizedProfile[AA]]"


# Thresholds of HMMER's pipeline under the names that HMMER's programs and pyhmmer have for them.
Thresholds: TypeAlias = Mapping[str, Any]
_HMMER_NAMES = {
    "e_value": "E",
    "domain_e_value": "domE",
    "inclusion_e_value": "incE",
    "domain_inclusion_e_value": "incdomE",
    "filter_f1": "F1",
    "filter_f2": "F2",
    "filter_f3": "F3",
    "z_value": "Z",
}
Threshold = Annotated[float, POSITIVE]


@dataclass(frozen=True, kw_only=True)
class HmmerOptions(Checked):
    """Base of the options of HMMER's programs; fields such as `e_value` (in `_HMMER_NAMES`) are thresholds."""

    def thresholds(self) -> Thresholds:
        """Return the thresholds that are not None, by their names in HMMER, such as "incE"."""
        values = {name: value for name, value in vars(self).items() if value is not None}
        return {_HMMER_NAMES[name]: value for name, value in values.items() if name in _HMMER_NAMES}

    def arguments(self) -> list[str]:
        """Return the thresholds as command-line options of HMMER's programs."""
        options = self.thresholds().items()
        return [word for name, value in options for word in ("-" * min(2, len(name)) + name, repr(value))]


@dataclass(frozen=True)
class HmmerSearch(Checked):
    """Base of searches with HMMER (pyhmmer or a program); the result is a Stockholm alignment.

    `database` is a FASTA file, plain or gzip. `cpus` is the number of threads; None: one per processor available to
    this process.
    """

    file_format: ClassVar[FileFormat] = "sto"

    database: Path  # FASTA, plain or gzip
    # Threads; None: all processors of this process.
    cpus: Annotated[int | None, at_least(1)] = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_database(self.database)


class _MergedHits:
    """The merged hits of all chunks so far, equal to the hits of a single search of these chunks.

    Merging copies the hits, so only results with the same number of chunks are merged, and every hit is copied
    log2(chunks) times. Each merge recomputes the E-values for the sequences of both parts. This loses no hits, because
    E-values grow with the number of sequences, so a chunk passes at least the hits that the whole database passes.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[int, Hits]] = []

    def add(self, hits: Hits) -> None:
        chunks = 1
        while self._parts and self._parts[-1][0] == chunks:
            earlier = self._parts.pop()
            chunks += earlier[0]
            hits = earlier[1].merge(hits)
        self._parts.append((chunks, hits))

    def total(self) -> Hits:
        first, *others = (hits for _, hits in self._parts)
        return first.merge(*others)


def search_profiles(
    profiles: Sequence[ProteinProfile],
    database: Path,
    thresholds: Thresholds,
    *,
    cpus: int | None,
    select: Callable[[FastaChunk], FastaChunk] | None = None,
) -> list[Hits]:
    """Return the hits of each profile in the database, sorted by score; the database is read once.

    `cpus` threads search the file in chunks (None: one per processor available to this process). Only a few chunks and
    the hits are in memory. Records that `select` drops from a chunk do not count in E-values. Raise `InputError` for a
    database without records, or with a record that HMMER cannot search.
    """
    threads = cpus or available_processors()
    merged = [_MergedHits() for _ in profiles]

    def merge(chunk_hits: list[Hits]) -> None:
        for hits, new in zip(merged, chunk_hits, strict=True):
            hits.add(new)

    is_empty = True
    waiting: deque[Future[list[Hits]]] = deque()
    with working_directory() as directory, ThreadPoolExecutor(threads) as executor:
        try:
            for index, chunk in enumerate(read_fasta_chunks(database)):
                content = chunk if select is None else select(chunk)
                if not content.content.strip():
                    continue
                is_empty = False
                path = directory / f"{index}.fasta"
                waiting.append(executor.submit(_search_chunk, profiles, database, content, thresholds, path))
                if len(waiting) > 2 * threads:
                    merge(waiting.popleft().result())
            while waiting:
                merge(waiting.popleft().result())
        finally:
            for future in waiting:
                future.cancel()
    if is_empty:
        raise InputError.at(database, "the database has no sequences; was it completely downloaded and unpacked?")
    return [hits.total() for hits in merged]


def to_stockholm(alignment: MSA, author: str) -> bytes:
    """Return the alignment in Stockholm format, as written by HMMER's programs, after setting its author."""
    alignment.author = author
    buffer = io.BytesIO()
    alignment.write(buffer, "stockholm")
    return buffer.getvalue()


def _search_chunk(
    profiles: Sequence[ProteinProfile], database: Path, chunk: FastaChunk, thresholds: Thresholds, path: Path
) -> list[Hits]:
    """Return the hits of each profile in the chunk; `path` is a temporary file."""
    hits = []
    try:
        # HMMER releases Python's global lock when it searches a file, but not with single records.
        path.write_bytes(chunk.content)
        for profile in profiles:
            # Each profile needs its own pipeline, which counts the sequences and adapts the profile to their lengths.
            pipeline = Pipeline(AMINO, **thresholds)
            with SequenceFile(str(path), format="fasta", digital=True, alphabet=AMINO) as targets:
                hits.append(pipeline.search_hmm(profile, targets))
    except ValueError as error:
        raise _hmmer_error(database, chunk, error) from error
    except OSError as error:
        raise SearchError(
            f"a temporary file cannot be written and read: {error}; set TMPDIR to a folder with free space"
        ) from error
    finally:
        path.unlink(missing_ok=True)
    return hits


def _hmmer_error(database: Path, chunk: FastaChunk, error: ValueError) -> InputError:
    """Return the error for a well-formed chunk that HMMER cannot search."""
    name, length = longest_record(chunk)
    if length > MAX_TARGET_RESIDUES:
        problem = f"{length:,} residues, but HMMER supports at most {MAX_TARGET_RESIDUES:,}; remove the record"
        return InputError.at(database, problem, record=name)
    return InputError.at(database, f"HMMER cannot search the records starting here: {error}", line=chunk.line)
