"""Measured memory of a row of a stream, from which executors choose the size of slabs.

A few rows are run and counted: rows of an update on the meta device, other functions' rows on the device itself.
"""

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from helixfold.execution.counter import Counter
from helixfold.model.update import Update
from helixfold.ops.card import card_of, described
from helixfold.ops.residual import Residual

# Numbers of rows with which an update is run: operators that work on blocks of rows fill them at these sizes.
_UPDATE_ROWS = (32, 64)
# Numbers of rows with which other functions are run; they are few, since they are really computed.
_ROWS = (1, 3)


_row_bytes: dict[Hashable, int] = {}
_twins: WeakKeyDictionary[Update, Update] = WeakKeyDictionary()
# Shapes of updates' parameters, which take long to list.
_shapes: WeakKeyDictionary[Update, tuple[torch.Size, ...]] = WeakKeyDictionary()


def forward_row_bytes(
    update: Update, slab: Tensor, mask: Tensor, context: tuple[Tensor, ...], rows: list[Tensor]
) -> int:
    """Return the bytes of temporaries that the update takes for each row of a slab to which it is added in place.

    `slab`, `mask` and `rows` (the context's input, if the update reads it) are given with all rows of the stream, of
    which only the layout is used.
    """
    whole = [_Like.of(each) for each in context]

    def run(twin: Update, count: int) -> object:
        given = [_Like.of(each).make(count) for each in (slab, mask, *rows)]
        residual = Residual(given[0], in_place=True)
        return twin.added(residual, given[1], tuple(each.make() for each in whole), *given[2:])

    return _update_row_bytes("forward", update, slab, run, [_Like.of(each) for each in (slab, mask, *rows)] + whole)


def context_row_bytes(update: Update, slab: Tensor, mask: Tensor) -> int:
    """Return the bytes of temporaries that `update.context` takes for each row of its input, given with all rows."""
    like = [_Like.of(each) for each in (slab, mask)]
    return _update_row_bytes(
        "context", update, slab, lambda twin, count: twin.context(*(e.make(count) for e in like)), like
    )


def map_row_bytes(
    make: Callable[..., Tensor],
    like: Tensor,
    slabs: Callable[[int], list[Tensor]],
    shapes: Sequence[torch.Size],
) -> int:
    """Return the bytes of temporaries that `make(slice, *slabs)` takes for each row it returns.

    `like` is one row of the result, `slabs(count)` returns the first rows of its inputs, and `shapes` are those of the
    inputs with all rows. The function may read all rows of what it encloses, so a row may take more in a longer chain.
    """
    key = (_identity(make), like.shape, like.dtype, card_of(like.device), *shapes)
    if key not in _row_bytes:
        _row_bytes[key] = _measured(lambda count: make(slice(0, count), *slabs(count)), _ROWS, shapes[0][1])
    return _row_bytes[key]


def _update_row_bytes(
    method: str, update: Update, slab: Tensor, run: Callable[[Update, int], object], like: "list[_Like]"
) -> int:
    card = card_of(slab.device)
    length = slab.shape[1]
    if update not in _shapes:
        _shapes[update] = tuple(each.shape for each in update.parameters())
    key = (method, type(update), update.axis, _shapes[update], length, *like, card, torch.get_num_threads())
    if key not in _row_bytes:
        with described(card), torch.no_grad():
            _row_bytes[key] = _measured(partial(run, _twin(update)), _UPDATE_ROWS, length)
    return _row_bytes[key]


def _measured(run: Callable[[int], object], counts: tuple[int, int], length: int) -> int:
    """Return the bytes by which the peak memory grows with each row, measured at two numbers of rows.

    What is taken for any number of rows does not count, unless there is only one number.
    """
    few, many = (min(count, length) for count in counts)
    peaks = []
    for count in (few, many):
        # Counters that are active around this call must not count it.
        with _disable_current_modes(), Counter() as counter:
            run(count)
        peaks.append(counter.peak)
    if few == many:
        return -(-peaks[0] // few)
    return max(0, peaks[1] - peaks[0]) // (many - few)


def _twin(update: Update) -> Update:
    """Return a copy of the update with its parameters on the meta device; the same copy for every call."""
    if update not in _twins:
        # `deepcopy` takes the objects in its memo instead of copying.
        # Nor must active counters count the copy, which stays in memory.
        with _disable_current_modes():
            parameters: dict[int, Any] = {
                id(each): nn.Parameter(torch.empty_like(each, device="meta"), requires_grad=False)
                for each in update.parameters()
            }
            twin = copy.deepcopy(update, parameters).eval()
        for module in twin.modules():
            # Hooks of the update must not run for its copy.
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()
        _twins[update] = twin
    return _twins[update]


def _identity(make: Any) -> Hashable:
    """Return a key that is equal for a function's closures, which are made anew for each call."""
    while isinstance(make, partial):
        make = make.func
    return getattr(make, "__code__", None) or type(make)  # type: ignore[return-value]


@dataclass(frozen=True)
class _Like:
    """Layout of a tensor, from which any number of its rows can be made on the meta device."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "_Like":
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def make(self, rows: int | None = None) -> Tensor:
        shape = self.shape if rows is None else (self.shape[0], rows, *self.shape[2:])
        return torch.empty_strided(shape, self.stride, dtype=self.dtype, device="meta")
