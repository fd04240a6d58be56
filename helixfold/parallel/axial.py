"""Dynamic axial parallelism: updates of streams of which every rank has some rows, or some columns.

An update needs its stream cut along the axis that it is independent along: a stream that is cut along the other one is
exchanged first (one all-to-all), and what it must know of the whole is gathered from what each rank computed of its
part (one all-gather). FastFold (arXiv 2203.00854) gave it the name.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from helixfold.execution.recompute import is_recomputing
from helixfold.execution.slabs import Held, Slabs, held
from helixfold.execution.whole import Whole
from helixfold.model.stream import DIM
from helixfold.model.update import Context, ContextInput, Executor, Factored, Stream, Update, as_tensor
from helixfold.parallel.collectives import Channel, Traffic
from helixfold.parallel.low_memory_axial import exchanged_in_parts, multiplied_in_parts
from helixfold.parallel.mesh import Group
from helixfold.parallel.shard import Shard, padded, widened


class Axial(Executor):
    """Carries out updates with the other ranks of a group, each on its part of the streams as `within` does.

    All ranks run the same program on the same features, with the same random numbers. Within `Whole` it is for training
    and wherever memory is plenty: streams are exchanged early if it was seen before that they will be needed cut the
    other way, so that other work is done meanwhile. Within `Slabs` or `Spilled` a rank has no more than its part of two
    streams, and a little.
    """

    def __init__(self, group: Group, within: Whole | Slabs | None = None, traffic: Traffic | None = None) -> None:
        self.within = Whole() if within is None else within
        self.channel = Channel(group, traffic)
        if isinstance(self.within, Slabs):
            self.within.sharers = group.size
        # Along which dims the streams that an update makes are asked for, one after another.
        self._asked: dict[tuple[object, bool], list[int]] = defaultdict(list)

    def __call__(self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None = None) -> Shard:
        shard = _shard(stream)
        dim = shard.cut if update.elementwise else DIM[update.axis]
        given, given_mask = (stream, mask) if context_from is None else context_from
        dropout_mask = update.dropout_mask(shard.shape, dtype=shard.dtype, device=shard.device)
        if isinstance(self.within, Slabs) and isinstance(update, Factored):
            part = held(self._along(shard, dim))
            multiplied_in_parts(self.within, self.channel, update, part, self._cut(mask, dim), axis=update.axis)
            self.within.settle(part)
            return self._made(shard, part, dim, update)
        # Waited for as late as can be.
        context = self._context(update, _shard(given), given_mask)
        local, rows = self._along(shard, dim), (stream, mask)
        if update.reads_context_rows:
            along = DIM[update.context_axis]
            rows = self._along(_shard(given), along), self._cut(given_mask, along)
        if dropout_mask is not None:
            dropout_mask = self._cut(dropout_mask, dim, shared=True)
        changed = self.within.apply(
            update, local, self._cut(mask, dim), rows, context=context(), dropout_mask=dropout_mask
        )
        return self._made(shard, changed, dim, update)

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
        local = widened(own, 1, padded(count, self.channel.group.size))
        return Shard(self.channel, torch.Size((b, count, *rest)), local, 2)

    def gather(self, stream: Stream) -> Tensor:
        shard = _shard(stream)
        local = self.within.gather(shard.along(shard.cut))
        found = torch.cat(self.channel.begin("all_gather", local).wait().unbind(), shard.cut)
        for dim in (1, 2):
            found = found.narrow(dim, 0, shard.shape[dim])
        return found

    def _map(self, make: Callable[..., Tensor], streams: Sequence[Stream], replaced: Shard | None) -> Shard:
        """Make this rank's rows of a stream, in the memory of the one that is replaced if there is any."""
        length, size = streams[0].shape[1], self.channel.group.size
        share = padded(length, size) // size
        span = slice(*(min(length, (self.channel.group.rank + each) * share) for each in (0, 1)))
        own = [self._own_rows(each, span) for each in streams]
        is_padding = span.start == span.stop

        def made(rows: slice, *slabs: Tensor) -> Tensor:
            return make(slice(span.start + rows.start, span.start + rows.stop), *slabs)

        # Where padding is all that this rank has, what is made of the first row tells the shape.
        make_one = make if is_padding else made
        one = [self._own_rows(each, slice(0, 1)) for each in streams] if is_padding else own
        if isinstance(self.within, Slabs):
            room = None if replaced is None else held(self._along(replaced, 1))
            local, shape = self._filled(self.within, made, own, (make_one, one), share=share, room=room)
        else:
            tensors = [as_tensor(each) for each in one]
            rows = make_one(slice(0, 1), *tensors)[:, :0] if is_padding else self.within.map_rows(made, *own)
            shape = rows.shape
            whole_rows = widened(rows, 1, share)
            local = widened(whole_rows, 2, padded(shape[2], size)) if rows.ndim == 4 else whole_rows
        if replaced is not None and isinstance(self.within, Slabs):
            return replaced.become(local, 1)
        return Shard(self.channel, torch.Size((shape[0], length, *shape[2:])), local, 1)

    def _context(self, update: Update, given: Shard, mask: Tensor) -> Callable[[], Context]:
        """Compute this rank's part of a context, start to gather it, and return what waits for the whole."""
        if type(update).context is Update.context:
            return tuple
        along = DIM[update.context_axis]
        parts = self.within.context(update, self._along(given, along), self._cut(mask, along))
        # Dims stay in the order of memory, which whoever reads the whole may rely on.
        orders = [sorted(range(part.ndim), key=part.stride, reverse=True) for part in parts]
        dense = [part.permute(order) for part, order in zip(parts, orders, strict=True)]
        # Several travel together in the dtype of the first: the others are masks, which are exact in any.
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
        """Return this rank's part of a stream cut along that dim."""
        if isinstance(self.within, Slabs):
            within = self.within
            return shard.along(dim, lambda local, cut: exchanged_in_parts(within, self.channel, held(local), cut))
        local = shard.along(dim)
        if shard.made_by is not None and not is_recomputing():
            asked = self._asked[shard.made_by, torch.is_grad_enabled()]
            if len(asked) == shard.asked:
                asked.append(dim)
            shard.asked += 1
            if len(asked) > shard.asked:
                shard.start(asked[shard.asked])
        return local

    def _own_rows(self, stream: Stream, span: slice) -> Held:
        """Return the real rows that this rank has, with their real columns."""
        if not isinstance(stream, Shard):
            return held(stream)[:, span]
        return held(self._along(stream, 1))[:, : span.stop - span.start, : stream.shape[2]]

    @torch.no_grad()
    def _filled(
        self,
        within: Slabs,
        make: Callable[..., Tensor],
        own: Sequence[Held],
        first: tuple[Callable[..., Tensor], Sequence[Held]],
        *,
        share: int,
        room: Held | None,
    ) -> tuple[Held, torch.Size]:
        """Return this rank's part of a new stream, in the room that there is, and the shape of its real rows."""
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
        """Return this rank's part of what every rank has; a dim of length 1 is left if it is `shared` by all."""
        size, rank = self.channel.group.size, self.channel.group.rank
        for each in (1, 2):
            length = mask.shape[each]
            if shared and length == 1:
                continue
            if each == dim:
                share = padded(length, size) // size
                start, stop = (min(length, (rank + end) * share) for end in (0, 1))
                mask = widened(mask.narrow(each, start, stop - start), each, share)
            else:
                mask = widened(mask, each, padded(length, size))
        return mask

    def _made(self, shard: Shard, local: Stream, cut: int, by: object) -> Shard:
        if isinstance(self.within, Slabs):
            return shard.become(local, cut)
        return Shard(self.channel, shard.shape, local, cut, made_by=by)


def _shard(stream: Stream) -> Shard:
    if not isinstance(stream, Shard):
        raise TypeError(f"a stream must come from the executor's own `map_rows`, got {type(stream).__name__}")
    return stream
