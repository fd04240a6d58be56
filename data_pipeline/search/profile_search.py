"""Searching a FASTA database of any size with profiles, in this process, as HMMER's programs search it as a whole."""

import io
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from pyhmmer.easel import AA, MSA, Alphabet, SequenceFile
from pyhmmer.plan7 import HMM, OptimizedProfile, Pipeline, Profile, TopHits

from data_pipeline.errors import InputError, SearchError
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


# What HMMER's pipeline lets pass, and what of it enters the alignment ("included"), by the names that HMMER's programs
# and pyhmmer have for it: E, domE, incE, incdomE; F1, F2, F3; Z.
Thresholds: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class HmmerSearch:
    """A database that is searched with HMMER, in this process or by a program; the result is a Stockholm alignment."""

    file_format: ClassVar[FileFormat] = "sto"

    database: Path  # FASTA, plain or gzip
    cpus: int | None = field(default=None, kw_only=True)  # threads; None: as many as there are processors

    def __post_init__(self) -> None:
        if self.cpus is not None and self.cpus < 1:
            raise ValueError(f"cpus must be at least 1, or None for all processors, got {self.cpus}")
        require_database(self.database)


def check_positive(options: Mapping[str, float | None]) -> None:
    """Raise `ValueError` for the first of the options that is given and not a positive number."""
    for name, value in options.items():
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{name} must be a positive number, got {value}")


def program_options(thresholds: Thresholds) -> list[str]:
    """Thresholds as options of HMMER's programs."""
    return [word for name, value in thresholds.items() for word in ("-" * min(2, len(name)) + name, repr(value))]


class _MergedHits:
    """The hits of all pieces so far, as one search of these pieces would have them.

    Merging copies, so only results of equally many pieces are merged: every hit is copied log2(pieces) times. E-values
    and what passes by them are computed again with each merge, now for the sequences of both; a piece by itself keeps
    all that the whole will, as an E-value grows with the number of sequences.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[int, Hits]] = []

    def add(self, hits: Hits) -> None:
        pieces = 1
        while self._parts and self._parts[-1][0] == pieces:
            earlier = self._parts.pop()
            pieces += earlier[0]
            hits = earlier[1].merge(hits)
        self._parts.append((pieces, hits))

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
    """The hits of each profile in the database, sorted by score, in one pass over the file.

    The file is read piece by piece and searched by `cpus` threads (None: all that this process may use); in memory
    are a few pieces and the hits. `select` may drop records of a piece, which then do not count in E-values.
    """
    threads = cpus or available_cpus()
    merged = [_MergedHits() for _ in profiles]

    def keep(piece_hits: list[Hits]) -> None:
        for hits, new in zip(merged, piece_hits, strict=True):
            hits.add(new)

    found = False
    waiting: deque[Future[list[Hits]]] = deque()
    with working_directory() as directory, ThreadPoolExecutor(threads) as executor:
        try:
            for number, piece in enumerate(read_fasta_chunks(database)):
                content = piece if select is None else select(piece)
                if not content.content.strip():
                    continue
                found = True
                path = directory / f"{number}.fasta"
                waiting.append(executor.submit(_search_piece, profiles, database, content, thresholds, path))
                if len(waiting) > 2 * threads:
                    keep(waiting.popleft().result())
            while waiting:
                keep(waiting.popleft().result())
        finally:
            for future in waiting:
                future.cancel()
    if not found:
        raise InputError.at(database, "the database holds no sequence; was it unpacked or downloaded to the end?")
    return [hits.total() for hits in merged]


def available_cpus() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def stockholm(alignment: MSA, author: str) -> bytes:
    """The alignment as HMMER's programs write it."""
    alignment.author = author
    buffer = io.BytesIO()
    alignment.write(buffer, "stockholm")
    return buffer.getvalue()


def _search_piece(
    profiles: Sequence[ProteinProfile], database: Path, piece: FastaChunk, thresholds: Thresholds, path: Path
) -> list[Hits]:
    """The hits of each profile in the piece, which is written to the new file `path` for that time."""
    hits = []
    try:
        # From a file, HMMER reads and searches without Python's lock; records given one by one make threads wait.
        path.write_bytes(piece.content)
        for profile in profiles:
            # A pipeline of its own: it counts the sequences, and holds the profile that it adapts to their lengths.
            pipeline = Pipeline(AMINO, **thresholds)
            with SequenceFile(str(path), format="fasta", digital=True, alphabet=AMINO) as targets:
                hits.append(pipeline.search_hmm(profile, targets))
    except ValueError as error:
        raise _refused(database, piece, error) from error
    except OSError as error:
        raise SearchError(
            f"a temporary file cannot be written and read: {error}; set TMPDIR to a folder with space"
        ) from error
    finally:
        path.unlink(missing_ok=True)
    return hits


def _refused(database: Path, piece: FastaChunk, error: ValueError) -> InputError:
    """The error for a piece that HMMER does not take although it reads well."""
    name, length = longest_record(piece)
    if length > MAX_TARGET_RESIDUES:
        problem = f"{length:,} residues, and HMMER takes at most {MAX_TARGET_RESIDUES:,}; remove the record"
        return InputError.at(database, problem, record=name)
    return InputError.at(database, f"HMMER cannot search the records from here on: {error}", line=piece.line)
