"""Checks of a parameter file without running the network (names, shapes, values, checksum), and types of results."""

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
    """Result of one check of a parameter file; `holds` is None if the check was not possible.

    `details` is text with the measured values, or the reason why the check failed or was not possible.
    """

    name: str
    holds: bool | None
    details: str

    @property
    def verdict(self) -> str:
        """Return the verdict in one or two words: holds, FAILS or not checked."""
        return {True: "holds", False: "FAILS", None: "not checked"}[self.holds]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Table of formatted numbers; `note` explains them."""

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
    """Results of verifying a parameter file: all checks and tables."""

    checks: list[Check] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Return whether no check has failed."""
        return not self.count(holds=False)

    def count(self, *, holds: bool | None) -> int:
        """Return the number of checks that hold (True), failed (False), or were not possible (None)."""
        return sum(check.holds is holds for check in self.checks)


# Parameters of trained networks are far below this limit. A flipped bit in a float32's exponent gives larger values.
MAX_VALUE = 1e6
LISTED = 5  # arrays with wrong values that a message names; others are counted


def check_file(path: Path, preset: Preset, *, published: bool) -> list[Check]:
    """Check names, shapes and values of a file, and its checksum if `published` (it should be DeepMind's file).

    If names or shapes are wrong, only this check is returned. Raise `InputError` if the file does not exist or its
    format is unknown.
    """
    form = file_format(path)
    try:
        _, shapes = read_shapes(path)
        require_shapes(path, shapes, preset.model, form)
    except InputError as error:
        return [Check(name="names and shapes", holds=False, details=str(error))]
    checks = [Check(name="names and shapes", holds=True, details=f"of {preset.name}, {len(shapes):,} arrays")]
    if form == "npz":
        with open_npz(path) as arrays:
            problems = [problem for name in arrays for problem in _problems_in(arrays, name)]
    else:
        problems = _problems_in_state(path, preset)
    text = "; ".join(problems[:LISTED]) + (f"; and {len(problems) - LISTED} more" if len(problems) > LISTED else "")
    checks.append(Check(name="values", holds=not problems, details=text or "all intact, finite and of usual size"))
    checks.append(_checksum(path, preset, published=published))
    return checks


def problems_of(name: str, values: np.ndarray) -> list[str]:
    """Describe the values of an array that are not finite or too large for a trained network.

    `name` is the array's name. Return a list with one description, or an empty list if all values are usual.
    """
    is_unusual = ~(np.abs(values) < MAX_VALUE)
    if not is_unusual.any():
        return []
    index = tuple(map(int, np.argwhere(is_unusual)[0]))
    return [f"{printable(name)} has {values[index]:.3g} at {list(index)} ({is_unusual.sum():,} such values)"]


def _problems_in(arrays: NpzArrays, name: str) -> list[str]:
    """Return the problems of an array in an .npz file."""
    try:
        return problems_of(name, arrays.values_of(name))
    except InputError as error:
        return [f"array {printable(name)} is damaged ({error})"]


def _problems_in_state(path: Path, preset: Preset) -> list[str]:
    """Return the problems of all parameters in a file of another format than .npz."""
    try:
        state: dict[str, Tensor] = load_weights(path, preset.model)
    except InputError as error:
        return [str(error)]
    return [
        problem for name, tensor in state.items() for problem in problems_of(name, tensor.to(torch.float32).numpy())
    ]


def _checksum(path: Path, preset: Preset, *, published: bool) -> Check:
    """Compare the SHA-256 of a file with the checksum of DeepMind's file for the model."""
    digest = sha256_of(path)
    expected = PUBLISHED_SHA256.get(f"params_{preset.name}.npz")
    if expected == digest:
        return Check(name="checksum", holds=True, details=f"SHA-256 {digest}, equal to copies of DeepMind's file")
    if not published:
        return Check(name="checksum", holds=None, details=f"SHA-256 {digest}; the file is not DeepMind's (--own)")
    if expected is None:
        return Check(
            name="checksum",
            holds=None,
            details=f"SHA-256 {digest}; no checksum of {preset.name} is known",
        )
    if file_format(path) != "npz":
        return Check(
            name="checksum", holds=None, details=f"SHA-256 {digest}; a checksum is only known for DeepMind's .npz"
        )
    return Check(
        name="checksum",
        holds=False,
        details=f"SHA-256 {digest}, but copies of DeepMind's file have {expected}: the file was modified",
    )
