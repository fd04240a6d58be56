"""Measure what a row takes by running a few of them: an update's rows on the meta device, others for real."""

import copy
from collections.abc import Callable, Hashable
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

# Rows of an update that are run: operators that work on blocks of rows use them fully by then.
_UPDATE_ROWS = (32, 64)
# Rows of anything else: these are computed with.
_ROWS = (1, 3)


@dataclass(frozen=True, kw_only=True)
class RowCost:
    """The bytes that temporaries take: `fixed` whatever is computed, and `each` for every row more."""

    fixed: int
    each: int

    def rows(self, budget: int, staged: int = 0) -> int:
        """Return how many rows at a time take so many bytes beyond what is fixed; at least one.

        Each takes `staged` bytes besides.
        """
        return max(1, budget // max(self.each + staged, 1))


_costs: dict[Hashable, RowCost] = {}
_twins: WeakKeyDictionary[Update, Update] = WeakKeyDictionary()
# Of updates' parameters, which it takes long to list.
_shapes: WeakKeyDictionary[Update, tuple[torch.Size, ...]] = WeakKeyDictionary()


def forward_cost(
    update: Update, slab: Tensor, mask: Tensor, context: tuple[Tensor, ...], rows: list[Tensor]
) -> RowCost:
    """Return what the rows of an update's slabs take, given all rows of its stream, mask and context's input."""
    whole = [_Like.of(each) for each in context]

    def run(twin: Update, count: int) -> object:
        given = [_Like.of(each).make(count) for each in (slab, mask, *rows)]
        return twin(*given[:2], tuple(each.make() for each in whole), *given[2:])

    return _update_cost("forward", update, slab, run, [_Like.of(each) for each in (slab, mask, *rows)] + whole)


def context_cost(update: Update, slab: Tensor, mask: Tensor) -> RowCost:
    """Return what the rows of the input of an update's context take."""
    like = [_Like.of(each) for each in (slab, mask)]
    return _update_cost("context", update, slab, lambda twin, count: twin.context(*(e.make(count) for e in like)), like)


def map_cost(make: Callable[..., Tensor], like: Tensor, slabs: Callable[[int], list[Tensor]], length: int) -> RowCost:
    """Return what the rows take that `make` returns, of which `like` is one; `slabs(count)` are the first rows."""
    key = (_identity(make), like.shape, like.dtype, card_of(like.device), length == 1)
    if key not in _costs:
        _costs[key] = _measured(lambda count: make(slice(0, count), *slabs(count)), _ROWS, length)
    return _costs[key]


def _update_cost(
    method: str, update: Update, slab: Tensor, run: Callable[[Update, int], object], like: "list[_Like]"
) -> RowCost:
    card = card_of(slab.device)
    length = slab.shape[1]
    if update not in _shapes:
        _shapes[update] = tuple(each.shape for each in update.parameters())
    key = (method, type(update), update.axis, _shapes[update], length, *like, card, torch.get_num_threads())
    if key not in _costs:
        with described(card), torch.no_grad():
            _costs[key] = _measured(partial(run, _twin(update)), _UPDATE_ROWS, length)
    return _costs[key]


def _measured(run: Callable[[int], object], counts: tuple[int, int], length: int) -> RowCost:
    """Return the line through the peaks of two numbers of rows."""
    few, many = (min(count, length) for count in counts)
    peaks = []
    for count in (few, many):
        # Whoever counts what is around here does not count this.
        with _disable_current_modes(), Counter() as counter:
            run(count)
        peaks.append(counter.peak)
    if few == many:
        return RowCost(fixed=0, each=-(-peaks[0] // few))
    each = max(0, peaks[1] - peaks[0]) // (many - few)
    return RowCost(fixed=max(0, peaks[0] - few * each), each=each)


def _twin(update: Update) -> Update:
    """Return the update with its parameters on the meta device; it stays the same for as long as the update lives."""
    if update not in _twins:
        # What is in this dictionary is not copied.
        parameters: dict[int, Any] = {
            id(each): nn.Parameter(torch.empty_like(each, device="meta"), requires_grad=False)
            for each in update.parameters()
        }
        twin = copy.deepcopy(update, parameters).eval()
        for module in twin.modules():
            # Whoever listens to the update does not listen to this.
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()
        _twins[update] = twin
    return _twins[update]


def _identity(make: Any) -> Hashable:
    """Return what stays the same of a function from one call to the next: closures are made anew each time."""
    while isinstance(make, partial):
        make = make.func
    return getattr(make, "__code__", None) or type(make)  # type: ignore[return-value]


@dataclass(frozen=True)
class _Like:
    """A tensor without its numbers: any rows of it can be made on the meta device."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "_Like":
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def make(self, rows: int | None = None) -> Tensor:
        shape = self.shape if rows is None else (self.shape[0], rows, *self.shape[2:])
        return torch.empty_strided(shape, self.stride, dtype=self.dtype, device="meta")
