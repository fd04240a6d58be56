"""Find structure and alignment files in the directory layouts of the PDB, OpenProteinSet and OpenFold.

`MAX_DUPLICATES_BYTES` is the max size of a list of chains.
"""

import atexit
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from os import PathLike
from pathlib import Path

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import os_errors_as_input_errors
from data_pipeline.io.json_files import read_json
from data_pipeline.parse.text_files import read_text_bytes
from data_pipeline.templates.structure_directory import STRUCTURE_SUFFIXES, is_structure_name

MAX_DUPLICATES_BYTES = 2**28
# Limits of an index of OpenFold's alignment_db. OpenProteinSet's index has several hundred thousand chains.
_MAX_INDEX_BYTES, _MAX_INDEX_VALUES = 2**30, 10**8
_MAX_UNPACKED_CHAINS = 1024  # max chains with unpacked files at a time, more than a structure file has

_ALIGNMENT_SUFFIXES = (".a3m", ".sto", ".stockholm", ".aln", ".fasta", ".fas", ".fa", ".afa", ".a2m", ".an")
# Words in file names and the number of rows to read, including the target; the first match counts. AlphaFold merges
# alignments in this order, which determines the remaining duplicates and the first rows (AlphaFold 2, Suppl. Sec.
# 1.2.1-1.2.2, and its code).
_MAX_ROWS_OF_DATABASE: tuple[tuple[str, int | None], ...] = (
    ("uniref90", 10_000),
    ("bfd", None),
    ("uniref30", None),
    ("uniclust", None),
    ("mgnify", 501),
    ("", None),  # any other
)
_PAIRING_FILE_STARTS = ("uniprot_hits", "uniprot.")  # UniProt searches, used to pair the chains of a complex
_PAIRING_ROWS = 50_000  # max rows of these searches (AlphaFold 2.3)
_HMMSEARCH_HIT_FILES = ("hmm_output.sto", "pdb_hits.sto")


@dataclass(frozen=True, kw_only=True)
class AlignmentFile:
    """Alignment file of a chain, and the max number of rows to read (None: all)."""

    path: Path
    max_rows: int | None


@dataclass(frozen=True, kw_only=True)
class SearchResults:
    """Files of earlier searches for one chain: alignments in merge order, and a file of template hits.

    `pairing` is the alignment of a UniProt search, to pair the chains of a complex.
    """

    alignments: tuple[AlignmentFile, ...] = ()
    template_hits: Path | None = None
    pairing: AlignmentFile | None = None  # of a UniProt search, to pair the chains of a complex


def find_structures(directory: str | PathLike[str]) -> tuple[Path, ...]:
    """Return all structure files in a directory and its subdirectories, sorted by path; raise `InputError` if none."""
    matches: list[Path] = []
    if Path(directory).is_file():
        raise InputError.at(directory, "is a file; pass a directory of structures")

    def unreadable(error: OSError) -> None:
        raise InputError.at(error.filename or directory, f"cannot be listed: {error.strerror or error}") from error

    for folder, _, names in os.walk(directory, onerror=unreadable):
        matches += [Path(folder, name) for name in names if is_structure_name(name)]
    if not matches:
        suffixes = ", ".join(STRUCTURE_SUFFIXES)
        raise InputError.at(directory, f"there are no structure files; their names end in {suffixes}")
    return tuple(sorted(matches))


class AlignmentDirectory:
    """Directory with a subdirectory of search results for each chain.

    The layout is `<chain>/a3m/*.a3m` and `<chain>/hhr/*.hhr` (OpenProteinSet) or `<chain>/*` (OpenFold, AlphaFold).
    Stockholm and other alignment formats are also supported, plain or gzip, and so is a directory of OpenFold's
    `alignment_db` (`.db` files, each with a `.index`). `duplicates` maps a chain to other chains whose results may be
    used. Raise `InputError` if there are neither subdirectories nor indices.
    """

    def __init__(self, directory: str | PathLike[str], duplicates: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self._directory = Path(directory)
        self._duplicates = duplicates or {}
        with os_errors_as_input_errors(directory, "cannot be listed"), os.scandir(directory) as entries:
            self._names = {entry.name for entry in entries if entry.is_dir()}
        self._packed = dict(_packed_files(self._directory))
        if not self._names and not self._packed:
            raise InputError.at(directory, "there are no directories; each chain has one, such as 1abc_A")

    def find(self, chain: str) -> SearchResults | None:
        """Return the search results of a chain or of one of its duplicates, or None if none has a directory.

        The entry of the chain may be in upper case. Files in OpenFold's `alignment_db` are unpacked to a temporary
        directory.
        """
        entry, separator, name = chain.partition("_")
        spellings = (chain, f"{entry.upper()}{separator}{name}", *self._duplicates.get(chain, ()))
        matches = next((each for each in spellings if each in self._names or each in self._packed), None)
        if matches is None:
            return None
        return search_results(self._directory / matches if matches in self._names else self._unpacked(matches))

    def _unpacked(self, chain: str) -> Path:
        """Unpack the files of a chain from the databases to a temporary directory, which is removed later."""
        folder = Path(tempfile.mkdtemp(dir=_temporary_directory()))
        for database, name, start, size in self._packed[chain]:
            path = self._directory / database
            with os_errors_as_input_errors(path, "cannot be read"), path.open("rb") as file:
                file.seek(start)
                content = file.read(size)
            if len(content) < size:
                raise InputError.at(path, f"ends before {name} of '{printable(chain)}' does; get it again")
            (folder / name).write_bytes(content)
        _unpacked_folders.append(folder)
        if len(_unpacked_folders) > _MAX_UNPACKED_CHAINS:
            shutil.rmtree(_unpacked_folders.popleft(), ignore_errors=True)
        return folder


_unpacked_folders: deque[Path] = deque()  # of chains unpacked by this process


@cache
def _temporary_directory() -> Path:
    directory = tempfile.mkdtemp(prefix="helixfold-alignments-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def _packed_files(directory: Path) -> Iterator[tuple[str, list[tuple[str, str, int, int]]]]:
    """Yield the chains of OpenFold's `alignment_db`, with the database, name, first byte and size of each file.

    The index of one database lists the files of a chain; the index of several (`super.index`) also has their database.
    """
    for path in sorted(directory.glob("*.index")):
        advice = "expected an index of OpenFold's alignment_db"
        content = read_json(path, advice, max_bytes=_MAX_INDEX_BYTES, max_values=_MAX_INDEX_VALUES)
        try:
            for chain, files_of_chain in content.items():
                entry = (
                    files_of_chain
                    if isinstance(files_of_chain, dict)
                    else {"db": f"{path.stem}.db", "files": files_of_chain}
                )
                database, files = entry["db"], entry["files"]
                matches = [(database, name, start, size) for name, start, size in files]
                for name in (database, *(name for _, name, *_ in matches)):
                    if Path(name).name != name:
                        raise ValueError("not the name of a file")
                if any(type(number) is not int or number < 0 for _, _, *numbers in matches for number in numbers):
                    raise ValueError("not a place in a file")
                yield chain, matches
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError.at(path, f"not an index of files by chain; {advice}") from error


def search_results(folder: Path) -> SearchResults:
    """Return the files of search results in one chain's directory and its direct subdirectories.

    The database in a file name determines the merge order and the max number of rows. Of several files of template
    hits, one that starts with "pdb" is preferred.
    """
    with os_errors_as_input_errors(folder, "cannot be listed"):
        files = sorted(path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_file())
    alignments: list[tuple[int, str, AlignmentFile]] = []
    hits: list[tuple[bool, str, Path]] = []
    pairing: list[AlignmentFile] = []
    for path in files:
        name = path.name.lower().removesuffix(".gz")
        if name.endswith((".hhr", ".m8")) or name in _HMMSEARCH_HIT_FILES:
            hits.append((not name.startswith("pdb"), path.name, path))
        elif name.endswith(_ALIGNMENT_SUFFIXES) and name.startswith(_PAIRING_FILE_STARTS):
            pairing.append(AlignmentFile(path=path, max_rows=_PAIRING_ROWS))
        elif name.endswith(_ALIGNMENT_SUFFIXES):
            rank, max_rows = next(
                (rank, rows) for rank, (word, rows) in enumerate(_MAX_ROWS_OF_DATABASE) if word in name
            )
            alignments.append((rank, path.name, AlignmentFile(path=path, max_rows=max_rows)))
    alignments.sort(key=lambda matches: matches[:2])
    return SearchResults(
        alignments=tuple(file for *_, file in alignments),
        template_hits=min(hits)[2] if hits else None,
        pairing=pairing[0] if pairing else None,
    )


def read_duplicates(path: str | PathLike[str]) -> dict[str, tuple[str, ...]]:
    """Return the chains with the same sequence as each chain, itself included, by chain.

    The file is OpenProteinSet's `duplicate_pdb_chains.txt`. Each line lists chains with the same sequence, separated by
    blanks. Raise `InputError` if a chain is in two lines.
    """
    text = read_text_bytes(path, MAX_DUPLICATES_BYTES).decode("utf-8", "replace")
    chains_of: dict[str, tuple[str, ...]] = {}
    for line_number, line in enumerate(text.split("\n"), start=1):
        chains = tuple(dict.fromkeys(line.split()))
        for chain in chains:
            if chain in chains_of:
                raise InputError.at(path, f"'{printable(chain)}' is also in an earlier line", line=line_number)
            chains_of[chain] = chains
    return chains_of


def read_chain_names(path: str | PathLike[str]) -> frozenset[str]:
    """Return the chain names in a file with one name per line, plain or gzip; raise `InputError` if there are none."""
    text = read_text_bytes(path, MAX_DUPLICATES_BYTES).decode("utf-8", "replace")
    names = frozenset(name for line in text.split("\n") if (name := line.strip()))
    if not names:
        raise InputError.at(path, "the file has no chain names; write one name per line")
    return names
