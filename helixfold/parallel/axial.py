"""Dynamic axial parallelism (FastFold, arXiv 2203.00854): updates of streams that are sharded over ranks.

An update needs its stream cut along the axis along which it is independent. A stream that is cut along the other axis
is exchanged first (one all-to-all). Each rank computes its part of the context, and the parts are gathered (one
all-gather).

In inference with slabs, streams are exchanged and triangles multiplied slab by slab. A rank then needs memory for at
most twice its part of the stream. An all-to-all of the whole part would need three times the part, and the gathered
operand of a triangle multiplication is as large as the whole stream.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.execution.recompute import is_recomputing
from helixfold.execution.slabs import LocalStream, Slabs, as_local
from helixfold.execution.whole import Whole
from helixfold.model.stream import DIM, Axis
from helixfold.model.update import Context, ContextInput, Executor, Factored, Stream, Update, as_tensor, transposed
from helixfold.ops.linear import multiply
from helixfold.parallel.collectives import Channel, Message
from helixfold.parallel.mesh import Group
from helixfold.parallel.shard import Shard, pad_to, padded

# An operand is computed and gathered in groups of channels: this number times the number of ranks.
CHANNEL_GROUPS = 16
# Temporary elements per element of a slab: send and receive buffers of an exchange; norms, projections and gates.
_TEMPORARIES_PER_ELEMENT = 8


class Axial(Executor):
    """Executor for sharded streams; on each rank the executor `within` computes the rank's part.

    All ranks run the same program on the same features with the same random numbers. `Whole` is for training: an
    exchange that was needed in an earlier iteration is started early, so that it overlaps with computation. With
    `Slabs` or `Spilled` a rank needs little more memory than its part of two streams. Collectives over `group` are
    appended to `messages`, if that is a list.
    """

    def __init__(
        self, group: Group, within: Whole | Slabs | None = None, messages: list[Message] | None = None
    ) -> None:
        self.within = Whole() if within is None else within
        self.channel = Channel(group, messages)
        if isinstance(self.within, Slabs):
            self.within.ranks = group.size
        # The dims along which the output of each update is used, in order.
        self._cuts_used: dict[tuple[object, bool], list[int]] = defaultdict(list)

    def __call__(self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None = None) -> Shard:
        shard = _shard(stream)
        dim = shard.cut if update.elementwise else DIM[update.axis]
        source, source_mask = (stream, mask) if context_from is None else context_from
        dropout_mask = update.dropout_mask(shard.shape, dtype=shard.dtype, device=shard.device)
        if isinstance(self.within, Slabs) and isinstance(update, Factored):
            part = as_local(self._along(shard, dim))
            multiply_triangles_by_slabs(self.within, self.channel, update, part, self._cut(mask, dim), axis=update.axis)
            self.within.settle(part)
            return self._new_shard(shard, part, dim, update)
        # The gathering is awaited as late as possible.
        context = self._context(update, _shard(source), source_mask)
        local, rows = self._along(shard, dim), (stream, mask)
        if update.reads_context_rows:
            along = DIM[update.context_axis]
            rows = self._along(_shard(source), along), self._cut(source_mask, along)
        if dropout_mask is not None:
            dropout_mask = self._cut(dropout_mask, dim, shared=True)
        changed = self.within.apply(
            update, local, self._cut(mask, dim), rows, context=context(), dropout_mask=dropout_mask
        )
        return self._new_shard(shard, changed, dim, update)

    def map_rows(self, make: Callable[..., Tensor], *streams: Stream) -> Shard:
        return self._map(make, streams, None)

    def replace_rows(self, make: Callable[..., Tensor], stream: Stream, *streams: Stream) -> Shard:
        return self._map(make, (stream, *streams), _shard(stream))

    def copy(self, stream: Stream) -> Stream:
        return stream if isinstance(self.within, Whole) else self.map_rows(lambda _, rows: rows, stream)

    def first_rows(self, stream: Stream, count: int) -> Shard:
        shard = _shard(stream)
        b, _, *rest = shard.shape
        own = self.within.gather(self.within.first_rows(self._along(shard, 2), count))
        local = pad_to(own, 1, padded(count, self.channel.group.size))
        return Shard(self.channel, torch.Size((b, count, *rest)), local, 2)

    def streams_at_once(self, count: int, device: torch.device) -> int:
        return self.within.streams_at_once(count, device)

    def gather(self, stream: Stream) -> Tensor:
        shard = _shard(stream)
        local = self.within.gather(shard.along(shard.cut))
        whole = torch.cat(self.channel.begin("all_gather", local).wait().unbind(), shard.cut)
        return whole[:, : shard.shape[1], : shard.shape[2]]

    def _map(self, make: Callable[..., Tensor], streams: Sequence[Stream], replaced: Shard | None) -> Shard:
        """Compute this rank's rows of a stream, in the memory of `replaced` unless that is None."""
        length, size = streams[0].shape[1], self.channel.group.size
        share = padded(length, size) // size
        span = slice(*(min(length, (self.channel.group.rank + each) * share) for each in (0, 1)))
        own = [self._own_rows(each, span) for each in streams]
        is_padding = span.start == span.stop

        def make_own(rows: slice, *slabs: Tensor) -> Tensor:
            return make(slice(span.start + rows.start, span.start + rows.stop), *slabs)

        # A rank that has only padding computes the first row to get the shape.
        make_one = make if is_padding else make_own
        one = [self._own_rows(each, slice(0, 1)) for each in streams] if is_padding else own
        if isinstance(self.within, Slabs):
            room = None if replaced is None else as_local(self._along(replaced, 1))
            local, shape = self._fill(self.within, make_own, own, (make_one, one), share=share, room=room)
        else:
            tensors = [as_tensor(each) for each in one]
            rows = make_one(slice(0, 1), *tensors)[:, :0] if is_padding else self.within.map_rows(make_own, *own)
            shape = rows.shape
            whole_rows = pad_to(rows, 1, share)
            local = pad_to(whole_rows, 2, padded(shape[2], size)) if rows.ndim == 4 else whole_rows
        if replaced is not None and isinstance(self.within, Slabs):
            return replaced.replace(local, 1)
        return Shard(self.channel, torch.Size((shape[0], length, *shape[2:])), local, 1)

    def _context(self, update: Update, source: Shard, mask: Tensor) -> Callable[[], Context]:
        """Compute this rank's part of a context, start its all-gather, and return a function that waits for it."""
        if type(update).context is Update.context:
            return tuple
        along = DIM[update.context_axis]
        parts = self.within.context(update, self._along(source, along), self._cut(mask, along))
        # The gathered context has the memory order of its parts, because operators rely on it.
        orders = [sorted(range(part.ndim), key=part.stride, reverse=True) for part in parts]
        dense = [part.permute(order) for part, order in zip(parts, orders, strict=True)]
        # Several tensors are sent together in the dtype of the first: the others are masks, which are exact in any
        # dtype.
        packed = torch.cat([each.flatten().to(dense[0].dtype) for each in dense]) if len(dense) > 1 else dense[0]
        gathering = self.channel.begin("all_gather", packed.flatten())

        def arrived() -> Context:
            pieces = gathering.wait().split([each.numel() for each in dense], 1)
            return tuple(
                torch.cat(piece.view(len(piece), *each.shape).unbind(), order.index(update.context_dim))
                .permute([order.index(dim) for dim in range(part.ndim)])
                .to(part.dtype)
                for piece, each, order, part in zip(pieces, dense, orders, parts, strict=True)
            )

        return arrived

    def _along(self, shard: Shard, dim: int) -> Stream:
        """Return this rank's part of a stream, cut along a dim."""
        if isinstance(self.within, Slabs):
            within = self.within
            return shard.along(dim, lambda local, cut: exchange_by_slabs(within, self.channel, as_local(local), cut))
        local = shard.along(dim)
        if shard.made_by is not None and not is_recomputing():
            cuts = self._cuts_used[shard.made_by, torch.is_grad_enabled()]
            if len(cuts) == shard.uses:
                cuts.append(dim)
            shard.uses += 1
            if len(cuts) > shard.uses:
                shard.start_exchange(cuts[shard.uses])
        return local

    def _own_rows(self, stream: Stream, span: slice) -> LocalStream:
        """Return this rank's rows and columns without padding."""
        if not isinstance(stream, Shard):
            return as_local(stream)[:, span]
        return as_local(self._along(stream, 1))[:, : span.stop - span.start, : stream.shape[2]]

    @torch.no_grad()
    def _fill(
        self,
        within: Slabs,
        make: Callable[..., Tensor],
        own: Sequence[LocalStream],
        first: tuple[Callable[..., Tensor], Sequence[LocalStream]],
        *,
        share: int,
        room: LocalStream | None,
    ) -> tuple[LocalStream, torch.Size]:
        """Return this rank's part of a new stream, in `room` or in new memory, and its shape without padding.

        `make` computes rows from the rows of the streams `own`, which have no padding. `first` is a function and
        streams that give one row, for its shape and dtype. `share` is the number of rows with padding.
        """
        if room is None:
            within.begin()
        like = within.first_row(*first)
        shape = like.shape
        if room is None:
            columns = (padded(shape[2], self.channel.group.size), *shape[3:]) if len(shape) == 4 else shape[2:]
            room = within.room(like, (shape[0], share, *columns))
        count = own[0].shape[1]
        real = room[:, :count, : shape[2]]
        if count:
            within.fill(make, own, real, like)
        for padding in (room[:, count:], room[:, :, shape[2] :]):
            if 0 not in padding.shape:
                padding.copy_(like.new_zeros(1))
        return room, shape

    def _cut(self, mask: Tensor, dim: int, *, shared: bool = False) -> Tensor:
        """Return this rank's part of a tensor that every rank has; with `shared`, dims of length 1 are not cut."""
        size, rank = self.channel.group.size, self.channel.group.rank
        for each in (1, 2):
            length = mask.shape[each]
            if shared and length == 1:
                continue
            if each == dim:
                share = padded(length, size) // size
                start, stop = (min(length, (rank + end) * share) for end in (0, 1))
                mask = pad_to(mask.narrow(each, start, stop - start), each, share)
            else:
                mask = pad_to(mask, each, padded(length, size))
        return mask

    def _new_shard(self, shard: Shard, local: Stream, cut: int, made_by: object) -> Shard:
        """Return the shard of an update's output: `shard` itself with a new part for slabs, else a new one.

        `local` is the new part, cut along dim `cut`.
        """
        if isinstance(self.within, Slabs):
            return shard.replace(local, cut)
        return Shard(self.channel, shard.shape, local, cut, made_by=made_by)


def _shard(stream: Stream) -> Shard:
    """Return a stream if it is a `Shard`; raise `TypeError` if not."""
    if not isinstance(stream, Shard):
        raise TypeError(f"a stream must come from `map_rows` of this executor, got {type(stream).__name__}")
    return stream


@torch.no_grad()
def exchange_by_slabs(
    within: Slabs, channel: Channel, local: Float[LocalStream, "b i j c"], cut: int
) -> Float[LocalStream, "b i_cut j_cut c"]:
    """Return this rank's part of a stream cut along dim `cut`; `local` is its part cut along the other dim.

    The ranks exchange a slab of rows or columns at a time, which the executor `within` chooses.
    """
    size, old = channel.group.size, 3 - cut
    shape, share = list(local.shape), local.shape[old]
    shape[old], shape[cut] = share * size, shape[cut] // size
    within.begin()
    room = within.room(torch.empty(0, dtype=local.dtype, device=local.device), shape)
    axis: Axis = "rows" if old == 1 else "columns"
    whole = transposed(local, axis)
    pattern = "b (n i) j c -> n b i j c" if cut == 1 else "b i (n j) c -> n b i j c"
    for part, (slab,), _ in within.visited([whole], _rows_at_once(within, whole)):
        arrived = channel.begin("all_to_all", rearrange(transposed(slab, axis), pattern, n=size)).wait()
        for rank, block in enumerate(arrived):
            place = slice(rank * share + part.start, rank * share + part.stop)
            room[:, place].copy_(block) if old == 1 else room[:, :, place].copy_(block)
    within.settle(room)
    return room


@torch.no_grad()
def multiply_triangles_by_slabs(
    within: Slabs,
    channel: Channel,
    update: Factored,
    stream: Float[LocalStream, "b i j c"],
    mask: Float[Tensor, "b i j"],
    *,
    axis: Axis,
) -> None:
    """Apply a triangle multiplication in place to a rank's part of the pair stream, cut along the update's axis."""
    rows, rows_mask = transposed(stream, axis), transposed(mask, axis)
    within.begin()
    products = _products(within, channel, update, rows, rows_mask)
    within.settle(stream)
    for _, (slab,), changed in within.visited([products], _rows_at_once(within, rows), rows):
        assert changed is not None
        changed.add_(update.change(changed, rearrange(slab, "b i c j -> b i j c")))


def _products(
    within: Slabs,
    channel: Channel,
    update: Factored,
    rows: Float[LocalStream, "b i k c_z"],
    mask: Float[Tensor, "b i k"],
) -> Float[LocalStream, "b i c k"]:
    """Return the products of the left operand of this rank's rows with the right operand of all ranks' rows."""
    b, share, k, c = *rows.shape[:3], update.channels
    at_once = _rows_at_once(within, rows)
    like = torch.empty(0, dtype=rows.dtype, device=rows.device)
    products = within.room(like, (b, share, c, k))
    step = max(1, c // (CHANNEL_GROUPS * channel.group.size))
    for channels in (slice(start, min(start + step, c)) for start in range(0, c, step)):
        own = like.new_empty(b, channels.stop - channels.start, share, k)
        for part, (slab, slab_mask), _ in within.visited([rows, mask], at_once):
            own[:, :, part] = update.operand(slab, slab_mask, "right", channels)
        right = channel.begin("all_gather", own).wait()
        del own
        for _, (slab, slab_mask), room in within.visited([rows, mask], at_once, products[:, :, channels]):
            assert room is not None
            left = update.operand(slab, slab_mask, "left", channels)
            for rank, theirs in enumerate(right):
                room[..., rank * share : (rank + 1) * share] = rearrange(
                    multiply(left, theirs.mT), "b c i j -> b i c j"
                )
    return products


def _rows_at_once(within: Slabs, rows: Float[LocalStream, "b i j c"]) -> int:
    """Return the number of rows of a stream in a slab of the executor."""
    row = rows.shape[0] * rows.shape[2] * rows.shape[3] * rows.dtype.itemsize
    return within.rows_at_once(rows, lambda: _TEMPORARIES_PER_ELEMENT * row)
