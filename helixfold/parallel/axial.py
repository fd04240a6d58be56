"""Dynamic axial parallelism: updates of streams of which every rank has some rows, or some columns.

An update needs its stream cut along the axis that it is independent along: a stream that is cut along the other one is
exchanged first (one all-to-all), and what it must know of the whole is gathered from what each rank computed of its
part (one all-gather). FastFold (arXiv 2203.00854) gave it the name.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from helixfold.execution.recompute import is_recomputing
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.triangle import TriangleMultiplication
from helixfold.model.update import Axis, Context, Executor, Source, Update
from helixfold.parallel.collectives import Channel
from helixfold.parallel.mesh import Group, Mesh
from helixfold.parallel.shard import Shard, padded, sharded, widened
from helixfold.parallel.sparing import exchanged_in_parts, multiplied_in_parts

_DIM: dict[Axis, int] = {"rows": 1, "columns": 2}


class Axial(Executor):
    """Carries out updates with the other ranks of a group, each on its part of the streams as `within` does.

    All ranks run the same program on the same features, with the same random numbers. Within `Whole` it is for training
    and wherever memory is plenty: streams are exchanged early if it was seen before that they will be needed cut the
    other way, so that other work is done meanwhile. Within `Slabs` or `Spilled` a rank has no more than its part of two
    streams, and a little.
    """

    def __init__(self, group: Group, within: Whole | Slabs | None = None) -> None:
        self.within = Whole() if within is None else within
        self.channel = Channel(group)
        if isinstance(self.within, Slabs):
            self.within.sharers = group.size
        # Along which dims the streams that an update makes are asked for, one after another.
        self._asked: dict[tuple[object, bool], list[int]] = defaultdict(list)

    def __call__(self, update: Update, stream: Tensor, mask: Tensor, source: Source | None = None) -> Tensor:
        shard = _shard(stream)
        dim = shard.cut if update.elementwise else _DIM[update.axis]
        read, read_mask = (stream, mask) if source is None else source
        kept = update.kept(shard.shape, dtype=shard.dtype, device=shard.device)
        if isinstance(self.within, Slabs) and isinstance(update, TriangleMultiplication):
            local = self._along(shard, dim)
            multiplied_in_parts(self.within, self.channel, update, local, self._cut(mask, dim))
            self.within.settle(local)
            return self._made(shard, local, dim, update)
        # Waited for as late as can be.
        context = self._context(update, _shard(read), read_mask)
        local, aligned = self._along(shard, dim), (stream, mask)
        if update.reads_source:
            along = _DIM[update.source_axis]
            aligned = self._along(_shard(read), along), self._cut(read_mask, along)
        if kept is not None:
            kept = self._cut(kept, dim, shared=True)
        changed = self.within.changed(update, local, self._cut(mask, dim), aligned, context=context(), kept=kept)
        return self._made(shard, changed, dim, update)

    def each(self, make: Callable[..., Tensor], *along: Tensor, workspace: int, into: Tensor | None = None) -> Tensor:
        length, size = along[0].shape[1], self.channel.group.size
        share = padded(length, size) // size
        span = slice(*(min(length, (self.channel.group.rank + each) * share) for each in (0, 1)))
        own = [self._own_rows(each, span) for each in along]
        # Where padding is all that this rank has, what is made of it tells the shape.
        one = own if span.start < span.stop else [self._own_rows(each, slice(0, 1)) for each in along]
        if isinstance(self.within, Slabs):
            room = None if into is None else self._along(_shard(into), 1)
            local, shape = self._filled(self.within, make, own, workspace, one=one, share=share, room=room)
        else:
            made = make(*own) if span.start < span.stop else make(*one)[:, :0]
            shape = made.shape
            local = widened(made, 1, share)
            if local.ndim == 4:
                local = widened(local, 2, padded(shape[2], size))
        if into is not None and isinstance(self.within, Slabs):
            return cast(Tensor, _shard(into).become(local, 1))
        whole = torch.Size((shape[0], length, *shape[2:]))
        return cast(Tensor, Shard(self.channel, whole, local, 1))

    def first_rows(self, stream: Tensor, count: int) -> Tensor:
        shard = _shard(stream)
        b, _, *rest = shard.shape
        local = widened(self._along(shard, 2)[:, :count], 1, padded(count, self.channel.group.size))
        return cast(Tensor, Shard(self.channel, torch.Size((b, count, *rest)), local, 2))

    def whole(self, stream: Tensor) -> Tensor:
        shard = _shard(stream)
        local = shard.along(shard.cut)
        found = _joined(self.channel.gather(local).wait(), shard.cut)
        for dim in (1, 2):
            found = found.narrow(dim, 0, shard.shape[dim])
        return found

    def _context(self, update: Update, read: Shard, mask: Tensor) -> Callable[[], Context]:
        """Computes this rank's part of a context, starts to gather it, and gives what waits for the whole."""
        if type(update).context is Update.context:
            return tuple
        along = _DIM[update.source_axis]
        parts = self.within.context(update, self._along(read, along), self._cut(mask, along))
        # Dims stay in the order of memory, which whoever reads the whole may rely on.
        orders = [sorted(range(part.ndim), key=part.stride, reverse=True) for part in parts]
        dense = [part.permute(order) for part, order in zip(parts, orders, strict=True)]
        # Several travel together in the dtype of the first: the others are masks, which are exact in any.
        packed = torch.cat([each.flatten().to(dense[0].dtype) for each in dense]) if len(dense) > 1 else dense[0]
        gathering = self.channel.gather(packed.flatten())

        def arrived() -> Context:
            pieces = gathering.wait().split([each.numel() for each in dense], 1)
            return tuple(
                _joined(piece.view(-1, *each.shape), order.index(update.context_dim))
                .permute([order.index(dim) for dim in range(part.ndim)])
                .to(part.dtype)
                for piece, each, order, part in zip(pieces, dense, orders, parts, strict=True)
            )

        return arrived

    def _along(self, shard: Shard, dim: int) -> Tensor:
        """This rank's part of a stream cut along that dim."""
        if isinstance(self.within, Slabs):
            within = self.within
            return shard.along(dim, lambda local, cut: exchanged_in_parts(within, self.channel, local, cut))
        local = shard.along(dim)
        if shard.made_by is not None and not is_recomputing():
            asked = self._asked[shard.made_by, torch.is_grad_enabled()]
            if len(asked) == shard.asked:
                asked.append(dim)
            shard.asked += 1
            if len(asked) > shard.asked:
                shard.start(asked[shard.asked])
        return local

    def _own_rows(self, tensor: Tensor, span: slice) -> Tensor:
        """The real rows that this rank has, with their real columns."""
        shard = sharded(tensor)
        if shard is None:
            return tensor[:, span]
        return self._along(shard, 1)[:, : span.stop - span.start, : shard.shape[2]]

    @torch.no_grad()
    def _filled(
        self,
        within: Slabs,
        make: Callable[..., Tensor],
        own: Sequence[Tensor],
        workspace: int,
        *,
        one: Sequence[Tensor],
        share: int,
        room: Tensor | None,
    ) -> tuple[Tensor, torch.Size]:
        """This rank's part of a new stream, in the room that there is, and the shape of its real rows."""
        if room is None:
            within.begin()
        like = make(*(each[:, :1] for each in one))
        shape = like.shape
        if room is None:
            columns = (padded(shape[2], self.channel.group.size), *shape[3:]) if len(shape) == 4 else shape[2:]
            room = within.room(like, (shape[0], share, *columns))
        real = room[:, : own[0].shape[1], : shape[2]]
        if real.shape[1]:
            within.each(make, *own, workspace=workspace, into=real)
        for padding in (room[:, real.shape[1] :], room[:, :, shape[2] :]):
            if padding.numel():
                padding.zero_()
        within.touched(room)
        return room, shape

    def _cut(self, mask: Tensor, dim: int, *, shared: bool = False) -> Tensor:
        """This rank's part of what every rank has; a dim of length 1 is left if it is `shared` by all."""
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

    def _made(self, shard: Shard, local: Tensor, cut: int, by: object) -> Tensor:
        if isinstance(self.within, Slabs):
            return cast(Tensor, shard.become(local, cut))
        return cast(Tensor, Shard(self.channel, shard.shape, local, cut, made_by=by))


def on_mesh(mesh: Mesh, within: Whole | Slabs) -> Executor:
    """What carries out updates on a rank of the mesh: with the others of its axial group, if it has one."""
    return within if mesh.axial.size == 1 else Axial(mesh.axial, within)


def _shard(stream: Tensor) -> Shard:
    shard = sharded(stream)
    if shard is None:
        raise TypeError(f"a stream must come from the executor's own `each`, got {type(stream).__name__}")
    return shard


def _joined(parts: Tensor, dim: int) -> Tensor:
    return torch.cat(parts.unbind(), dim)
