"""What kernels share that take a stream in tiles of positions: where they lie, and their norms and maps."""

from typing import no_type_check

import torch

from helixfold.ops.card import card_of
from helixfold.ops.constants import EPS
from helixfold.ops.triton.language import jit, tl

_EPS = tl.constexpr(EPS)


@jit
@no_type_check
def spot(tile, tiles, positions, block: tl.constexpr):
    """Sample, positions and which of them exist, of one of all samples' tiles; each sample has so many."""
    position = tile % tiles * block + tl.arange(0, block)
    return (tile // tiles).to(tl.int64), position, position < positions


@jit
@no_type_check
def strided(sample, position, columns, sample_stride, row_stride, column_stride):
    """Offsets [positions] in a stream of rows and columns, either of which may be the outer ones."""
    row = (position // columns).to(tl.int64)
    column = (position % columns).to(tl.int64)
    return sample * sample_stride + row * row_stride + column * column_stride


@jit
@no_type_check
def channels_first(sample, position, positions, first, c: tl.constexpr, part: tl.constexpr):
    """Offsets [positions, part] of some channels in an array [b, c, positions]."""
    channel = sample * c + first + tl.arange(0, part)
    return channel[None, :] * positions + position[:, None]


@jit
@no_type_check
def normalised(x, c: tl.constexpr):
    """The rows of a tile [positions, c] without scale and offset, and the reciprocals of their deviations; float32."""
    x = x.to(tl.float32)
    centred = x - (tl.sum(x, 1) / c)[:, None]
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / c + _EPS)
    return centred * scale[:, None], scale


@jit
@no_type_check
def scaled(normed, norm_at, norm_offset_at, c: tl.constexpr):
    channel = tl.arange(0, c)
    return normed * tl.load(norm_at + channel)[None, :] + tl.load(norm_offset_at + channel)[None, :]


@jit
@no_type_check
def read_normed(at, there, norm_at, norm_offset_at, c: tl.constexpr):
    """A tile [positions, c] behind its norm, in the dtype in which it lies."""
    x = tl.load(at, mask=there[:, None], other=0.0)
    return scaled(normalised(x, c)[0], norm_at, norm_offset_at, c).to(x.dtype)


@jit
@no_type_check
def weight_rows(weight_at, first, c: tl.constexpr, part: tl.constexpr):
    """Some rows [part, c] of a map's weight."""
    return tl.load(weight_at + (first + tl.arange(0, part))[:, None] * c + tl.arange(0, c)[None, :])


@jit
@no_type_check
def norm_gradient(gradient, normed, scale, norm_at, c: tl.constexpr):
    """The gradient of what was normalised, from that of what was scaled."""
    gradient *= tl.load(norm_at + tl.arange(0, c))[None, :]
    mean = tl.sum(gradient, 1) / c
    slope = tl.sum(gradient * normed, 1) / c
    return (gradient - mean[:, None] - normed * slope[:, None]) * scale[:, None]


@jit
@no_type_check
def sum_norm(sums_at, gradient, normed, c: tl.constexpr):
    """This tile's part of the gradients of scale and offset, [2, c]."""
    channel = tl.arange(0, c)
    tl.store(sums_at + channel, tl.sum(gradient * normed, 0))
    tl.store(sums_at + c + channel, tl.sum(gradient, 0))


def programs_at_once(device: torch.device) -> int:
    """Return among how many programs tiles are shared whose sums are kept."""
    # Kernels that are interpreted run one program after another; a few let their sums be added up.
    card = card_of(device)
    return card.multiprocessors if card.kind == "cuda" else 4
