"""Axial parallelism in little memory: streams exchanged, and triangles multiplied, a part at a time.

A rank holds its part of the stream and at most as much again. Exchanging all of it at once would take three times its
part, and the operand of a triangle multiplication, gathered, is as large as all parts together.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.execution.slabs import Slabs
from helixfold.model.triangle import TriangleMultiplication
from helixfold.model.update import Axis, turned
from helixfold.parallel.collectives import Channel

# Of a triangle's channels so many parts are made on each rank: what is gathered at once is that part of a stream shared
# by all ranks, beside the two that each has.
PARTS = 16
# Elements of temporaries for each of a slab: of an exchange, what is sent and what arrives; norms, maps and gates.
_SMALL = 8


@torch.no_grad()
def exchanged_in_parts(
    within: Slabs, channel: Channel, local: Float[Tensor, "b i j c"], cut: int
) -> Float[Tensor, "b i j c"]:
    """This rank's part of a stream cut along dim `cut`, from that cut along the other one."""
    size, old = channel.group.size, 3 - cut
    shape, share = list(local.shape), local.shape[old]
    shape[old], shape[cut] = share * size, shape[cut] // size
    within.begin()
    room = within.room(local, shape)
    axis: Axis = "rows" if old == 1 else "columns"
    whole = turned(local, axis)
    for part, (slab,), _ in within.visited([whole], _rows_at_once(within, whole)):
        blocks = rearrange(
            turned(slab, axis), "b (n i) j c -> n b i j c" if cut == 1 else "b i (n j) c -> n b i j c", n=size
        )
        arrived = channel.exchange(blocks).wait()
        for rank, block in enumerate(arrived):
            room.narrow(old, rank * share + part.start, part.stop - part.start).copy_(block)
        within.touched(room)
    within.settle(room)
    return room


@torch.no_grad()
def multiplied_in_parts(
    within: Slabs,
    channel: Channel,
    update: TriangleMultiplication,
    stream: Float[Tensor, "b i j c"],
    mask: Float[Tensor, "b i j"],
) -> None:
    """Change a rank's part of the pair stream in place, cut along the update's axis."""
    rows, rows_mask = turned(stream, update.axis), turned(mask, update.axis)
    within.begin()
    products = _products(within, channel, update, rows, rows_mask)
    within.settle(stream)
    for _, (some,), changed in within.visited([products], _rows_at_once(within, rows), rows):
        assert changed is not None
        changed.add_(update.joined(changed, rearrange(some, "b i c j -> b i j c")))


def _products(
    within: Slabs,
    channel: Channel,
    update: TriangleMultiplication,
    rows: Float[Tensor, "b i k c"],
    mask: Float[Tensor, "b i k"],
) -> Float[Tensor, "b i c j"]:
    """Of a rank's rows with those of all."""
    b, share, k, c = *rows.shape[:3], update.channels
    at_once = _rows_at_once(within, rows)
    products = within.room(rows, (b, share, c, k))
    step = max(1, c // (PARTS * channel.group.size))
    for channels in (slice(start, min(start + step, c)) for start in range(0, c, step)):
        own = rows.new_empty(b, channels.stop - channels.start, share, k)
        for part, (slab, slab_mask), _ in within.visited([rows, mask], at_once):
            own[:, :, part] = update.operand(slab, slab_mask, "right", channels)
        right = channel.gather(own).wait()
        del own
        for _, (slab, slab_mask), room in within.visited([rows, mask], at_once, products[:, :, channels]):
            assert room is not None
            left = update.operand(slab, slab_mask, "left", channels)
            for rank, theirs in enumerate(right):
                room[..., rank * share : (rank + 1) * share] = rearrange(left @ theirs.mT, "b c i j -> b i c j")
    return products


def _rows_at_once(within: Slabs, rows: Float[Tensor, "b i j c"]) -> int:
    return within.rows_at_once(_SMALL * rows[:, :1].numel(), rows)
