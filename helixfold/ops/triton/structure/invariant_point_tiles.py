"""Common parts of the kernels of invariant point attention: reading and writing of one query's or some keys' tiles.

Kernels get a tensor as a tuple of its address and its strides. Channels of points count x, y and z of a point before
the next point. Tiles of keys have the dims [keys, heads, channels], padded to powers of 2.
"""

from typing import no_type_check

from torch import Tensor

from helixfold.ops.triton.language import jit, next_power_of_2, tl

# Keys of a tile: the values of all heads and points of 16 keys are 32 numbers for each of 256 threads.
BLOCK = 16


@jit
@no_type_check
def read_scalars(x, sample, residue, heads: tl.constexpr, channels: tl.constexpr, count, width):
    """Return channels [residues, heads, channels] of some residues of [b h r d]: `width` of `count` heads."""
    head, channel = tl.arange(0, heads)[None, :, None], tl.arange(0, channels)[None, None, :]
    at = x[0] + sample * x[1] + head * x[2] + residue[0][:, None, None] * x[3] + channel * x[4]
    return tl.load(at, mask=residue[1][:, None, None] & (head < count) & (channel < width), other=0.0)


@jit
@no_type_check
def read_points(x, sample, residue, heads: tl.constexpr, channels: tl.constexpr, count, width):
    """Return coordinates [residues, heads, channels] of some residues of [b h r p 3]."""
    head, channel = tl.arange(0, heads)[None, :, None], tl.arange(0, channels)[None, None, :]
    at = (
        x[0] + sample * x[1] + head * x[2] + residue[0][:, None, None] * x[3] + channel // 3 * x[4] + channel % 3 * x[5]
    )
    return tl.load(at, mask=residue[1][:, None, None] & (head < count) & (channel < width), other=0.0)


@jit
@no_type_check
def pair_at(pair, sample, row, key, c: tl.constexpr):
    return pair[0] + sample * pair[1] + row * pair[2] + key.to(tl.int64)[:, None] * pair[3] + tl.arange(0, c)[None, :]


@jit
@no_type_check
def read_weight(weight_at, scale, heads: tl.constexpr, c: tl.constexpr, count):
    """Return the map [heads, c] of normalised channels to the bias, with the norm's scale."""
    head, channel = tl.arange(0, heads)[:, None], tl.arange(0, c)[None, :]
    return tl.load(weight_at + head * c + channel, mask=head < count, other=0.0) * scale[None, :]


@jit
@no_type_check
def of_keys(at, sample, row, key, heads: tl.constexpr, sizes):
    """Return pointers [keys, heads] into an array [b h i j] of all pairs, and the mask of what exists."""
    rows, keys, count = sizes
    head = tl.arange(0, heads)
    place = ((sample * count + head[None, :]) * rows + row) * keys + key[:, None]
    return at + place, (key < keys)[:, None] & (head < count)[None, :]


@jit
@no_type_check
def means_at(program, heads: tl.constexpr, channels: tl.constexpr, count, width):
    """Return offsets [heads, channels] of a query residue in an array [b i h d], and the mask of what exists."""
    head, channel = tl.arange(0, heads)[:, None], tl.arange(0, channels)[None, :]
    return (tl.cast(program, tl.int64) * count + head) * width + channel, (head < count) & (channel < width)


@jit
@no_type_check
def points_at(program, heads: tl.constexpr, channels: tl.constexpr, count, points):
    """Return offsets [heads, channels] of a query residue in an array [b i 3 h p], and the mask of what exists."""
    head, channel = tl.arange(0, heads)[:, None], tl.arange(0, channels)[None, :]
    place = (tl.cast(program, tl.int64) * 3 + channel % 3) * count * points + head * points + channel // 3
    return place, (head < count) & (channel < 3 * points)


def with_strides(x: Tensor | None) -> tuple[Tensor | int, ...] | None:
    return None if x is None else (x, *x.stride())


def tiles(d: int, q: int, p: int, h: int) -> dict[str, int]:
    return {
        "heads": max(16, next_power_of_2(h)),
        "scalar_width": next_power_of_2(d),
        "query_width": next_power_of_2(3 * q),
        "value_width": next_power_of_2(3 * p),
        "block": BLOCK,
        "num_warps": 8,
    }
