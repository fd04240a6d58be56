"""Checks of a parameter file by itself (names and shapes, values, checksum), and the results of all checks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import sha256_of
from helixfold.model.presets import Preset
from helixfold.weights.download import PUBLISHED_SHA256
from helixfold.weights.load import file_format, load_weights, read_shapes, require_shapes
from helixfold.weights.npz import NpzArrays, open_npz


@dataclass(frozen=True, kw_only=True)
class Check:
    """A statement about a parameter file: `holds` is None if it could not be checked, and `found` says why."""

    name: str
    holds: bool | None
    found: str

    @property
    def word(self) -> str:
        """Return the verdict in one or two words."""
        return {True: "holds", False: "FAILS", None: "not checked"}[self.holds]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Table of numbers, already written as words; `note` says how to read them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def lines(self) -> list[str]:
        """Return the table as lines of text."""
        cells = [list(self.columns), *map(list, self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        text = [
            "  ".join(
                [row[0].ljust(widths[0]), *(word.rjust(size) for word, size in zip(row[1:], widths[1:], strict=True))]
            )
            for row in cells
        ]
        return [self.title, *(f"  {line}" for line in text), *([f"  {self.note}"] if self.note else [])]


@dataclass
class Findings:
    """All checks and tables about one parameter file."""

    checks: list[Check] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Return whether no check failed."""
        return not self.count(holds=False)

    def count(self, *, holds: bool | None) -> int:
        """Return the number of checks with a verdict: that hold, that failed (False) or could not be made (None)."""
        return sum(check.holds is holds for check in self.checks)


# No parameter of a trained network is nearly as large; a changed bit of a float32's exponent gives such numbers.
LARGEST = 1e6
LISTED = 5


def check_file(path: Path, preset: Preset, *, published: bool) -> list[Check]:
    """Check names, shapes and values of a file, and its checksum if it is said to be DeepMind's (`published`).

    Raise `InputError` if there is no such file or its format is unknown.
    """
    form = file_format(path)
    try:
        _, shapes = read_shapes(path)
        require_shapes(path, shapes, preset.model, form)
    except InputError as error:
        return [Check(name="names and shapes", holds=False, found=str(error))]
    checks = [Check(name="names and shapes", holds=True, found=f"those of {preset.name}, {len(shapes):,} arrays")]
    if form == "npz":
        with open_npz(path) as arrays:
            problems = [problem for name in arrays for problem in _problems_in(arrays, name)]
    else:
        problems = _problems_in_state(path, preset)
    found = "; ".join(problems[:LISTED]) + (f"; and {len(problems) - LISTED} more" if len(problems) > LISTED else "")
    checks.append(Check(name="values", holds=not problems, found=found or "all intact, finite and of usual size"))
    checks.append(_checksum(path, preset, published=published))
    return checks


def problems_of(name: str, values: np.ndarray) -> list[str]:
    """Describe values of an array that no trained network has: those that are not finite, and very large ones."""
    unusual = ~(np.abs(values) < LARGEST)
    if not unusual.any():
        return []
    place = tuple(map(int, np.argwhere(unusual)[0]))
    return [f"{printable(name)} has {values[place]:.3g} at {list(place)} ({unusual.sum():,} such values)"]


def _problems_in(arrays: NpzArrays, name: str) -> list[str]:
    try:
        return problems_of(name, arrays.values_of(name))
    except InputError as error:
        return [f"array {printable(name)} is damaged ({error})"]


def _problems_in_state(path: Path, preset: Preset) -> list[str]:
    try:
        state: dict[str, Tensor] = load_weights(path, preset.model)
    except InputError as error:
        return [str(error)]
    return [
        problem for name, tensor in state.items() for problem in problems_of(name, tensor.to(torch.float32).numpy())
    ]


def _checksum(path: Path, preset: Preset, *, published: bool) -> Check:
    digest = sha256_of(path)
    known = PUBLISHED_SHA256.get(f"params_{preset.name}.npz")
    if known == digest:
        return Check(name="checksum", holds=True, found=f"SHA-256 {digest}, that of copies of DeepMind's file")
    if not published:
        return Check(name="checksum", holds=None, found=f"SHA-256 {digest}; the file is said not to be DeepMind's")
    if known is None:
        return Check(
            name="checksum",
            holds=None,
            found=f"SHA-256 {digest}; DeepMind publishes none, and none of {preset.name} is known from copies",
        )
    if file_format(path) != "npz":
        return Check(name="checksum", holds=None, found=f"SHA-256 {digest}; only DeepMind's own .npz has a known one")
    return Check(
        name="checksum",
        holds=False,
        found=f"SHA-256 {digest}, but copies of DeepMind's file have {known}: it was changed or written again",
    )
