"""Read tables of sequences with a value to learn, such as a class, an affinity or a change of stability."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.csv_table import read_rows
from helixfold.report.page import counted

TaskKind = Literal["binder", "classification", "regression"]
# Values of classes by their words in a table.
_CLASSES = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0, "no": 0.0, "yes": 1.0}
Split = Literal["train", "test", "predict"]
# Splits by their words in a table.
_SPLITS: dict[str, Split] = {"": "train", "train": "train", "test": "test", "held_out": "test", "predict": "predict"}


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """A row of a table: a target, its value, and the split it belongs to.

    `sequence` has all chains, with colons between them. `value` is 0 or 1 for a class, and None if it is to be
    predicted. "train" rows are trained on, "test" rows are held out for scores, and "predict" rows have no value.
    """

    name: str
    sequence: str
    value: float | None
    split: Split


def read_table(path: Path, kind: TaskKind) -> list[TaskRow]:
    """Read a table (.csv, .tsv) with the columns name, sequence, value and optionally split (train, test or predict).

    Rows of the split test are held out; without the column, every fifth row is. Rows to predict need no value. Raise
    `InputError` for an unusable row, or if there are too few different values to train on or to test.
    """
    delimiter = "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ","
    rows: list[TaskRow] = []
    line_of_name: dict[str, int] = {}
    for index, (line, cells) in enumerate(read_rows(path, ("name", "sequence", "value"), delimiter)):
        name = cells["name"].strip()
        if not name or name in line_of_name:
            problem = "has no name" if not name else f"'{printable(name)}' is also in line {line_of_name[name]}"
            raise InputError.at(path, f"{problem}; give each row its own name", line=line)
        line_of_name[name] = line
        split = cells.get("split", "test" if index % 5 == 4 else "train").strip().lower()
        if split not in _SPLITS:
            raise InputError.at(path, f"split must be train, test or predict, got '{printable(split)}'", line=line)
        sequence = "".join(cells["sequence"].split()).upper()
        if kind == "binder" and ":" not in sequence:
            problem = "a binder needs two or more chains; write their sequences with a colon between them"
            raise InputError.at(path, problem, line=line)
        row_split = _SPLITS[split]
        value = None if row_split == "predict" else _value(path, line, cells["value"].strip(), kind)
        rows.append(TaskRow(name=name, sequence=sequence, value=value, split=row_split))
    _require_learnable(path, rows)
    return rows


def _value(path: Path, line: int, text: str, kind: TaskKind) -> float:
    """Return the value in a cell: 0 or 1 for a class, or a finite number."""
    if kind != "regression":
        if text.lower() not in _CLASSES:
            raise InputError.at(path, f"value must be one of {', '.join(_CLASSES)}, got '{printable(text)}'", line=line)
        return _CLASSES[text.lower()]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError.at(path, f"value must be a number, got '{printable(text)}'", line=line)
    return value


def _require_learnable(path: Path, rows: Sequence[TaskRow]) -> None:
    """Raise `InputError` unless training and held-out rows each have two or more different values."""
    for split, what in (("train", "to learn from"), ("test", "held out")):
        values = [row.value for row in rows if row.split == split]
        if len(values) < 2:
            raise InputError.at(path, f"has {counted(len(values), 'row')} {what}; at least 2 are needed")
        if len(set(values)) == 1:
            raise InputError.at(path, f"all rows {what} have the value {values[0]:g}, so there is nothing to learn")
