"""Low-memory axial parallelism: exchange streams and multiply triangles slab by slab.

A rank holds its part of the stream and at most as much again. An all-to-all of the whole part would take three times
the part, and the gathered operand of a triangle multiplication is as large as the whole stream.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.execution.slabs import Held, Slabs
from helixfold.model.stream import Axis
from helixfold.model.update import Factored, transposed
from helixfold.ops.multiply import multiply
from helixfold.parallel.collectives import Channel

# Each rank makes an operand in this many groups of channels, which are gathered one at a time.
CHANNEL_GROUPS = 16
# Temporary elements for each element of a slab: send and receive buffers of an exchange; norms, projections and gates.
_TEMPORARIES = 8


@torch.no_grad()
def exchange_by_slabs(
    within: Slabs, channel: Channel, local: Float[Held, "b i j c"], cut: int
) -> Float[Held, "b i_cut j_cut c"]:
    """Return this rank's part of a stream cut along dim `cut`, given its part cut along the other dim."""
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
    stream: Float[Held, "b i j c"],
    mask: Float[Tensor, "b i j"],
    *,
    axis: Axis,
) -> None:
    """Apply a triangle multiplication in place to a rank's part of the pair stream, cut along the update's axis."""
    rows, rows_mask = transposed(stream, axis), transposed(mask, axis)
    within.begin()
    products = _products(within, channel, update, rows, rows_mask)
    within.settle(stream)
    for _, (some,), changed in within.visited([products], _rows_at_once(within, rows), rows):
        assert changed is not None
        changed.add_(update.change(changed, rearrange(some, "b i c j -> b i j c")))


def _products(
    within: Slabs, channel: Channel, update: Factored, rows: Float[Held, "b i k c_z"], mask: Float[Tensor, "b i k"]
) -> Float[Held, "b i c k"]:
    """Return the products of this rank's rows with the rows of all ranks."""
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


def _rows_at_once(within: Slabs, rows: Float[Held, "b i j c"]) -> int:
    row = rows.shape[0] * rows.shape[2] * rows.shape[3] * rows.dtype.itemsize
    return within.rows_at_once(_TEMPORARIES * row, rows)
