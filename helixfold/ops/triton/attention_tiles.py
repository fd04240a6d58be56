"""Common parts of the attention kernels: the tile of a program, reading and writing of tiles, and masks.

Kernels take a tensor as a tuple of its address and its strides, without the stride of the channels, which is 1.
`where` is a sample, a row and a head. `sizes` are the numbers of rows, heads, queries and keys. Logits are in units of
log 2, because GPUs compute 2**x.
"""

from typing import no_type_check

import torch
from torch import Tensor

from helixfold.ops.constants import MASKED
from helixfold.ops.triton.language import cdiv, jit, kernel, next_power_of_2, tl

# The factor from natural logits to units of log 2: log2(e).
LOG2E = 1.4426950408889634
_MASK_BIAS = tl.constexpr(MASKED * LOG2E)
# Maximum queries or keys of a tile.
LARGEST_TILE = 128
# Number of rows whose programs for one tile are consecutive. They find the bias of the tile in the L2 cache for any
# size of the whole bias, and their keys and values are few enough to stay there until the next tile.
_GROUP = 16
_EIGHT = tl.constexpr(8)
# Rows of a bias are read 16 bytes at a time if their length and strides are multiples of this.
_ALIGNED = 16


def with_strides(x: Tensor) -> tuple[Tensor | int, ...]:
    """Return a tuple of the tensor and its strides except the last, which is 1, as arguments of a kernel.

    The tensor is a contiguous copy if kernels do not support its layout.
    """
    is_suitable = x.stride(-1) == 1 and not any(stride % _EIGHT.value for stride in x.stride()[:-1])
    x = x if is_suitable else x.contiguous()
    return (x, *x.stride()[:-1])


def aligned(bias: Tensor) -> Tensor:
    """Return the bias with aligned rows, padded with zeros if needed, so that it is read 16 bytes at a time."""
    if bias.stride(-1) == 1 and not any(size % _ALIGNED for size in (bias.shape[-1], *bias.stride()[:-1])):
        return bias
    padded = bias.new_zeros(*bias.shape[:-1], cdiv(bias.shape[-1], _ALIGNED) * _ALIGNED)
    padded[..., : bias.shape[-1]] = bias
    return padded


def tile_size(size: int, maximum: int) -> int:
    """Return the side of a tile for `size` elements, a power of 2 from 16 (for matrix products) to `maximum`."""
    return min(maximum, max(16, next_power_of_2(size)))


def group_size(rows: int) -> int:
    """Return the number of rows whose programs for one tile are consecutive."""
    return min(rows, _GROUP)


def program_count(rows: int, heads: int, tiles: int) -> int:
    """Return the number of programs that `program_tile` needs, with rows rounded up to whole groups."""
    return cdiv(rows, group_size(rows)) * group_size(rows) * heads * tiles


def launch_options(side: int, *, stages: int = 2) -> dict[str, int]:
    """Return launch options for tiles with this side; two programs of the largest tiles fit on a multiprocessor."""
    registers = {"maxnreg": 128} if side == LARGEST_TILE else {}
    return {"num_warps": max(1, side // 16), "num_stages": stages, **registers}


@jit
@no_type_check
def program_tile(heads, tiles, group: tl.constexpr):
    """Return the row, head and tile of this program; the row may be after the last one."""
    program = tl.program_id(0)
    group_number = program // group
    row = group_number // (tiles * heads) * group + program % group
    return row, group_number // tiles % heads, group_number % tiles


@jit
@no_type_check
def head_start(x, where):
    """Return the address of the first vector of a head of a row."""
    sample, row, head = where
    offset = sample * tl.cast(x[1], tl.int64) + row * tl.cast(x[2], tl.int64) + head * tl.cast(x[3], tl.int64)
    # Without this hint, the compiler would read vectors one number at a time.
    return x[0] + tl.multiple_of(offset, _EIGHT)


@jit
@no_type_check
def query_scalars_at(x, where, sizes):
    """Return the address of the scalars of the queries in a head of a row, such as `logsum`."""
    rows, heads, queries, _ = sizes
    sample, row, head = where
    return x + ((tl.cast(sample, tl.int64) * rows + row) * heads + head) * queries


@jit
@no_type_check
def row_at(x, where, sizes):
    """Return the address of the scalar of a row, such as `has_keys`."""
    return x + tl.cast(where[0], tl.int64) * sizes[0] + where[1]


@jit
@no_type_check
def tile_at(at, stride, first, size: tl.constexpr, width: tl.constexpr):
    """Return the addresses of `size` vectors, starting at `first`."""
    vector = tl.arange(0, size)[:, None] * stride
    return at + first * tl.cast(stride, tl.int64) + vector + tl.arange(0, width)[None, :]


@jit
@no_type_check
def inside(first, count, size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr):
    """Return the mask of the elements of a tile that exist in the tensor."""
    return (first + tl.arange(0, size) < count)[:, None] & (tl.arange(0, width) < channels)[None, :]


@jit
@no_type_check
def read(x, where, first, count, size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr):
    """Return `size` vectors, starting at `first`, with zeros for elements that do not exist."""
    at = tile_at(head_start(x, where), x[4], first, size, width)
    return tl.load(at, mask=inside(first, count, size, channels, width), other=0.0)


@jit
@no_type_check
def write(x, where, first, count, values, size: tl.constexpr, channels: tl.constexpr, width: tl.constexpr):
    """Store `size` vectors, starting at `first`, in the dtype of `x`."""
    at = tile_at(head_start(x, where), x[4], first, size, width)
    tl.store(at, values.to(x[0].dtype.element_ty), mask=inside(first, count, size, channels, width))


@jit
@no_type_check
def read_bias(bias, bias_keys, where, query, queries, key):
    """Return the bias of these queries (a column of indices) and keys (a row of indices)."""
    at = bias[0] + where[0] * tl.cast(bias[1], tl.int64) + where[2] * tl.cast(bias[2], tl.int64)
    at += query * tl.cast(bias[3], tl.int64) + key
    return tl.load(at, mask=(query < queries) & (key < bias_keys), other=0.0)


@jit
@no_type_check
def read_mask_bias(mask_bias, where, first, size: tl.constexpr):
    """Return the mask bias of some keys of a row."""
    at = mask_bias[0] + where[0] * tl.cast(mask_bias[1], tl.int64) + where[1] * tl.cast(mask_bias[2], tl.int64)
    return tl.load(at + first + tl.arange(0, size))


@kernel
@no_type_check
def _mask_terms(mask, mask_bias, has_keys, rows, keys, block: tl.constexpr):
    """Compute `mask_terms` for one row."""
    sample, row = tl.program_id(1), tl.program_id(0)
    at = mask[0] + sample * tl.cast(mask[1], tl.int64) + row * tl.cast(mask[2], tl.int64)
    stride = tl.cast(mask[3], tl.int64)
    highest = tl.full([block], -float("inf"), tl.float32)
    for first in range(0, keys, block):
        key = first + tl.arange(0, block)
        highest = tl.maximum(highest, tl.load(at + key * stride, mask=key < keys, other=-float("inf")))
    top = tl.max(highest, 0)
    tl.store(has_keys + tl.cast(sample, tl.int64) * rows + row, tl.where(top > 0.5, 1.0, 0.0))
    mask_bias_at = mask_bias[0] + sample * tl.cast(mask_bias[1], tl.int64) + row * tl.cast(mask_bias[2], tl.int64)
    for first in range(0, keys, block):
        key = first + tl.arange(0, block)
        value = tl.load(at + key * stride, mask=key < keys, other=-float("inf"))
        tl.store(mask_bias_at + key, (value - top) * _MASK_BIAS, mask=key < mask_bias[2])


def mask_terms(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mask bias of keys relative to its maximum in a row, and 1 for rows with any unmasked key, else 0.

    In the last tile, the bias of keys after the last one is minus infinity. In fully masked rows, the reference rounds
    the logits away when it adds the bias, so all keys have equal weights. Here the bias of such rows is zero, which
    preserves the precision of the softmax denominator, and the kernels multiply their logits by 0.
    """
    b, n, k = mask.shape
    tile = tile_size(k, LARGEST_TILE)
    mask_bias = mask.new_empty(b, n, cdiv(k, tile) * tile, dtype=torch.float32)
    has_keys = mask.new_empty(b, n, dtype=torch.float32)
    block = min(1024, next_power_of_2(mask_bias.shape[-1]))
    _mask_terms[(n, b)]((mask, *mask.stride()), with_strides(mask_bias), has_keys, n, k, block=block)
    return mask_bias, has_keys
