"""Inference slab by slab: an update needs memory for its stream, one context and the temporaries of a few rows.

A slab is a range of a stream's rows (dim 1) that is computed at a time. Its size follows from the measured memory of a
row: a few rows are run and their memory is counted, for an update on the meta device, for other functions on the
device.
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
from helixfold.model.config import ConfigError
from helixfold.model.update import Context, ContextInput, Executor, Factored, Stream, Update, as_tensor, transposed
from helixfold.ops.device_properties import is_simulated, properties_of, simulated_device
from helixfold.ops.residual import Residual
from helixfold.ops.sizes import loops_if_large

# Memory for the temporaries of a slab: this share of the stream, or this number of elements if it is larger. Both are
# small compared with the stream, and large enough to keep the cores busy.
BUDGET_SHARE = 1 / 24
MIN_ELEMENTS = 2 * 2**20
# The number of elements for `Factored` updates: products of a slab with a whole context take up to twice as long with
# half the rows.
MIN_ELEMENTS_OF_PRODUCTS = 5 * 2**20
# Bytes of a stream from which on memory is returned to the system after an update. For smaller streams this takes too
# long.
MIN_SETTLED = 16 * 2**20
# Alignment in bytes of the tensors in the context buffer.
_ALIGNMENT = 64

# A stream on one device: a tensor in its memory, or a spilled stream.
LocalStream = Tensor | SpilledStream


class Slabs(Executor):
    """Executor that computes an update slab by slab and in place, without gradients.

    The context is computed slab by slab, too. A slab has `rows` rows. By default their number follows from the measured
    memory of a few rows and from `budget`, the bytes for temporaries of a slab (by default a share of the stream). All
    contexts use the same buffer, so use an executor in one thread only. Raise `ConfigError` unless `budget` and `rows`
    are at least 1, and ValueError for an update in training mode with gradients.
    """

    def __init__(self, budget: int | None = None, rows: int | None = None) -> None:
        self.budget, self.rows = budget, rows
        if any(value is not None and value < 1 for value in (budget, rows)):
            raise ConfigError(f"budget and rows must be at least 1, got {budget} and {rows}")
        self.ranks = 1  # ranks that share a stream and the memory for its temporaries
        self._buffer: Tensor | None = None

    def __call__(
        self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None = None
    ) -> LocalStream:
        if update.training and torch.is_grad_enabled():
            raise ValueError("slabs are for inference; call model.eval(), or train with the Whole executor")
        return self._carry_out(update, stream, mask, context_from)

    @torch.no_grad()
    def _carry_out(
        self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None
    ) -> LocalStream:
        """Compute the context and apply the update to all slabs."""
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
    ) -> LocalStream:
        """Add the update's change times the dropout mask to the stream in place, and return the stream.

        `context_input` is read only by updates that use its rows; these are then the rows of the stream.
        """
        dropped = None if dropout_mask is None else transposed(dropout_mask, update.axis)
        local = as_local(stream)
        changed = transposed(local, update.axis)
        read: list[LocalStream] = [transposed(mask, update.axis)]
        if update.reads_context_rows:
            read += [transposed(as_local(each), update.context_axis) for each in context_input]
        size = self.rows_at_once(
            changed,
            lambda: forward_row_bytes(update, layout(changed), layout(read[0]), context, [*map(layout, read[1:])]),
            MIN_ELEMENTS_OF_PRODUCTS if isinstance(update, Factored) else MIN_ELEMENTS,
        )
        with loops_if_large(prod(local.shape)):
            for place, (slab_mask, *rows), slab in self.visited(read, size, changed):
                assert slab is not None
                mask_rows = dropped if dropped is None or dropped.shape[1] == 1 else dropped[:, place]
                update.added(Residual(slab, mask_rows, in_place=True), slab_mask, context, *rows)
        self.settle(local)
        return local

    @torch.no_grad()
    def map_rows(self, make: Callable[..., Tensor], *streams: Stream) -> LocalStream:
        self.begin()
        local = [as_local(each) for each in streams]
        like = self.first_row(make, local)
        room = self.room(like, (*like.shape[:1], local[0].shape[1], *like.shape[2:]))
        return self.fill(make, local, room, like)

    @torch.no_grad()
    def replace_rows(self, make: Callable[..., Tensor], stream: Stream, *streams: Stream) -> LocalStream:
        local = [as_local(each) for each in (stream, *streams)]
        return self.fill(make, local, local[0], layout(local[0])[:, :1])

    def copy(self, stream: Stream) -> LocalStream:
        return self.map_rows(lambda _, rows: rows, stream)

    def first_rows(self, stream: Stream, count: int) -> LocalStream:
        return as_local(stream)[:, :count]

    def gather(self, stream: Stream) -> Tensor:
        return stream.gather() if isinstance(stream, SpilledStream) else as_tensor(stream)

    def first_row(self, make: Callable[..., Tensor], streams: Sequence[LocalStream]) -> Tensor:
        """Return the first row of the stream that `make` computes from `streams`, as an example of the shape."""
        _, slabs, _ = next(self.visited([each[:, :1] for each in streams], 1))
        return make(slice(0, 1), *slabs)

    def fill(
        self, make: Callable[..., Tensor], streams: Sequence[LocalStream], room: LocalStream, like: Tensor
    ) -> LocalStream:
        """Write all rows that `make` computes from `streams` into `room`, and return it.

        `like` is one row of the result.
        """

        def slabs(count: int) -> list[Tensor]:
            return next(self.visited([each[:, :count] for each in streams], count))[1]

        size = self.rows_at_once(room, lambda: map_row_bytes(make, like, slabs, streams))
        for rows, slabs_of_rows, slab in self.visited(streams, size, room):
            assert slab is not None
            slab.copy_(make(rows, *slabs_of_rows))
        self.settle(room)
        return room

    def begin(self) -> None:
        """Free the context buffer before a new stream is made; contexts of this stream may be smaller."""
        self._buffer = None

    def settle(self, stream: Stream) -> None:
        """Return the freed memory of temporaries to the system, after an update of a large stream on a CPU.

        The temporaries of the next update have other sizes and would not all fit into it.
        """
        if stream.device.type == "cpu" and size_of(stream) >= MIN_SETTLED // self.ranks:
            return_free_memory()

    @torch.no_grad()
    def context(self, update: Update, context_input: Stream, mask: Tensor) -> Context:
        """Return the context of an update from all rows of its input; the next call overwrites it."""
        if type(update).context is Update.context:
            return ()
        local = transposed(as_local(context_input), update.context_axis)
        local_mask = transposed(mask, update.context_axis)
        size = self.rows_at_once(local, lambda: context_row_bytes(update, layout(local), local_mask))
        whole: Context = ()
        with loops_if_large(prod(local.shape)):
            for rows, (slab, slab_mask), _ in self.visited([local, local_mask], size):
                parts = update.context(slab, slab_mask)
                if not whole:
                    # Filled in place: joining at the end would hold every part twice.
                    whole = self._context_room(parts, update.context_dim, local.shape[1])
                for room, part in zip(whole, parts, strict=True):
                    room.narrow(update.context_dim, rows.start, rows.stop - rows.start).copy_(part)
        return whole

    def rows_at_once(self, stream: Stream, row_bytes: Callable[[], int], min_elements: int = MIN_ELEMENTS) -> int:
        """Return the number of rows of a slab, at least 1, if each row needs `row_bytes()` bytes of temporaries.

        It is `rows` if that is set. Otherwise it follows from `budget`, or from the share of the stream but at least
        `min_elements` elements.
        """
        if self.rows is not None:
            return self.rows
        if not size_of(stream):
            return max(1, stream.shape[1])  # an empty stream cannot be measured
        smallest = min_elements // self.ranks * stream.dtype.itemsize
        budget = self.budget or max(smallest, int(size_of(stream) * BUDGET_SHARE))
        return max(1, budget // max(row_bytes() + self.staged(stream), 1))

    # Subclasses override the following methods to place streams in other memory.

    def room(self, like: Tensor, shape: Sequence[int]) -> LocalStream:
        """Return uninitialised memory for a stream of this shape, with the dtype and device of `like`."""
        return like.new_empty(shape)

    def staged(self, stream: Stream) -> int:
        """Return the bytes of staging buffers for each row of a stream; 0 for streams on the device."""
        return 0

    def visited(
        self, streams: Sequence[LocalStream], size: int, changed: LocalStream | None = None
    ) -> Iterator[tuple[slice, list[Tensor], Tensor | None]]:
        """Yield each range of at most `size` rows, the slabs of all streams at these rows, and the slab of `changed`.

        The caller may write the slab of `changed` in place. While another device is being simulated for an estimate,
        only the first slab is yielded, because all slabs cost the same.
        """
        for rows in row_slices(streams[0].shape[1], size):
            slabs = [as_tensor(each[:, rows]) for each in streams]
            yield rows, slabs, None if changed is None else as_tensor(changed[:, rows])

    def _context_room(self, parts: Context, dim: int, length: int) -> Context:
        """Return memory for a whole context; each tensor has the memory order of its part."""
        shapes = [(*part.shape[:dim], length, *part.shape[dim + 1 :]) for part in parts]
        sizes = [
            -(-prod(shape) * part.element_size() // _ALIGNMENT) * _ALIGNMENT
            for shape, part in zip(shapes, parts, strict=True)
        ]
        if self._buffer is None or len(self._buffer) < sum(sizes) or self._buffer.device != parts[0].device:
            # Release the old buffer first, so that two never exist.
            self._buffer = None
            self._buffer = torch.empty(sum(sizes), dtype=torch.uint8, device=parts[0].device)
        rooms = []
        for part, shape, memory in zip(parts, shapes, self._buffer[: sum(sizes)].split(sizes), strict=True):
            order = sorted(range(part.ndim), key=part.stride, reverse=True)
            dense = memory.view(part.dtype)[: prod(shape)].view([shape[each] for each in order])
            rooms.append(dense.permute([order.index(each) for each in range(part.ndim)]))
        return tuple(rooms)


def row_slices(length: int, size: int) -> Iterator[slice]:
    """Yield the ranges of rows of all slabs in order, each of at most `size` rows.

    While another device is being simulated for an estimate, only the first is yielded. A stream without rows has one
    empty slab.
    """
    for start in range(0, max(length, 1), size):
        yield slice(start, min(start + size, length))
        if is_simulated():
            return


def as_local(stream: Stream) -> LocalStream:
    """Return a tensor or spilled stream unchanged; raise TypeError for a stream that is sharded over ranks."""
    return stream if isinstance(stream, SpilledStream) else as_tensor(stream)


def layout(stream: LocalStream) -> Tensor:
    """Return a tensor with the stream's shape, strides and dtype, which may be on another device."""
    return stream.tensor if isinstance(stream, SpilledStream) else stream


def size_of(stream: Stream) -> int:
    """Return the size of a whole stream in bytes."""
    return prod(stream.shape) * stream.dtype.itemsize


# Rows with which an update is measured. Operators that work on blocks of rows fill whole blocks at these sizes.
_MEASURED_UPDATE_ROWS = (32, 64)
# Rows with which other functions are measured: few, because they are really computed.
_MEASURED_ROWS = (1, 3)


_row_bytes: dict[Hashable, int] = {}
_twins: WeakKeyDictionary[Update, Update] = WeakKeyDictionary()
# Shapes of the parameters of updates, because listing them takes long.
_shapes: WeakKeyDictionary[Update, tuple[torch.Size, ...]] = WeakKeyDictionary()


def forward_row_bytes(
    update: Update, slab: Tensor, mask: Tensor, context: tuple[Tensor, ...], rows: list[Tensor]
) -> int:
    """Return the bytes of temporaries that an update needs for each row of a slab, to which it is added in place.

    `slab`, `mask` and `rows` (the context's input, if the update reads it) have all rows of the stream. Only their
    layout is used.
    """
    whole = [_Like.of(each) for each in context]

    def run(twin: Update, count: int) -> object:
        inputs = [_Like.of(each).make(count) for each in (slab, mask, *rows)]
        residual = Residual(inputs[0], in_place=True)
        return twin.added(residual, inputs[1], tuple(each.make() for each in whole), *inputs[2:])

    return _update_row_bytes("forward", update, slab, run, [_Like.of(each) for each in (slab, mask, *rows)] + whole)


def context_row_bytes(update: Update, slab: Tensor, mask: Tensor) -> int:
    """Return the bytes of temporaries that `update.context` needs for each row of its input.

    `slab` and `mask` have all rows. Only their layout is used.
    """
    like = [_Like.of(each) for each in (slab, mask)]
    return _update_row_bytes(
        "context", update, slab, lambda twin, count: twin.context(*(e.make(count) for e in like)), like
    )


def map_row_bytes(
    make: Callable[..., Tensor],
    like: Tensor,
    slabs: Callable[[int], list[Tensor]],
    streams: Sequence[LocalStream],
) -> int:
    """Return the bytes of temporaries that `make(slice, *slabs)` needs for each row that it returns.

    `like` is one row of the result, and `slabs(count)` returns the first rows of the inputs `streams`, in new memory if
    these are spilled. The function may close over whole tensors, so a row may need more memory in a longer chain.
    """
    # Measurements on meta tensors are not used for real runs, nor the other way round.
    inputs = [(type(each), each.shape) for each in streams]
    key = (_identity(make), like.shape, like.dtype, like.device.type, properties_of(like.device), *inputs)
    if key not in _row_bytes:
        _row_bytes[key] = _measured(
            lambda count: make(slice(0, count), *slabs(count)), _MEASURED_ROWS, streams[0].shape[1]
        )
    return _row_bytes[key]


def _update_row_bytes(
    method: str, update: Update, slab: Tensor, run: Callable[[Update, int], object], like: "list[_Like]"
) -> int:
    """Return the measured bytes per row of `run(update, rows)` on meta tensors, cached by the layouts `like`."""
    properties = properties_of(slab.device)
    length = slab.shape[1]
    if update not in _shapes:
        _shapes[update] = tuple(each.shape for each in update.parameters())
    key = (method, type(update), update.axis, _shapes[update], length, *like, properties, torch.get_num_threads())
    if key not in _row_bytes:
        with simulated_device(properties), torch.no_grad():
            _row_bytes[key] = _measured(partial(run, _twin(update)), _MEASURED_UPDATE_ROWS, length)
    return _row_bytes[key]


def _measured(run: Callable[[int], object], counts: tuple[int, int], length: int) -> int:
    """Return the bytes by which the peak memory grows with each row, measured at two row counts.

    Memory that does not depend on the number of rows is excluded, unless both counts are equal.
    """
    few, many = (min(count, length) for count in counts)
    peaks = []
    for count in (few, many):
        # Outer counters must not count this.
        with _disable_current_modes(), Counter() as counter:
            run(count)
        peaks.append(counter.peak)
    if few == many:
        return -(-peaks[0] // few)
    return max(0, peaks[1] - peaks[0]) // (many - few)


def _twin(update: Update) -> Update:
    """Return a copy of the update with parameters on the meta device, cached for the next call."""
    if update not in _twins:
        # `deepcopy` uses the objects in its memo instead of copying. Outer counters must not count the copy, which
        # stays in memory.
        with _disable_current_modes():
            parameters: dict[int, Any] = {
                id(each): nn.Parameter(torch.empty_like(each, device="meta"), requires_grad=False)
                for each in update.parameters()
            }
            twin = copy.deepcopy(update, parameters).eval()
        for module in twin.modules():
            # The copy must not run the hooks of the update.
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()
        _twins[update] = twin
    return _twins[update]


def _identity(make: Any) -> Hashable:
    """Return a key that is equal for all closures of the same function."""
    while isinstance(make, partial):
        make = make.func
    return getattr(make, "__code__", None) or type(make)  # type: ignore[return-value]


@dataclass(frozen=True)
class _Like:
    """Layout of a tensor, for making any number of its rows on the meta device."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "_Like":
        """Return the layout of a tensor."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def make(self, rows: int | None = None) -> Tensor:
        """Return a meta tensor of this layout, with `rows` rows if passed."""
        shape = self.shape if rows is None else (self.shape[0], rows, *self.shape[2:])
        return torch.empty_strided(shape, self.stride, dtype=self.dtype, device="meta")
