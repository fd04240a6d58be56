"""Convert parameters between our state dict and the arrays of other programs, exactly and in both directions.

`Shapes` are shapes of arrays by name. `LISTED` is the number of names of each kind that an error lists. `IDENTITY`
keeps the axes, and `TRANSPOSE` is for the matrix of a linear map: theirs is [in, out], ours [out, in].
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from data_pipeline.io.errors import InputError, printable

Shapes = Mapping[str, tuple[int, ...]]

# Array names of each kind that an error lists; further ones are only counted.
LISTED = 5


@dataclass(frozen=True)
class Axes:
    """Axis order of one array in another program (`theirs`) and in ours, in einops notation.

    `sizes` has the sizes of axes that einops cannot infer when it converts ours to theirs.
    """

    theirs: str
    ours: str
    sizes: tuple[tuple[str, int], ...] = ()

    def to_ours(self, array: Tensor) -> Tensor:
        """Return the other program's array in our axis order."""
        return rearrange(array, f"{self.theirs} -> {self.ours}")

    def to_theirs(self, tensor: Tensor) -> Tensor:
        """Return our tensor in the other program's axis order."""
        return rearrange(tensor, f"{self.ours} -> {self.theirs}", **dict(self.sizes))


IDENTITY = Axes("...", "...")
TRANSPOSE = Axes("i o", "o i")


def to_heads(heads: int) -> Axes:
    """Return the axes of the weight of a projection from c channels to heads: theirs [c, h, d], ours [h d, c]."""
    return Axes("c h d", "(h d) c", (("h", heads),))


def from_heads(heads: int) -> Axes:
    """Return the axes of the weight of a projection from heads (or from the two factors of an outer product).

    Theirs is [h, d, c], ours [c, h d].
    """
    return Axes("h d c", "c (h d)", (("h", heads),))


def head_bias(heads: int) -> Axes:
    """Return the axes of the bias of a projection to heads: theirs [h, d], ours [h d]."""
    return Axes("h d", "(h d)", (("h", heads),))


@dataclass(frozen=True, kw_only=True)
class ParameterMapping:
    """Mapping between our names of parameters and another program's names.

    `theirs` is one array, or several that are concatenated in one tensor of ours (query, key and value). `ours` is one
    tensor, or `parts` tensors that are concatenated in the other program's array (the two operands of a triangle
    multiplication). If `stacked`, `ours` has the tensors of every block in order, and the other program's array has a
    leading axis for blocks.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    axes: Axes
    stacked: bool
    parts: int = 1

    def to_ours(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        """Convert arrays, one for each name in `theirs`, to tensors, one for each name in `ours`."""
        blocks = zip(*arrays, strict=True) if self.stacked else [arrays]
        joined = (torch.cat([self.axes.to_ours(array) for array in block]) for block in blocks)
        # Parts are copied, so that tensors do not share memory.
        return [part.clone() if self.parts > 1 else part for block in joined for part in block.chunk(self.parts)]

    def to_theirs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Convert tensors, one for each name in `ours`, to arrays, one for each name in `theirs`."""
        firsts = range(0, len(tensors), self.parts)
        joined = [torch.cat(list(tensors[first : first + self.parts])) for first in firsts]
        arrays = zip(*(block.chunk(len(self.theirs)) for block in joined), strict=True)
        moved = [torch.stack([self.axes.to_theirs(block) for block in blocks]) for blocks in arrays]
        return moved if self.stacked else [array[0] for array in moved]

    def their_shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that every array in `theirs` has, from the shape that every tensor in `ours` has."""
        joined = (self.parts * ours[0], *ours[1:])
        blank = torch.empty(()).expand(joined)  # one element, however large the shape
        part = tuple(self.axes.to_theirs(blank.chunk(len(self.theirs))[0]).shape)
        return (len(self.ours) // self.parts, *part) if self.stacked else part


def to_ours(
    rows: Collection[ParameterMapping], arrays: Mapping[str, Tensor] | Mapping[str, np.ndarray]
) -> dict[str, Tensor]:
    """Convert the arrays of another program, by name, to our state dict, looking up each array once.

    `rows` has the mapping of each array. Raise `InputError` if names are missing or unknown.
    """
    require_names((name for row in rows for name in row.theirs), arrays)
    return {
        name: tensor
        for row in rows
        for name, tensor in zip(
            row.ours, row.to_ours([torch.as_tensor(arrays[name]) for name in row.theirs]), strict=True
        )
    }


def to_theirs(rows: Collection[ParameterMapping], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert our state dict to the arrays of another program. Raise `InputError` if names are missing or unknown."""
    require_names((name for row in rows for name in row.ours), state)
    return {
        name: array
        for row in rows
        for name, array in zip(row.theirs, row.to_theirs([state[name] for name in row.ours]), strict=True)
    }


def their_shapes(rows: Collection[ParameterMapping], ours: Shapes) -> dict[str, tuple[int, ...]]:
    """Return the shapes of another program's arrays by name, from the shapes of ours, without allocating them.

    Raise `InputError` if names are missing or unknown.
    """
    require_names((name for row in rows for name in row.ours), ours)
    return {name: row.their_shape(ours[row.ours[0]]) for row in rows for name in row.theirs}


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor by its name."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def require_names(expected: Iterable[str], actual: Iterable[str]) -> None:
    """Raise `InputError` unless `actual` has the same names as `expected`; the message lists the first ones."""
    problem = differences(dict.fromkeys(expected, ()), dict.fromkeys(actual, ()))
    if problem:
        raise InputError(f"the parameters do not fit: {problem}")


def differences(expected: Shapes, actual: Shapes) -> str:
    """Return text that lists which arrays are missing, unknown or have another shape; "" if all are equal.

    Only names and shapes are compared, and only the first names of each kind are listed.
    """
    missing, unknown = expected.keys() - actual.keys(), actual.keys() - expected.keys()
    misshapen = [
        f"{name} {list(actual[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in actual and actual[name] != shape
    ]
    parts = ((missing, "missing"), (unknown, "unknown"), (misshapen, "of another shape"))
    return "; ".join(f"{_listed(names)} {what}" for names, what in parts if names)


def _listed(names: Collection[str]) -> str:
    """Return a short list of names, such as '7 arrays (a, b, c, d, e and 2 more) are'."""
    first = ", ".join(printable(name) for name in sorted(names)[:LISTED])
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    noun, verb = ("array", "is") if len(names) == 1 else ("arrays", "are")
    return f"{len(names)} {noun} ({first}{more}) {verb}"
