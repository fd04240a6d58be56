"""Read PDB files; gemmi parses the atoms, this module parses the header and checks what gemmi does not."""

import re
from datetime import date
from os import PathLike

import gemmi
import numpy as np
from jaxtyping import Bool, UInt8

from data_pipeline.errors import InputError, printable
from data_pipeline.parse.atom_table import MAX_RESIDUES
from data_pipeline.parse.gemmi_chains import bonds_of_pdb, chains_from_gemmi, entry_name, with_rings
from data_pipeline.structure import Structure

MAX_PDB_BYTES = 2**26  # 800,000 atoms

_LONG_LINE = re.compile(rb"[^\n]{10000}")
_MAX_SEQRES = MAX_RESIDUES // 8  # records of up to 13 residues
_ATOM_END = 54  # last column of the coordinates
_MAX_COORDINATE = 1e8  # Angstrom; the format has eight columns
_TO_ASCII = b"?" + bytes(range(1, 128)) + b"?" * 128
_REVISION = re.compile(rb"^REVDAT .{6}(\d\d)-([A-Z]{3})-(\d\d)", re.MULTILINE | re.IGNORECASE)
_METHOD = re.compile(rb"^EXPDTA  ..(.*)$", re.MULTILINE)
_RESOLUTION = re.compile(rb"^REMARK   2 RESOLUTION\. +(\d+\.\d*) ", re.MULTILINE)
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_FIRST_YEAR = 70  # two-digit years from 70 are in the 20th century; the archive began in 1971
_NUMBER = re.compile(rb" *-?\d+ *|[A-Za-z][0-9A-Za-z]{3}")  # hybrid-36 continues with letters


def parse_pdb(content: bytes, *, path: str | PathLike[str] = "pdb") -> Structure:
    """Return the first model in the text of a PDB file; raise `InputError`, which names `path`, for other content.

    A chain's sequence is its SEQRES if the file has it, else its observed residues. A chain without a name is called
    "_". The release date is that of the earliest REVDAT record.
    """
    if (long := _LONG_LINE.search(content)) is not None:
        line = content.count(b"\n", 0, long.start()) + 1
        raise InputError.at(path, "the line is longer than any of a PDB file; is it one?", line=line)
    content = content.translate(_TO_ASCII)
    if content.count(b"\nSEQRES") > _MAX_SEQRES:
        raise InputError.at(path, f"it has more than {_MAX_SEQRES:,} SEQRES records, the most that is read")
    header = content[: _check_atoms(content, path)]
    try:
        model = gemmi.read_pdb_string(content, split_chain_on_ter=True)
    except (ValueError, RuntimeError) as error:
        message = " ".join(str(error).split())
        raise InputError.at(path, f"not readable as PDB ({printable(message)}); was it edited?") from error
    chains, skipped = chains_from_gemmi(model, path)
    return Structure(
        name=entry_name(dict(model.info).get("_entry.id", ""), path),
        release_date=_release_date(header),
        resolution=_resolution(header),
        method=_method(header),
        chains=with_rings(chains, bonds_of_pdb(model)),
        skipped=skipped,
    )


def _check_atoms(content: bytes, path: str | PathLike[str]) -> int:
    """Return the position of the first atom; raise `InputError` for invalid numbers, which gemmi would read as 0."""
    letters = np.frombuffer(content + b"\n" * _ATOM_END, np.uint8)
    is_atom = np.concatenate([[True], letters[: -_ATOM_END - 1] == ord("\n")]) if content else np.zeros(0, bool)
    is_atom &= _begins(letters, b"ATOM  ") | _begins(letters, b"HETATM")
    starts = np.flatnonzero(is_atom)
    if not len(starts):
        raise InputError.at(path, "there are no atoms (ATOM records); is this a PDB file?")
    good = len(starts) * _ATOM_END <= len(content)
    if good:
        fields = np.stack([letters[starts + column] for column in range(22, _ATOM_END)], axis=1)
        try:
            np.ascontiguousarray(fields[:, :4]).view("S4").astype(np.int64)
            coordinates = np.ascontiguousarray(fields[:, 8:]).view("S8").astype(np.float64)
            good = bool((np.abs(coordinates) < _MAX_COORDINATE).all()) and not (fields == ord("\n")).any()
        except ValueError:
            good = False
    for start in starts.tolist() if not good else ():
        record = content[start : start + 80].split(b"\n")[0]
        if (problem := _problem(record)) is not None:
            raise InputError.at(path, f"{problem}; was the file edited?", line=content.count(b"\n", 0, start) + 1)
    return int(starts[0])


def _begins(letters: UInt8[np.ndarray, "n"], record: bytes) -> Bool[np.ndarray, "m"]:
    """Return for each position of the content whether `record` begins there."""
    size = len(letters) - _ATOM_END
    begins = letters[:size] == record[0]
    for offset, letter in enumerate(record[1:], start=1):
        begins &= letters[offset : offset + size] == letter
    return begins


def _problem(record: bytes) -> str | None:
    """Return why a line is not a valid atom record, or None if it is."""
    try:
        largest = max(abs(float(record[start : start + 8])) for start in (30, 38, 46))
    except ValueError:
        largest = float("nan")
    if len(record) < _ATOM_END or not largest < _MAX_COORDINATE:
        return f"columns 31 to 54 are no coordinates: '{printable(record[30:54].decode())}'"
    if not _NUMBER.fullmatch(record, 22, 26):
        return f"columns 23 to 26 are no residue number: '{printable(record[22:26].decode())}'"
    return None


def _release_date(header: bytes) -> date | None:
    dates = []
    for day, month, year in _REVISION.findall(header):
        name = month.decode().upper()
        if name in _MONTHS:
            century = 1900 if int(year) >= _FIRST_YEAR else 2000
            try:
                dates.append(date(century + int(year), _MONTHS.index(name) + 1, int(day)))
            except ValueError:
                continue
    return min(dates, default=None)


def _resolution(header: bytes) -> float | None:
    match = _RESOLUTION.search(header)
    return (float(match[1]) or None) if match else None


def _method(header: bytes) -> str:
    text = b" ".join(_METHOD.findall(header)).decode()
    return ",".join(" ".join(method.lower().split()) for method in text.split(";") if method.strip())
