"""Where structures and alignments lie: directories as the PDB, OpenProteinSet and OpenFold lay them out."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from data_pipeline.errors import InputError, printable
from data_pipeline.files import os_errors_as_input_errors
from data_pipeline.parse.text_files import read_text_bytes

MAX_DUPLICATES_BYTES = 2**28
STRUCTURE_SUFFIXES = (".cif", ".mmcif", ".pdb", ".ent")

_ALIGNMENT_SUFFIXES = (".a3m", ".sto", ".stockholm", ".aln", ".fasta", ".fas", ".fa", ".afa", ".a2m", ".an")
# AlphaFold merges alignments in this order, which decides what of equal sequences stays and what comes first; it takes
# so many rows of each, the target counted (AlphaFold 2, Suppl. Sec. 1.2.1-1.2.2, and its program). First match counts.
_DATABASES: tuple[tuple[str, int | None], ...] = (
    ("uniref90", 10_000),
    ("bfd", None),
    ("uniref30", None),
    ("uniclust", None),
    ("mgnify", 501),
)
_FOR_COMPLEXES = ("uniprot_hits", "uniprot.")  # all of UniProt, to pair the chains of a complex
_HMMSEARCH_HITS = ("hmm_output.sto", "pdb_hits.sto")


@dataclass(frozen=True, kw_only=True)
class AlignmentFile:
    """One alignment of a chain; `max_rows` of it are taken, None: all."""

    path: Path
    max_rows: int | None


@dataclass(frozen=True, kw_only=True)
class SearchResults:
    """What earlier searches found for one chain: alignments in the order of merging, and files of template hits."""

    alignments: tuple[AlignmentFile, ...] = ()
    template_hits: Path | None = None


def find_structures(directory: str | PathLike[str]) -> tuple[Path, ...]:
    """All structure files in a directory, flat or divided, plain or gzip, sorted by path."""
    found: list[Path] = []

    def unreadable(error: OSError) -> None:
        raise InputError.at(error.filename or directory, f"cannot be listed: {error.strerror or error}") from error

    for folder, _, names in os.walk(directory, onerror=unreadable):
        found += [Path(folder, name) for name in names if _plain(name).endswith(STRUCTURE_SUFFIXES)]
    if not found:
        suffixes = ", ".join(STRUCTURE_SUFFIXES)
        raise InputError.at(directory, f"there are no structure files; their names end in {suffixes}, or these and .gz")
    return tuple(sorted(found))


class AlignmentDirectory:
    """A directory with one directory of search results for each chain.

    `<chain>/a3m/*.a3m` and `<chain>/hhr/*.hhr` (OpenProteinSet), or `<chain>/*` (OpenFold, AlphaFold); Stockholm and
    other formats are taken too, and any file may be gzip.
    """

    def __init__(self, directory: str | PathLike[str], duplicates: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self._directory = Path(directory)
        self._duplicates = duplicates or {}
        with os_errors_as_input_errors(directory, "cannot be listed"), os.scandir(directory) as entries:
            self._names = {entry.name for entry in entries if entry.is_dir()}
        if not self._names:
            raise InputError.at(directory, "there are no directories; each chain has one, such as 1abc_A")

    def find(self, chain: str) -> SearchResults | None:
        """What was found for a chain, or for one listed as its duplicate; None if there is no directory of either."""
        entry, separator, name = chain.partition("_")
        spellings = (chain, f"{entry.upper()}{separator}{name}", *self._duplicates.get(chain, ()))
        folder = next((spelling for spelling in spellings if spelling in self._names), None)
        return None if folder is None else search_results(self._directory / folder)


def search_results(folder: Path) -> SearchResults:
    """The search results in one chain's directory, and in those within it."""
    with os_errors_as_input_errors(folder, "cannot be listed"):
        files = sorted(path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_file())
    alignments: list[tuple[int, str, AlignmentFile]] = []
    hits: list[tuple[int, str, Path]] = []
    for path in files:
        name = _plain(path.name)
        if name.endswith(".hhr") or name in _HMMSEARCH_HITS:
            hits.append((0 if name.startswith("pdb") else 1, path.name, path))
        elif name.endswith(_ALIGNMENT_SUFFIXES) and not name.startswith(_FOR_COMPLEXES):
            rank = next((rank for rank, (word, _) in enumerate(_DATABASES) if word in name), len(_DATABASES))
            max_rows = _DATABASES[rank][1] if rank < len(_DATABASES) else None
            alignments.append((rank, path.name, AlignmentFile(path=path, max_rows=max_rows)))
    alignments.sort(key=lambda found: found[:2])
    return SearchResults(
        alignments=tuple(file for *_, file in alignments), template_hits=min(hits)[2] if hits else None
    )


def read_duplicates(path: str | PathLike[str]) -> dict[str, tuple[str, ...]]:
    """The other chains of the same sequence, by chain, from OpenProteinSet's `duplicate_pdb_chains.txt`.

    Each line has chains that share one sequence, and so one alignment, parted by blanks.
    """
    text = read_text_bytes(path, MAX_DUPLICATES_BYTES).decode("utf-8", "replace")
    others: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        chains = tuple(dict.fromkeys(line.split()))
        for chain in chains:
            if chain in others:
                raise InputError.at(path, f"'{printable(chain)}' is also in an earlier line", line=number)
            others[chain] = chains
    return others


def _plain(name: str) -> str:
    """A file's name in lower case and without '.gz'."""
    return name.lower().removesuffix(".gz")
