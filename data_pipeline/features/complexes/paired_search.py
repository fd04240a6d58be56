"""Search for rows paired between the distinct sequences of a complex, or read earlier results."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from data_pipeline.io.errors import InputError, SearchError, TooLargeError
from data_pipeline.parse.a3m import Alignment, parse_a3m
from data_pipeline.search.plan import PairingStep
from data_pipeline.search.result_files import ResultFiles
from data_pipeline.search.tool import BatchPairing


def paired_alignments(sequences: Sequence[str], step: PairingStep, directories: Sequence[Path]) -> list[Alignment]:
    """Return the paired rows of each distinct sequence of a complex, with equal numbers of rows, the sequence first.

    `directories` has one directory per sequence. The result of each sequence is stored in its directory and reused,
    unless the sequences of the complex have changed, or a result is missing or changed. Raise `SearchError` if the
    search fails, or if its result is not an alignment of these sequences with equal numbers of rows.
    """
    alignments = _earlier(sequences, step, directories)
    if alignments is not None:
        return alignments
    return _stored(list(step.tool.search(sequences)), sequences, step, directories)


def search_pairs_ahead(complexes: Sequence[tuple[Sequence[str], Sequence[Path]]], step: PairingStep) -> None:
    """Search for the paired rows of many complexes at once, if the tool can, and store them for `paired_alignments`.

    A complex is passed as its distinct sequences and their directories. Errors are ignored, because `paired_alignments`
    repeats the search for each complex, and raises them.
    """
    if not isinstance(step.tool, BatchPairing):
        return
    with suppress(InputError, SearchError, OSError):
        missing = [(sequences, places) for sequences, places in complexes if _earlier(sequences, step, places) is None]
        results = step.tool.search_many([sequences for sequences, _ in missing]) if missing else []
        for contents, (sequences, places) in zip(results, missing, strict=True):
            with suppress(InputError, SearchError, OSError):
                _stored(contents, sequences, step, places)


def _stored(
    contents: Sequence[bytes], sequences: Sequence[str], step: PairingStep, directories: Sequence[Path]
) -> list[Alignment]:
    """Store the results of a search in their directories, and return the alignments."""
    try:
        alignments = _parsed(contents, sequences, [directory / step.result_file for directory in directories])
    except TooLargeError:
        raise
    except InputError as error:
        raise SearchError(f"the result of a search cannot be read and is not stored: {error}") from error
    # Remove all old results first; otherwise a run that is killed here leaves rows of two searches.
    for directory in directories:
        (directory / step.result_file).unlink(missing_ok=True)
    identity, query = step.tool.identity(), _query(sequences)
    for directory, content, sequence in zip(directories, contents, sequences, strict=True):
        parse = partial(parse_a3m, query=sequence)
        ResultFiles(directory=directory).save(step.result_file, identity, query, content, parse)
    return alignments


def _earlier(sequences: Sequence[str], step: PairingStep, directories: Sequence[Path]) -> list[Alignment] | None:
    """Return the results of an earlier search, or None if one of them is missing, changed or unreadable."""
    contents: list[bytes] = []
    for directory in directories:
        content = ResultFiles(directory=directory).find(step.result_file, step.tool.identity(), _query(sequences))
        if content is None:
            return None
        contents.append(content)
    try:
        return _parsed(contents, sequences, [directory / step.result_file for directory in directories])
    except TooLargeError:
        raise
    except InputError:
        return None


def _query(sequences: Sequence[str]) -> bytes:
    return ":".join(sequences).encode()


def _parsed(contents: Sequence[bytes], sequences: Sequence[str], paths: Sequence[Path]) -> list[Alignment]:
    """Return the alignments; raise `InputError` for an invalid one, and for different numbers of rows."""
    alignments = [
        parse_a3m(content, sequence, path=path)
        for content, sequence, path in zip(contents, sequences, paths, strict=True)
    ]
    first = len(alignments[0].names)
    for path, alignment in zip(paths, alignments, strict=True):
        if len(alignment.names) != first:
            raise InputError.at(
                path,
                f"{len(alignment.names):,} paired rows, but {paths[0]} has {first:,}; expected equal numbers",
            )
    return alignments
