"""Index of a training set: the data of each chain for sampling and filtering, without its arrays.

It is stored in `index.tsv`, a tab-separated table; empty cells mean unknown. `MAX_INDEX_BYTES` is its max size.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from os import PathLike
from pathlib import Path
from typing import Any

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import atomic_write
from data_pipeline.parse.fasta import MAX_NAME_BYTES
from data_pipeline.parse.text_files import read_text

MAX_INDEX_BYTES = 2**30

_COLUMNS = ("name", "cluster", "length", "msa_rows", "release_date", "resolution", "is_distillation", "key")
_KEY_PATTERN = re.compile(r"[0-9a-f]{32}")
_COUNT_PATTERN = re.compile(r"0*[1-9][0-9]*")
_YES_NO = {"yes": True, "no": False}


@dataclass(frozen=True, kw_only=True)
class IndexEntry:
    """Entry of one chain in the index of a training set.

    `name` is such as 1abc_A, and `cluster` the name of its cluster; all clusters are sampled with equal weight.
    `length` is its number of residues, `msa_rows` the rows of its alignment with its own sequence, and `resolution` is
    in Å; None is unknown. `is_distillation` is True for a predicted structure. `key` is the key of its record: the hash
    of all inputs of its features and labels.
    """

    name: str  # "1abc_A"
    cluster: str  # all clusters are sampled with equal weight
    length: int  # number of residues
    msa_rows: int  # rows of its alignment, including its own sequence
    release_date: date | None
    resolution: float | None  # Å
    is_distillation: bool
    key: str  # hash of all inputs of its features and labels


def chain_name_problem(name: str) -> str | None:
    """Return the reason why `name` is not valid for a chain or cluster in a table, or None if it is valid.

    The reason continues a sentence, such as "is empty, or begins or ends with a blank".
    """
    if not name or name != name.strip():
        return "is empty, or begins or ends with a blank"
    if not name.isprintable() or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        return f"has control characters or more than {MAX_NAME_BYTES} bytes"
    # Spreadsheets interpret these as formulas or quoted text, and save another name.
    return "begins with '=', '+', '-', '@' or a quotation mark" if name.startswith(("=", "+", "-", "@", '"')) else None


def write_index(path: str | PathLike[str], entries: Iterable[IndexEntry]) -> None:
    """Write the entries as a tab-separated table to `path`; equal entries give equal bytes."""
    with atomic_write(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for entry in entries:
            writer.writerow(
                (
                    entry.name,
                    entry.cluster,
                    entry.length,
                    entry.msa_rows,
                    "" if entry.release_date is None else entry.release_date.isoformat(),
                    "" if entry.resolution is None else repr(entry.resolution),
                    "yes" if entry.is_distillation else "no",
                    entry.key,
                )
            )


def read_index(path: str | PathLike[str]) -> tuple[IndexEntry, ...]:
    """Return the entries of a table written by `write_index`, in order; raise `InputError` with the invalid line."""
    lines = io.StringIO(read_text(path, MAX_INDEX_BYTES, "build the feature store again"), newline="\n")
    columns = next(lines, "").rstrip("\n").split("\t")
    if columns == [name for name in _COLUMNS if name != "msa_rows"]:
        problem = "written by an earlier version; repeat the command that built the store, which reuses all records"
        raise InputError.at(path, problem, line=1)
    if columns != [*_COLUMNS]:
        raise InputError.at(path, f"the first line must name the columns {', '.join(_COLUMNS)}", line=1)
    entries: list[IndexEntry] = []
    lines_of: dict[str, int] = {}
    for line_number, line in enumerate(lines, start=2):
        cells = line.rstrip("\n").split("\t")
        if len(cells) != len(_COLUMNS):
            raise InputError.at(
                path, f"{len(cells)} columns, expected {len(_COLUMNS)}, separated by tabs", line=line_number
            )
        values: dict[str, Any] = {}
        for column, cell in zip(_COLUMNS, cells, strict=True):
            is_right, read, allowed = _CELL_RULES[column]
            try:
                if not is_right(cell):
                    raise ValueError(cell)
                values[column] = read(cell)
            except ValueError as error:
                raise InputError.at(
                    path, f"{column} must be {allowed}, got '{printable(cell)}'", line=line_number
                ) from error
        entry = IndexEntry(**values)
        if entry.name in lines_of:
            raise InputError.at(path, f"'{entry.name}' is also in line {lines_of[entry.name]}", line=line_number)
        lines_of[entry.name] = line_number
        entries.append(entry)
    return tuple(entries)


def _is_name(cell: str) -> bool:
    return chain_name_problem(cell) is None


def _optional(read: Callable[[str], object]) -> Callable[[str], object]:
    """Return a function that reads a cell with `read`, and returns None for an empty cell."""
    return lambda cell: read(cell) if cell else None


# For each column: the check of a cell, its conversion, and the allowed values for error messages.
_CELL_RULES: dict[str, tuple[Callable[[str], object], Callable[[str], object], str]] = {
    "name": (_is_name, str, "a name without blanks at its ends"),
    "cluster": (_is_name, str, "a name without blanks at its ends"),
    "length": (_COUNT_PATTERN.fullmatch, int, "a whole number from 1"),
    "msa_rows": (_COUNT_PATTERN.fullmatch, int, "a whole number from 1"),
    "release_date": (lambda _: True, _optional(date.fromisoformat), "a date such as 2018-04-30, or empty"),
    "resolution": (
        lambda cell: not cell or 0 < float(cell) < math.inf,
        _optional(float),
        "a number above 0 (Angstrom), or empty",
    ),
    "is_distillation": (_YES_NO.__contains__, _YES_NO.__getitem__, "yes or no"),
    "key": (_KEY_PATTERN.fullmatch, str, "32 hexadecimal digits"),
}
