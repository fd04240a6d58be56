"""What the kernels of attention share: which tile a program has, how tiles are read, and what a mask means.

A tensor comes to a kernel as a tuple of its address and its strides, without that of the channels, which is one.
`here` is a sample, a row and a head; `sizes` are the numbers of rows, heads, queries and keys. Logits are in units of
log 2, since processors have 2**x.
"""

from typing import no_type_check

import torch
from torch import Tensor

from helixfold.ops.constants import MASKED
from helixfold.ops.triton.language import cdiv, jit, kernel, next_power_of_2, tl

LOG2E = 1.4426950408889634
_PENALTY = tl.constexpr(MASKED * LOG2E)
# No tile has more queries or keys.
LARGEST_TILE = 128
# So many rows of a tile follow each other: they find its part of the bias in the second-level cache, however large
# the whole bias is, and their keys and values are few enough to stay there until the next tile.
_GROUP = 16
_EIGHT = tl.constexpr(8)
# A row of the bias is read 16 bytes at a time if its length and strides are multiples of this.
_ALIGNED = 16


def addressed(x: Tensor) -> tuple[Tensor | int, ...]:
    """A tensor as the kernels take it; a copy of it if its channels are apart or not in the eights of a head."""
    whole = x.stride(-1) == 1 and not any(each % _EIGHT.value for each in x.stride()[:-1])
    x = x if whole else x.contiguous()
    return (x, *x.stride()[:-1])


def aligned(bias: Tensor) -> Tensor:
    """The bias with rows that can be read fast, filled up with zeros; all rows of its sample read it again."""
    if bias.stride(-1) == 1 and not any(each % _ALIGNED for each in (bias.shape[-1], *bias.stride()[:-1])):
        return bias
    filled = bias.new_zeros(*bias.shape[:-1], cdiv(bias.shape[-1], _ALIGNED) * _ALIGNED)
    filled[..., : bias.shape[-1]] = bias
    return filled


def power_of_2(size: int, most: int) -> int:
    """The side of a tile that holds `size`: at least the 16 of a matrix product, at most `most`."""
    return min(most, max(16, next_power_of_2(size)))


def group_of(rows: int) -> int:
    """How many rows of a tile follow each other."""
    return min(rows, _GROUP)


def programs(rows: int, heads: int, tiles: int) -> int:
    """How many programs `place` needs."""
    return cdiv(rows, group_of(rows)) * group_of(rows) * heads * tiles


def effort(side: int) -> dict[str, int]:
    """Warps for tiles with so many queries or keys; two programs with the largest fit on a multiprocessor."""
    registers = {"maxnreg": 128} if side == LARGEST_TILE else {}
    return {"num_warps": max(1, side // 16), "num_stages": 2, **registers}


@jit
@no_type_check
def place(heads, tiles, group: tl.constexpr):
    """The row, head and tile of this program. The row may be behind the last one."""
    program = tl.program_id(0)
    shared = program // group
    row = shared // (tiles * heads) * group + program % group
    return row, shared // tiles % heads, shared % tiles


@jit
@no_type_check
def start(x, here):
    """Where the vectors of a head of a row begin."""
    sample, row, head = here
    at = sample * tl.cast(x[1], tl.int64) + row * tl.cast(x[2], tl.int64) + head * tl.cast(x[3], tl.int64)
    # Strides of 8 are not seen to be more than 1, and vectors would be read one number at a time.
    return x[0] + tl.multiple_of(at, _EIGHT)


@jit
@no_type_check
def numbers_at(x, here, sizes):
    """Where the numbers of a head of a row begin, one for each query."""
    rows, heads, queries, _ = sizes
    sample, row, head = here
    return x + ((tl.cast(sample, tl.int64) * rows + row) * heads + head) * queries


@jit
@no_type_check
def row_at(x, here, sizes):
    """Where the number of a row is."""
    return x + tl.cast(here[0], tl.int64) * sizes[0] + here[1]


@jit
@no_type_check
def tile_at(at, stride, first, size: tl.constexpr, width: tl.constexpr):
    """The addresses of `size` vectors from the `first` on."""
    vector = tl.arange(0, size)[:, None] * stride
    return at + first * tl.cast(stride, tl.int64) + vector + tl.arange(0, width)[None, :]


@jit
@no_type_check
def inside(first, count, size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr):
    """Which numbers of a tile there are."""
    return (first + tl.arange(0, size) < count)[:, None] & (tl.arange(0, width) < channels)[None, :]


@jit
@no_type_check
def read(x, here, first, count, size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr):
    """`size` vectors from the `first` on; what there is not, is zero."""
    at = tile_at(start(x, here), x[4], first, size, width)
    return tl.load(at, mask=inside(first, count, size, channels, width), other=0.0)


@jit
@no_type_check
def write(x, here, first, count, values, size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr):
    """Store what `read` reads, in the precision of where it goes."""
    at = tile_at(start(x, here), x[4], first, size, width)
    tl.store(at, values.to(x[0].dtype.element_ty), mask=inside(first, count, size, channels, width))


@jit
@no_type_check
def read_bias(bias, bias_keys, here, query, queries, key):
    """The bias of these queries (a column of indices) and keys (a row of them)."""
    at = bias[0] + here[0] * tl.cast(bias[1], tl.int64) + here[2] * tl.cast(bias[2], tl.int64)
    at += query * tl.cast(bias[3], tl.int64) + key
    return tl.load(at, mask=(query < queries) & (key < bias_keys), other=0.0)


@jit
@no_type_check
def penalty_of(penalty, here, first, size: tl.constexpr):
    """What the mask adds to the logits of some keys of a row."""
    at = penalty[0] + here[0] * tl.cast(penalty[1], tl.int64) + here[1] * tl.cast(penalty[2], tl.int64)
    return tl.load(at + first + tl.arange(0, size))


@kernel
@no_type_check
def _weigh(mask, penalty, alive, rows, keys, block: tl.constexpr):
    """One row of `weighed`."""
    sample, row = tl.program_id(1), tl.program_id(0)
    at = mask[0] + sample * tl.cast(mask[1], tl.int64) + row * tl.cast(mask[2], tl.int64)
    stride = tl.cast(mask[3], tl.int64)
    highest = tl.full([block], -float("inf"), tl.float32)
    for first in range(0, keys, block):
        key = first + tl.arange(0, block)
        highest = tl.maximum(highest, tl.load(at + key * stride, mask=key < keys, other=-float("inf")))
    top = tl.max(highest, 0)
    tl.store(alive + tl.cast(sample, tl.int64) * rows + row, tl.where(top > 0.5, 1.0, 0.0))
    penalty_at = penalty[0] + sample * tl.cast(penalty[1], tl.int64) + row * tl.cast(penalty[2], tl.int64)
    for first in range(0, keys, block):
        key = first + tl.arange(0, block)
        value = tl.load(at + key * stride, mask=key < keys, other=-float("inf"))
        tl.store(penalty_at + key, (value - top) * _PENALTY, mask=key < penalty[2])


def weighed(mask: Tensor) -> tuple[Tensor, Tensor]:
    """What the mask adds to logits, measured from each row's largest, and whether any key of a row counts (1 or 0).

    Behind the last key it is such that no tile has a share of what is not there. Where no key counts, the logits are
    lost in the rounding of what the mask adds to them, and all keys share alike. Here what is added is zero there,
    which leaves the sum of shares its precision, and the logits are to be multiplied by the 0.
    """
    b, n, k = mask.shape
    tile = power_of_2(k, LARGEST_TILE)
    penalty = mask.new_empty(b, n, cdiv(k, tile) * tile, dtype=torch.float32)
    alive = mask.new_empty(b, n, dtype=torch.float32)
    block = min(1024, next_power_of_2(penalty.shape[-1]))
    _weigh[(n, b)]((mask, *mask.stride()), addressed(penalty), alive, n, k, block=block)
    return penalty, alive
