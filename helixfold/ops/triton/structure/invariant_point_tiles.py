"""Common parts of the kernels of invariant point attention: reading tiles of one query or of some keys.

Tiles of residues are [residues, heads, channels], padded to powers of 2. The pair is a tuple of its address and its
strides.
"""

from typing import no_type_check

from torch import Tensor

from helixfold.ops.triton.language import jit, tl

# Keys of a tile: the values of all heads and points of 16 keys are 32 elements per thread, with 256 threads.
BLOCK = 16


@jit
@no_type_check
def read_channels(
    at, sample, residue, residues, first, heads: tl.constexpr, channels: tl.constexpr, count, used, width
):
    """Return a tile of an array [b h r width]: the `used` channels, starting at `first`, of `count` heads."""
    head, channel = tl.arange(0, heads)[None, :, None], tl.arange(0, channels)[None, None, :]
    at += ((sample * count + head) * residues + residue[0][:, None, None]) * width + first + channel
    return tl.load(at, mask=residue[1][:, None, None] & (head < count) & (channel < used), other=0.0)


@jit
@no_type_check
def read_points(at, sample, residue, residues, first, heads: tl.constexpr, points: tl.constexpr, count, used, width):
    """Return coordinates [residues, heads, 4 * points] of an array: x, y and z of the `used` points, then zeros."""
    head, channel = tl.arange(0, heads)[None, :, None], tl.arange(0, 4 * points)[None, None, :]
    axis, point = channel // points, channel % points
    at += ((sample * count + head) * residues + residue[0][:, None, None]) * width + first + axis * used + point
    inside = residue[1][:, None, None] & (head < count) & (axis < 3) & (point < used)
    return tl.load(at, mask=inside, other=0.0)


@jit
@no_type_check
def pair_at(pair, sample, row, key, c: tl.constexpr):
    """Return pointers [keys, c] to one query's elements of the pair."""
    return pair[0] + sample * pair[1] + row * pair[2] + key.to(tl.int64)[:, None] * pair[3] + tl.arange(0, c)[None, :]


@jit
@no_type_check
def read_weight(weight_at, scale, heads: tl.constexpr, c: tl.constexpr, count):
    """Return the map [heads, c] from normalised channels to the bias, times the scale of the norm."""
    head, channel = tl.arange(0, heads)[:, None], tl.arange(0, c)[None, :]
    return tl.load(weight_at + head * c + channel, mask=head < count, other=0.0) * scale[None, :]


@jit
@no_type_check
def of_keys(at, sample, row, key, heads: tl.constexpr, sizes):
    """Return pointers [keys, heads] to one query's elements of an array [b h i j], and the mask of existing ones.

    `row` is the query i, and `key` the indices j of several keys. `sizes` are the numbers of queries, keys and heads of
    the array; `heads` is the number of heads padded to a power of 2.
    """
    rows, keys, count = sizes
    head = tl.arange(0, heads)
    place = ((sample * count + head[None, :]) * rows + row) * keys + key[:, None]
    return at + place, (key < keys)[:, None] & (head < count)[None, :]


@jit
@no_type_check
def means_at(heads: tl.constexpr, channels: tl.constexpr, count, width):
    """Return offsets [heads, channels] into an array [h d] of one residue, and the mask of existing elements."""
    head, channel = tl.arange(0, heads)[:, None], tl.arange(0, channels)[None, :]
    return head * width + channel, (head < count) & (channel < width)


def with_strides(x: Tensor | None) -> tuple[Tensor | int, ...] | None:
    return None if x is None else (x, *x.stride())
