"""Triton's language, with stand-ins if Triton is not installed, and kernels that can be launched on meta tensors.

A launch on meta tensors computes nothing. It calls one PyTorch operator on the tensors, so that code that counts
operators counts the launch. The module also has functions that kernels share: offsets into streams, layer norms and
reading of weights.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, no_type_check

import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.device_properties import properties_of
from helixfold.ops.triton.requirements import triton_is_there

__all__ = [
    "FLOAT32",
    "HALF",
    "Kernel",
    "cdiv",
    "channels_first_offsets",
    "exchanged",
    "jit",
    "kernel",
    "multiplies_from_shared_memory",
    "next_power_of_2",
    "norm_gradient",
    "normalised",
    "programs_at_once",
    "read_normed",
    "scaled",
    "stream_offsets",
    "sum_norm",
    "tile_positions",
    "tl",
    "watched",
    "weight_rows",
]

_LIBRARY = torch.library.Library("helixfold", "DEF")
_LIBRARY.define("launch(str name, Tensor[] tensors) -> ()")
_LIBRARY.impl("launch", lambda name, tensors: None, "Meta")
_RECORDED = torch.ops.helixfold.launch.default


def cdiv(dividend: int, divisor: int) -> int:
    """Return the quotient of two integers, rounded up."""
    return -(-dividend // divisor)


def next_power_of_2(size: int) -> int:
    """Return the smallest power of 2 that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()


if triton_is_there():
    # Fuse multiplications and additions, also in releases of Triton that do so only on request.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    from triton import jit
    from triton import language as tl
else:

    def jit(function: Callable[..., None]) -> Callable[..., None]:
        """Return the function unchanged, because it cannot be compiled without Triton."""
        return function

    class tl:  # type: ignore[no-redef]  # noqa: N801 (the name of triton's module)
        """Stand-in for the names of Triton's language that kernel definitions use."""

        @no_type_check
        class constexpr:  # noqa: N801
            def __init__(self, value):
                self.value = value


class Kernel:
    """A Triton kernel, which is launched by `kernel[grid](...)`.

    Its first argument is a tensor or a tuple that starts with one. Functions called by kernels are decorated with `jit`
    instead.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.name, self.__doc__ = function.__name__, function.__doc__
        self.jitted: Any = jit(function)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *args: Any, **kwargs: Any) -> None:
        """Launch the kernel with `grid` programs, or record a launch on meta tensors."""
        if _watch is not None:
            _watch(self, grid, args, kwargs)
        if next(_tensors(args)).is_meta:
            self.record(*args)
        else:
            self.jitted[grid](*args, **kwargs)

    def record(self, *args: Any) -> None:
        """Call the PyTorch operator that represents a launch on meta tensors."""
        # Each tensor is counted once, because absent arguments are often replaced by another argument.
        _RECORDED(self.name, list({id(tensor): tensor for tensor in _tensors(args)}.values()))


# Decorator of kernels.
kernel = Kernel

_Watch = Callable[[Kernel, tuple[int, ...], tuple[Any, ...], dict[str, Any]], None]
# A global for all threads, because autograd computes gradients in other threads.
_watch: _Watch | None = None


@contextmanager
def watched(watch: _Watch) -> Iterator[None]:
    """Call `watch` before every launch, with the kernel, its grid and its arguments."""
    global _watch  # noqa: PLW0603 (one for the process)
    earlier, _watch = _watch, watch
    try:
        yield
    finally:
        _watch = earlier


def _tensors(arguments: tuple[Any, ...]) -> Iterator[Tensor]:
    """Yield the tensors among the arguments of a launch, also those inside tuples."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, tuple):
            yield from _tensors(argument)


_EPS = tl.constexpr(EPS)
# Launch options of kernels that are mostly matrix products, by precision.
FLOAT32: dict[str, Any] = {"precision": "ieee", "num_warps": 8, "num_stages": 1}
HALF: dict[str, Any] = {"precision": None, "num_warps": 8, "num_stages": 2}


@jit
@no_type_check
def tile_positions(tile, tiles, positions, block: tl.constexpr):
    """Return the sample and the positions of a tile, and the mask of existing positions; a sample has `tiles` tiles."""
    position = tile % tiles * block + tl.arange(0, block)
    return (tile // tiles).to(tl.int64), position, position < positions


@jit
@no_type_check
def stream_offsets(sample, position, columns, sample_stride, row_stride, column_stride):
    """Return offsets [positions] into a stream, which may be transposed."""
    row = (position // columns).to(tl.int64)
    column = (position % columns).to(tl.int64)
    return sample * sample_stride + row * row_stride + column * column_stride


@jit
@no_type_check
def channels_first_offsets(sample, position, positions, first, c: tl.constexpr, part: tl.constexpr):
    """Return offsets [positions, part] of some channels in an array [b, c, positions]."""
    channel = sample * c + first + tl.arange(0, part)
    return channel[None, :] * positions + position[:, None]


@jit
@no_type_check
def normalised(x, c: tl.constexpr):
    """Return a normalised tile [positions, c] without scale and offset, and the reciprocal standard deviations."""
    x = x.to(tl.float32)
    centred = x - (tl.sum(x, 1) / c)[:, None]
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / c + _EPS)
    return centred * scale[:, None], scale


@jit
@no_type_check
def scaled(normed, norm_at, norm_offset_at, c: tl.constexpr):
    """Return normalised positions [positions, c] times the scale of a norm plus its offset."""
    channel = tl.arange(0, c)
    scale, offset = tl.load(norm_at + channel).to(tl.float32), tl.load(norm_offset_at + channel).to(tl.float32)
    return normed * scale[None, :] + offset[None, :]


@jit
@no_type_check
def read_normed(at, exists, norm_at, norm_offset_at, c: tl.constexpr):
    """Read a tile [positions, c] from addresses `at` and return its layer norm, in the dtype of the tensor."""
    x = tl.load(at, mask=exists[:, None], other=0.0)
    return scaled(normalised(x, c)[0], norm_at, norm_offset_at, c).to(x.dtype)


@jit
@no_type_check
def weight_rows(weight_at, first, c: tl.constexpr, part: tl.constexpr):
    """Return some rows [part, c] of a linear map's weight."""
    return tl.load(weight_at + (first + tl.arange(0, part))[:, None] * c + tl.arange(0, c)[None, :])


@jit
@no_type_check
def norm_gradient(gradient, normed, scale, norm_at, c: tl.constexpr):
    """Return the gradient of the input of a layer norm, given the gradient of its output."""
    gradient *= tl.load(norm_at + tl.arange(0, c)).to(tl.float32)[None, :]
    mean = tl.sum(gradient, 1) / c
    slope = tl.sum(gradient * normed, 1) / c
    return (gradient - mean[:, None] - normed * slope[:, None]) * scale[:, None]


@jit
@no_type_check
def sum_norm(sums_at, gradient, normed, c: tl.constexpr):
    """Store the partial sums of this tile for the gradients of scale and offset, [2, c]."""
    channel = tl.arange(0, c)
    tl.store(sums_at + channel, tl.sum(gradient * normed, 0))
    tl.store(sums_at + c + channel, tl.sum(gradient, 0))


@jit
@no_type_check
def exchanged(x, i: tl.constexpr, j: tl.constexpr, k: tl.constexpr, m: tl.constexpr):
    """Rearrange a tile from [(i j) (k m)] to [(i k) (j m)]."""
    return tl.reshape(tl.permute(tl.reshape(x, (i, j, k, m)), (0, 2, 1, 3)), (i * k, j * m))


def multiplies_from_shared_memory(device: torch.device) -> bool:
    """Return whether matrix instructions read operands from shared memory, as in compute capability 9 to 11.

    For devices without a compute capability, such as CPUs with Triton's interpreter, return True. Other GPUs read
    operands from registers, which then hold smaller tiles.
    """
    capability = properties_of(device).capability
    return capability is None or (9, 0) <= capability < (12, 0)


def programs_at_once(device: torch.device) -> int:
    """Return the number of programs for kernels that loop over tiles: one per multiprocessor of a GPU, else 4."""
    # Triton's interpreter runs programs one after another. Four are enough to test that partial sums are added.
    properties = properties_of(device)
    return properties.multiprocessors if properties.kind == "cuda" else 4
