"""How parameters move between our state dict and another program's file: exactly, name by name, in both directions."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from data_pipeline.errors import InputError, printable

Shapes = Mapping[str, tuple[int, ...]]

# An error names so many arrays of each kind and counts the rest.
LISTED = 5


@dataclass(frozen=True)
class Axes:
    """The order of one array's axes there and here, in einops' words; `sizes` are those that neither side shows."""

    theirs: str
    ours: str
    sizes: tuple[tuple[str, int], ...] = ()

    def to_ours(self, array: Tensor) -> Tensor:
        return rearrange(array, f"{self.theirs} -> {self.ours}")

    def to_theirs(self, tensor: Tensor) -> Tensor:
        return rearrange(tensor, f"{self.ours} -> {self.theirs}", **dict(self.sizes))


KEEP = Axes("...", "...")
TRANSPOSE = Axes("i o", "o i")


def heads_out(heads: int) -> Axes:
    """A map into heads: [c, h, d] there, [h d, c] here."""
    return Axes("c h d", "(h d) c", (("h", heads),))


def heads_in(heads: int) -> Axes:
    """A map from heads (or from an outer product's two factors): [h, d, c] there, [c, h d] here."""
    return Axes("h d c", "c (h d)", (("h", heads),))


def heads_bias(heads: int) -> Axes:
    """The bias of a map into heads: [h, d] there, [h d] here."""
    return Axes("h d", "(h d)", (("h", heads),))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a two-way table: the same numbers under our names and under theirs.

    `theirs` are one array, or several that one tensor of ours holds below each other (query, key and value).
    `ours` is one tensor, or, where `stacked`, one per block, their array having a leading axis for the block.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    axes: Axes
    stacked: bool

    def to_ours(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        """New tensors, one per name in `ours`, from one array per name in `theirs`."""
        blocks = [[array[block] for array in arrays] for block in range(len(self.ours))] if self.stacked else [arrays]
        return [torch.cat([self.axes.to_ours(part) for part in parts]) for parts in blocks]

    def to_theirs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """New arrays, one per name in `theirs`, from one tensor per name in `ours`."""
        parts = zip(*(tensor.chunk(len(self.theirs)) for tensor in tensors), strict=True)
        moved = [torch.stack([self.axes.to_theirs(block) for block in blocks]) for blocks in parts]
        return moved if self.stacked else [array[0] for array in moved]

    def their_shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of each array in `theirs` when every tensor in `ours` has this one."""
        blank = torch.empty(()).expand(ours)  # one element, however large the shape
        part = tuple(self.axes.to_theirs(blank.chunk(len(self.theirs))[0]).shape)
        return (len(self.ours), *part) if self.stacked else part


def to_ours(rows: Collection[Row], arrays: Mapping[str, Tensor] | Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Our state dict from their arrays, each of which is asked for once, in the order of the table.

    Raises `InputError` if names are missing or left over.
    """
    require_names((name for row in rows for name in row.theirs), arrays)
    return {
        name: tensor
        for row in rows
        for name, tensor in zip(
            row.ours, row.to_ours([torch.as_tensor(arrays[name]) for name in row.theirs]), strict=True
        )
    }


def to_theirs(rows: Collection[Row], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their arrays from our state dict. Raises `InputError` if names are missing or left over."""
    require_names((name for row in rows for name in row.ours), state)
    return {
        name: array
        for row in rows
        for name, array in zip(row.theirs, row.to_theirs([state[name] for name in row.ours]), strict=True)
    }


def their_shapes(rows: Collection[Row], ours: Shapes) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the file that a model with these names and shapes is written to; no memory is used."""
    require_names((name for row in rows for name in row.ours), ours)
    return {name: row.their_shape(ours[row.ours[0]]) for row in rows for name in row.theirs}


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def require_names(expected: Iterable[str], found: Iterable[str]) -> None:
    problem = differences(dict.fromkeys(expected, ()), dict.fromkeys(found, ()))
    if problem:
        raise InputError(f"the parameters do not fit: {problem}")


def differences(expected: Shapes, found: Shapes) -> str:
    """In words, what is missing, left over or of another shape; empty if all is as expected."""
    missing, unknown = expected.keys() - found.keys(), found.keys() - expected.keys()
    misshapen = [
        f"{name} {list(found[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    parts = ((missing, "missing"), (unknown, "unknown"), (misshapen, "of another shape"))
    return "; ".join(f"{_listed(names)} {what}" for names, what in parts if names)


def _listed(names: Collection[str]) -> str:
    """Every name would fill the screen, so: '7 arrays (a, b, c, d, e and 2 more) are'."""
    first = ", ".join(printable(name) for name in sorted(names)[:LISTED])
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    noun, verb = ("array", "is") if len(names) == 1 else ("arrays", "are")
    return f"{len(names)} {noun} ({first}{more}) {verb}"
