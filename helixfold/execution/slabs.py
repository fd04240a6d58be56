"""Carry out everything of a stream's size slab by slab: inference in the memory of the stream and one context."""

from collections.abc import Callable, Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from helixfold.config import require
from helixfold.execution.allocator import give_back
from helixfold.execution.probe import RowCost, context_cost, forward_cost, map_cost
from helixfold.execution.spilled_stream import SpilledStream
from helixfold.model.update import Context, ContextInput, Executor, Factored, Stream, Update, as_tensor, transposed
from helixfold.ops.card import is_described

# What temporaries of a slab's rows may take: this part of the stream, or so many elements. Small beside it, and still
# enough rows to keep the cores busy.
BUDGET_SHARE = 1 / 24
LEAST_ELEMENTS = 2 * 2**20
# Products of a slab's rows with a whole context take up to twice as long with half as many rows.
LEAST_ELEMENTS_OF_PRODUCTS = 5 * 2**20
# Smaller streams are too quickly done.
LEAST_SETTLED = 16 * 2**20
# Of memory that is cut into tensors.
_ALIGNMENT = 64

Held = Tensor | SpilledStream


class Slabs(Executor):
    """Computes a context part by part, then adds the update to each slab of the stream in place; no gradients.

    The size of a slab follows from `budget`, the bytes that its rows may take beyond what their operators need anyway
    (by default a share of the stream), and from what a few rows are found to take, unless `rows` fixes it. Contexts
    take turns in one buffer that is kept: one executor is for one thread.
    """

    def __init__(self, budget: int | None = None, rows: int | None = None) -> None:
        self.budget, self.rows = budget, rows
        require(self, ["budget", "rows"], lambda value: value >= 1, "be at least 1")
        self.ranks = 1  # that share a stream, and the memory for its temporaries
        self._buffer: Tensor | None = None

    @torch.no_grad()
    def __call__(self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None = None) -> Held:
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
        """Return the stream, changed in place; the context's input has the same rows where the update reads them."""
        if dropout_mask is not None:
            raise ValueError("slabs are for inference: set the model to evaluation, or train with the Whole executor")
        whole = held(stream)
        changed = transposed(whole, update.axis)
        read: list[Held] = [transposed(mask, update.axis)]
        if update.reads_context_rows:
            read += [transposed(held(each), update.context_axis) for each in context_input]
        size = self._size(
            changed,
            lambda: forward_cost(update, layout(changed), layout(read[0]), context, [*map(layout, read[1:])]),
            LEAST_ELEMENTS_OF_PRODUCTS if isinstance(update, Factored) else LEAST_ELEMENTS,
        )
        for _, (slab_mask, *rows), slab in self.visited(read, size, changed):
            assert slab is not None
            slab.add_(update(slab, slab_mask, context, *rows))
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
        """Return the first row of a stream that is to be made from these, which tells its shape."""
        _, slabs, _ = next(self.visited([each[:, :1] for each in streams], 1))
        return make(slice(0, 1), *slabs)

    def fill(self, make: Callable[..., Tensor], streams: Sequence[Held], room: Held, like: Tensor) -> Held:
        """Write the rows that `make` returns, of which `like` is one, into the room of a stream; return it."""

        def slabs(count: int) -> list[Tensor]:
            return next(self.visited([each[:, :count] for each in streams], count))[1]

        size = self._size(room, lambda: map_cost(make, like, slabs, room.shape[1]))
        for rows, given, slab in self.visited(streams, size, room):
            assert slab is not None
            slab.copy_(make(rows, *given))
        self.settle(room)
        return room

    def begin(self) -> None:
        """Give up the buffer of contexts: a new stream begins a part of the network whose contexts may be smaller."""
        self._buffer = None

    def settle(self, stream: Stream) -> None:
        """Give back what temporaries left: the next ones, of other sizes, would not all find room there."""
        if stream.device.type == "cpu" and size_of(stream) >= LEAST_SETTLED // self.ranks:
            give_back()

    @torch.no_grad()
    def context(self, update: Update, context_input: Stream, mask: Tensor) -> Context:
        """Return the context of the whole input; it lasts until the next one is made."""
        if type(update).context is Update.context:
            return ()
        given = transposed(held(context_input), update.context_axis)
        given_mask = transposed(mask, update.context_axis)
        size = self._size(given, lambda: context_cost(update, layout(given), given_mask))
        whole: Context = ()
        for rows, (slab, slab_mask), _ in self.visited([given, given_mask], size):
            parts = update.context(slab, slab_mask)
            if not whole:
                # Filled in place: joining at the end would hold every part twice.
                whole = self._context_room(parts, update.context_dim, given.shape[1])
            for room, part in zip(whole, parts, strict=True):
                room.narrow(update.context_dim, rows.start, rows.stop - rows.start).copy_(part)
        return whole

    def rows_at_once(self, row_bytes: int, stream: Stream) -> int:
        """Return the rows of a slab, each of which takes so many bytes of temporaries."""
        return self._size(stream, lambda: RowCost(fixed=0, each=row_bytes))

    def _size(self, stream: Stream, cost: Callable[[], RowCost], least: int = LEAST_ELEMENTS) -> int:
        if self.rows is not None:
            return self.rows
        if not size_of(stream):
            return max(1, stream.shape[1])  # there is nothing to measure
        budget = self.budget or max(least // self.ranks * stream.dtype.itemsize, int(size_of(stream) * BUDGET_SHARE))
        return cost().rows(budget, self.staged(stream))

    # What another executor may do otherwise: where streams live, and how their slabs are reached.

    def room(self, like: Tensor, shape: Sequence[int]) -> Held:
        """Return memory for a stream."""
        return like.new_empty(shape)

    def staged(self, stream: Stream) -> int:
        """Return the bytes that a row of this stream takes while it waits to be computed with."""
        return 0

    def visited(
        self, streams: Sequence[Held], size: int, changed: Held | None = None
    ) -> Iterator[tuple[slice, list[Tensor], Tensor | None]]:
        """Give the slabs of all streams at the same rows, and that of `changed`, which may be written in place.

        Where a card is only described, the first slab stands for all: they take the same.
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
            # Released first: two are never held.
            self._buffer = None
            self._buffer = torch.empty(sum(sizes), dtype=torch.uint8, device=parts[0].device)
        rooms = []
        for part, shape, memory in zip(parts, shapes, self._buffer[: sum(sizes)].split(sizes), strict=True):
            order = sorted(range(part.ndim), key=part.stride, reverse=True)
            dense = memory.view(part.dtype)[: prod(shape)].view([shape[each] for each in order])
            rooms.append(dense.permute([order.index(each) for each in range(part.ndim)]))
        return tuple(rooms)


def row_slices(length: int, size: int) -> Iterator[slice]:
    """Give the rows of all slabs in order; of the first alone where a card is only described.

    A stream without rows has one slab, without rows.
    """
    for start in range(0, max(length, 1), size):
        yield slice(start, min(start + size, length))
        if is_described():
            return


def held(stream: Stream) -> Held:
    """Return a stream that an executor on one device holds; raise TypeError for one that several ranks share."""
    return stream if isinstance(stream, SpilledStream) else as_tensor(stream)


def layout(stream: Held) -> Tensor:
    """Return a tensor with the stream's shape and strides, for what depends on these alone."""
    return stream.tensor if isinstance(stream, SpilledStream) else stream


def size_of(stream: Stream) -> int:
    """Return the bytes of a whole stream."""
    return prod(stream.shape) * stream.dtype.itemsize
