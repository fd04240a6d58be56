"""Inference slab by slab: an update takes the memory of its stream, one context and the temporaries of a few rows.

A slab is a range of a stream's rows (dim 1) that is computed at a time. Its size follows from the measured memory of a
row: a few rows are run and counted, those of an update on the meta device, other functions' on the device itself.
"""

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from helixfold.execution.allocator import return_free_memory
from helixfold.execution.counter import Counter
from helixfold.execution.spilled_stream import SpilledStream
from helixfold.model.config import require
from helixfold.model.update import Context, ContextInput, Executor, Factored, Stream, Update, as_tensor, transposed
from helixfold.ops.device_properties import is_simulated, properties_of, simulated_device
from helixfold.ops.residual import Residual
from helixfold.ops.sizes import loops_if_large

# Memory for temporaries of a slab's rows: this share of the stream, or this number of elements if that is more. Both
# are small beside the stream, and large enough to keep the cores busy.
BUDGET_SHARE = 1 / 24
LEAST_ELEMENTS = 2 * 2**20
# The same number for `Factored` updates: products of a slab with a whole context take up to twice as long with half as
# many rows.
LEAST_ELEMENTS_OF_PRODUCTS = 5 * 2**20
# Bytes of a stream from which on memory is given back after an update; for smaller ones that would take too long.
LEAST_SETTLED = 16 * 2**20
# Alignment in bytes of tensors that share the buffer of contexts.
_ALIGNMENT = 64

# A stream that one device computes with: a tensor in its memory, or a spilled stream.
Held = Tensor | SpilledStream


class Slabs(Executor):
    """Executor that computes a context part by part, then adds the update to each slab in place, without gradients.

    A slab has `rows` rows if they are given. Otherwise their number follows from the measured bytes of a few rows and
    from `budget`, the bytes that temporaries of a slab may take (by default a share of the stream). All contexts use
    the same buffer, so an executor is for one thread. Raise `ConfigError` unless `budget` and `rows` are at least 1.
    """

    def __init__(self, budget: int | None = None, rows: int | None = None) -> None:
        self.budget, self.rows = budget, rows
        require(self, ["budget", "rows"], lambda value: value >= 1, "be at least 1")
        self.ranks = 1  # number of ranks that share a stream, and the memory for its temporaries
        self._buffer: Tensor | None = None

    def __call__(self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None = None) -> Held:
        if update.training and torch.is_grad_enabled():
            raise ValueError("slabs are for inference: set the model to evaluation, or train with the Whole executor")
        return self._carry_out(update, stream, mask, context_from)

    @torch.no_grad()
    def _carry_out(self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None) -> Held:
        context_input = context_from or (stream, mask)
        dropout_mask = update.dropout_mask(stream.shape, dtype=stream.dtype, device=stream.device)
        context = self.context(update, *context_input)
        return self.apply(update, stream, mask, context_input, context=context, dropout_mask=dropout_mask)

    @torch.no_grad()
    def apply(
        self,
        update: Update,
        stream: Stream,
        mask: Tensor,
        context_input: ContextInput,
        *,
        context: Context,
        dropout_mask: Tensor | None,
    ) -> Held:
        """Add the update to the stream in place and return the stream.

        `context_input` is read only by updates that use its rows; these are then the rows of the stream.
        """
        dropped = None if dropout_mask is None else transposed(dropout_mask, update.axis)
        whole = held(stream)
        changed = transposed(whole, update.axis)
        read: list[Held] = [transposed(mask, update.axis)]
        if update.reads_context_rows:
            read += [transposed(held(each), update.context_axis) for each in context_input]
        size = self.rows_at_once(
            changed,
            lambda: forward_row_bytes(update, layout(changed), layout(read[0]), context, [*map(layout, read[1:])]),
            LEAST_ELEMENTS_OF_PRODUCTS if isinstance(update, Factored) else LEAST_ELEMENTS,
        )
        with loops_if_large(prod(whole.shape)):
            for place, (slab_mask, *rows), slab in self.visited(read, size, changed):
                assert slab is not None
                kept = dropped if dropped is None or dropped.shape[1] == 1 else dropped[:, place]
                update.added(Residual(slab, kept, in_place=True), slab_mask, context, *rows)
        self.settle(whole)
        return whole

    @torch.no_grad()
    def map_rows(self, make: Callable[..., Tensor], *streams: Stream) -> Held:
        self.begin()
        given = [held(each) for each in streams]
        like = self.first_row(make, given)
        room = self.room(like, (*like.shape[:1], given[0].shape[1], *like.shape[2:]))
        return self.fill(make, given, room, like)

    @torch.no_grad()
    def replace_rows(self, make: Callable[..., Tensor], stream: Stream, *streams: Stream) -> Held:
        given = [held(each) for each in (stream, *streams)]
        return self.fill(make, given, given[0], layout(given[0])[:, :1])

    def copy(self, stream: Stream) -> Held:
        return self.map_rows(lambda _, rows: rows, stream)

    def first_rows(self, stream: Stream, count: int) -> Held:
        return held(stream)[:, :count]

    def gather(self, stream: Stream) -> Tensor:
        return stream.gather() if isinstance(stream, SpilledStream) else as_tensor(stream)

    def first_row(self, make: Callable[..., Tensor], streams: Sequence[Held]) -> Tensor:
        """Return the first row of the stream that `make` computes from `streams`; it has the shape of every row."""
        _, slabs, _ = next(self.visited([each[:, :1] for each in streams], 1))
        return make(slice(0, 1), *slabs)

    def fill(self, make: Callable[..., Tensor], streams: Sequence[Held], room: Held, like: Tensor) -> Held:
        """Write all rows that `make` computes from `streams` into `room`, the memory for the result, and return it.

        `like` is one row of the result.
        """

        def slabs(count: int) -> list[Tensor]:
            return next(self.visited([each[:, :count] for each in streams], count))[1]

        size = self.rows_at_once(room, lambda: map_row_bytes(make, like, slabs, streams))
        for rows, given, slab in self.visited(streams, size, room):
            assert slab is not None
            slab.copy_(make(rows, *given))
        self.settle(room)
        return room

    def begin(self) -> None:
        """Free the buffer of contexts: after a new stream, contexts may be smaller."""
        self._buffer = None

    def settle(self, stream: Stream) -> None:
        """Give the freed memory of temporaries back to the system, after an update of a large stream on a CPU.

        The next temporaries have other sizes and would not all fit into that memory.
        """
        if stream.device.type == "cpu" and size_of(stream) >= LEAST_SETTLED // self.ranks:
            return_free_memory()

    @torch.no_grad()
    def context(self, update: Update, context_input: Stream, mask: Tensor) -> Context:
        """Return the context of all rows of its input; the next call overwrites it."""
        if type(update).context is Update.context:
            return ()
        given = transposed(held(context_input), update.context_axis)
        given_mask = transposed(mask, update.context_axis)
        size = self.rows_at_once(given, lambda: context_row_bytes(update, layout(given), given_mask))
        whole: Context = ()
        with loops_if_large(prod(given.shape)):
            for rows, (slab, slab_mask), _ in self.visited([given, given_mask], size):
                parts = update.context(slab, slab_mask)
                if not whole:
                    # Filled in place: joining at the end would hold every part twice.
                    whole = self._context_room(parts, update.context_dim, given.shape[1])
                for room, part in zip(whole, parts, strict=True):
                    room.narrow(update.context_dim, rows.start, rows.stop - rows.start).copy_(part)
        return whole

    def rows_at_once(self, stream: Stream, row_bytes: Callable[[], int], least: int = LEAST_ELEMENTS) -> int:
        """Return the number of rows of a slab, each of which takes `row_bytes()` bytes of temporaries."""
        if self.rows is not None:
            return self.rows
        if not size_of(stream):
            return max(1, stream.shape[1])  # an empty stream cannot be measured
        budget = self.budget or max(least // self.ranks * stream.dtype.itemsize, int(size_of(stream) * BUDGET_SHARE))
        return max(1, budget // max(row_bytes() + self.staged(stream), 1))

    # Subclasses override these methods to place streams in other memory.

    def room(self, like: Tensor, shape: Sequence[int]) -> Held:
        """Return uninitialised memory for a stream of this shape, with the dtype and device of `like`."""
        return like.new_empty(shape)

    def staged(self, stream: Stream) -> int:
        """Return the bytes that staging buffers take for each row of this stream; 0 for streams on the device."""
        return 0

    def visited(
        self, streams: Sequence[Held], size: int, changed: Held | None = None
    ) -> Iterator[tuple[slice, list[Tensor], Tensor | None]]:
        """Yield a range of at most `size` rows, the slabs of all streams at these rows, and the slab of `changed`.

        The caller may write the slab of `changed` in place. While a forecast is made for a card, only the first slab
        is yielded, since all take the same.
        """
        for rows in row_slices(streams[0].shape[1], size):
            slabs = [as_tensor(each[:, rows]) for each in streams]
            yield rows, slabs, None if changed is None else as_tensor(changed[:, rows])

    def _context_room(self, parts: Context, dim: int, length: int) -> Context:
        """Return memory for a whole context, each tensor in its part's order of dimensions."""
        shapes = [(*part.shape[:dim], length, *part.shape[dim + 1 :]) for part in parts]
        sizes = [
            -(-prod(shape) * part.element_size() // _ALIGNMENT) * _ALIGNMENT
            for shape, part in zip(shapes, parts, strict=True)
        ]
        if self._buffer is None or len(self._buffer) < sum(sizes) or self._buffer.device != parts[0].device:
            # Released first, so that two buffers are never held.
            self._buffer = None
            self._buffer = torch.empty(sum(sizes), dtype=torch.uint8, device=parts[0].device)
        rooms = []
        for part, shape, memory in zip(parts, shapes, self._buffer[: sum(sizes)].split(sizes), strict=True):
            order = sorted(range(part.ndim), key=part.stride, reverse=True)
            dense = memory.view(part.dtype)[: prod(shape)].view([shape[each] for each in order])
            rooms.append(dense.permute([order.index(each) for each in range(part.ndim)]))
        return tuple(rooms)


def row_slices(length: int, size: int) -> Iterator[slice]:
    """Yield the rows of all slabs of at most `size` rows in order.

    While a forecast is made for a card, only the first is yielded. A stream without rows has one empty slab.
    """
    for start in range(0, max(length, 1), size):
        yield slice(start, min(start + size, length))
        if is_simulated():
            return


def held(stream: Stream) -> Held:
    """Return the stream, a tensor or spilled stream, unchanged; raise TypeError if it is divided over ranks."""
    return stream if isinstance(stream, SpilledStream) else as_tensor(stream)


def layout(stream: Held) -> Tensor:
    """Return a tensor with the stream's shape, strides and dtype; it may be in other memory than the device's."""
    return stream.tensor if isinstance(stream, SpilledStream) else stream


def size_of(stream: Stream) -> int:
    """Return the size of a whole stream in bytes."""
    return prod(stream.shape) * stream.dtype.itemsize


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
    streams: Sequence[Held],
) -> int:
    """Return the bytes of temporaries that `make(slice, *slabs)` takes for each row it returns.

    `like` is one row of the result, and `slabs(count)` returns the first rows of its inputs `streams`, which take
    memory where these are spilled. The function may read all rows of what it encloses, so a row may take more in a
    longer chain.
    """
    # What is measured on tensors without numbers is not taken for a run, nor the other way round.
    inputs = [(type(each), each.shape) for each in streams]
    key = (_identity(make), like.shape, like.dtype, like.device.type, properties_of(like.device), *inputs)
    if key not in _row_bytes:
        _row_bytes[key] = _measured(lambda count: make(slice(0, count), *slabs(count)), _ROWS, streams[0].shape[1])
    return _row_bytes[key]


def _update_row_bytes(
    method: str, update: Update, slab: Tensor, run: Callable[[Update, int], object], like: "list[_Like]"
) -> int:
    properties = properties_of(slab.device)
    length = slab.shape[1]
    if update not in _shapes:
        _shapes[update] = tuple(each.shape for each in update.parameters())
    key = (method, type(update), update.axis, _shapes[update], length, *like, properties, torch.get_num_threads())
    if key not in _row_bytes:
        with simulated_device(properties), torch.no_grad():
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
