"""Look up structure files of PDB entries, successors of obsolete entries, and release dates.

`STRUCTURE_SUFFIXES` are the suffixes of structure files, in lower case.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from datetime import date
from itertools import chain
from pathlib import Path

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import os_errors_as_input_errors
from data_pipeline.parse.structures import read_structure
from data_pipeline.parse.text_files import read_text_bytes
from data_pipeline.structure import Structure
from data_pipeline.templates.result import RejectionReason, UnusableHitError

STRUCTURE_SUFFIXES = (".cif", ".cif.gz", ".mmcif", ".mmcif.gz", ".pdb", ".pdb.gz", ".ent", ".ent.gz")

_MAX_TABLE_BYTES = 2**26
_MAX_CACHED_STRUCTURES = 8
_MAX_CACHED_BYTES = 2**28


class StructureDirectory:
    """Directory of mmCIF or PDB files, accessed by entry id.

    Files may all be in one folder (`1abc.cif`), or in subfolders by the middle letters of the id, as in a mirror of the
    PDB (`ab/1abc.cif.gz`, `ab/pdb1abc.ent.gz`); names may be in lower or upper case. Files are looked up by name,
    because listing a mirror of 200,000 files is slow.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        obsolete: Mapping[str, str | None] | None = None,
        release_dates: Mapping[str, date] | None = None,
        is_filled_later: bool = False,
    ) -> None:
        """Use the files in `directory`; raise `InputError` if neither it nor a subfolder has a structure file.

        Pass `is_filled_later` to skip this check for a directory that a search fills.

        `obsolete` (see `read_obsolete`) and `release_dates` (see `read_release_dates`) have lower-case ids as keys.
        """
        self.directory = Path(directory)
        self.obsolete = {} if obsolete is None else obsolete
        self.release_dates = {} if release_dates is None else release_dates
        self._recent: OrderedDict[str, tuple[Structure, int]] = OrderedDict()
        if is_filled_later:
            return
        if not self.directory.is_dir():
            raise InputError.at(directory, "no such directory of structure files")
        if not _holds_structures(self.directory):
            suffixes = ", ".join(STRUCTURE_SUFFIXES)
            raise InputError.at(directory, f"no file in it or in its subdirectories ends in {suffixes}")

    def current_entry(self, entry: str) -> str:
        """Return the current id of an entry: its own id, or the id of its last successor in `obsolete`.

        As in AlphaFold, an entry with a known release date counts as current. Raise `UnusableHitError` if the entry was
        withdrawn without a successor.
        """
        followed = [entry]
        while followed[-1] not in self.release_dates and followed[-1] in self.obsolete:
            successor = self.obsolete[followed[-1]]
            if successor is None:
                raise UnusableHitError(
                    RejectionReason.OBSOLETE, f"{followed[-1]} was withdrawn from the PDB without a successor"
                )
            if successor in followed:
                break
            followed.append(successor)
        return followed[-1]

    def load(self, entry: str) -> Structure:
        """Read the structure of an entry; the structures used last are cached in memory (at most eight, 256 MiB).

        Raise `UnusableHitError` if there is no file of the entry, or if it cannot be read.
        """
        if entry in self._recent:
            self._recent.move_to_end(entry)
            return self._recent[entry][0]
        try:
            structure = read_structure(self.path(entry))
        except InputError as error:
            raise UnusableHitError(RejectionReason.UNREADABLE, str(error)) from error
        self._recent[entry] = structure, _size(structure)
        while (
            len(self._recent) > _MAX_CACHED_STRUCTURES
            or sum(size for _, size in self._recent.values()) > _MAX_CACHED_BYTES
        ):
            self._recent.popitem(last=False)
        return structure

    def path(self, entry: str) -> Path:
        """Return the path of an entry's structure file; raise `UnusableHitError` if there is none."""
        for path in self._candidates(entry):
            if os.path.isfile(path):  # unlike Path.is_file, never raises an error
                return path
        directory = printable(str(self.directory))
        raise UnusableHitError(
            RejectionReason.NO_FILE, f"{directory} has no mmCIF or PDB file of {entry}, flat or divided"
        )

    def _candidates(self, entry: str) -> Iterator[Path]:
        """Yield the possible paths of an entry's file, directly in the directory and in its folder of two letters."""
        for name in dict.fromkeys((entry.lower(), entry.upper())):
            files = [*(f"{name}{suffix}" for suffix in STRUCTURE_SUFFIXES), f"pdb{name}.ent.gz", f"pdb{name}.ent"]
            for folder in (self.directory, self.directory / name[-3:-1]):
                yield from (folder / file for file in files)


def is_structure_name(name: str) -> bool:
    """Return whether a file name has a suffix of structure files (`STRUCTURE_SUFFIXES`)."""
    return name.lower().endswith(STRUCTURE_SUFFIXES)


def read_obsolete(path: str | os.PathLike[str]) -> dict[str, str | None]:
    """Read the PDB's `obsolete.dat`, and return the first successor of each obsolete entry, or None.

    Entry ids are in lower case. Lines have the form `OBSLTE    31-JUL-94 116L     216L`, with any number of successors;
    other lines are ignored. Raise `InputError` for a line without an entry.
    """
    successors: dict[str, str | None] = {}
    for line_number, line in enumerate(_table_lines(path), start=1):
        words = line.split()
        if not words or words[0] != "OBSLTE":
            continue
        if len(words) < 3:
            raise InputError.at(
                path, "no entry in this line; expected 'OBSLTE date entry successors'", line=line_number
            )
        successors[words[2].lower()] = words[3].lower() if len(words) > 3 else None
    return successors


def read_release_dates(path: str | os.PathLike[str]) -> dict[str, date]:
    """Read a table of release dates by lower-case entry id, with lines like `1abc: 2001-02-03`.

    Raise `InputError` for other lines, except empty ones.
    """
    dates: dict[str, date] = {}
    for line_number, line in enumerate(_table_lines(path), start=1):
        if not line.strip():
            continue
        entry, _, text = line.partition(":")
        try:
            dates[entry.strip().lower()] = date.fromisoformat(text.strip()[:10])
        except ValueError as error:
            raise InputError.at(
                path, "the line must be 'entry: year-month-day', such as '1abc: 2001-02-03'", line=line_number
            ) from error
    return dates


def _table_lines(path: str | os.PathLike[str]) -> list[str]:
    """Return the lines of a table of entries."""
    return read_text_bytes(path, _MAX_TABLE_BYTES).decode("utf-8", "replace").split("\n")


def _holds_structures(directory: Path) -> bool:
    """Return whether a directory or one of its subfolders has a structure file, stopping at the first."""
    own_names = (item.name for item in _entries(directory))
    subfolder_names = (item.name for folder in _entries(directory) if folder.is_dir() for item in _entries(folder))
    with os_errors_as_input_errors(directory, "cannot be listed"):
        return any(map(is_structure_name, chain(own_names, subfolder_names)))


def _entries(directory: os.PathLike[str]) -> Iterator[os.DirEntry[str]]:
    with os.scandir(directory) as items:
        yield from items


def _size(structure: Structure) -> int:
    """Return the bytes of a structure's arrays."""
    arrays = ((chain.atom_positions, chain.atom_mask, chain.b_factors) for chain in structure.chains)
    return sum(array.nbytes for chain in arrays for array in chain)
