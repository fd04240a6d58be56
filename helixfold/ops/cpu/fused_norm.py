"""Layer norms fused into the following linear maps, for blocks of positions that stay in the cache of a processor.

`W (x s + t) + b`, with the scale s and offset t of the norm, is `W' x + b'` with `W' = W s` and `b' = b + W t`. The
mean is not fused, because a large mean would cost precision: x is normalised in float32 first.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.cpu.blocks import for_all_cores, slices, steps
from helixfold.ops.cpu.loops import compiled
from helixfold.ops.cpu.products import add_product
from helixfold.ops.cpu.products import product as matrix_product
from helixfold.ops.weights import Affine

# Positions of a block, per core: enough for fast matrix products, few enough for its cache.
POSITIONS = 2048
# Elements of a block that are summed at a time, because PyTorch copies lower precisions to float32 for sums.
_SUMMED_ELEMENTS = 2**19
# Index of a block in the leading dims of a stream: integers, then one slice.
Index = tuple[int | slice, ...]


def fused(norm: Affine, *maps: Affine) -> tuple[Tensor, Tensor]:
    """Return the weight W' and bias b' that include the norm, for one or more maps of it, concatenated, in float32.

    The result is differentiable.
    """
    weight = torch.cat([affine.weight for affine in maps]).float()
    bias = weight.new_zeros(len(weight)) if norm.bias is None else weight @ norm.bias.float()
    if any(affine.bias is not None for affine in maps):
        zeros = weight.new_zeros(len(weight))
        biases = [zeros[: len(affine.weight)] if affine.bias is None else affine.bias.float() for affine in maps]
        bias = bias + torch.cat(biases)
    return weight * norm.weight.float(), bias


def block_rows(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices of `rows` rows of `columns` positions, each with at most `POSITIONS` positions per core."""
    return slices(rows, for_all_cores(POSITIONS) // max(columns, 1))


def position_blocks(shape: Sequence[int]) -> Iterator[Index]:
    """Yield indices into dimensions of this shape, each for about the number of positions of a block."""
    if not shape:
        yield ()
        return
    # The first dimension in which one index has at most the positions of a block.
    dim = next(dim for dim in range(len(shape)) if prod(shape[dim + 1 :]) <= for_all_cores(POSITIONS))
    for index in product(*(steps(range(size)) for size in shape[:dim])):
        for rows in block_rows(shape[dim], prod(shape[dim + 1 :])):
            yield (*index, rows)


class Statistics(NamedTuple):
    """Means and reciprocal standard deviations of the channels of positions [m, c], each [m, 1] in float32."""

    mean: Tensor
    scale: Tensor


def normalised(x: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Statistics]:
    """Return positions [m, c] after a layer norm without scale and offset, and their statistics."""
    if x.ndim in (2, 3) and (loops := compiled("norm_map", x)):
        values, mean, scale = loops.normalised(x, dtype)
        return values, Statistics(mean, scale)
    # In the cache, these operators take half the time of PyTorch's layer norm.
    values = torch.empty(x.shape, device=x.device).copy_(x).view(-1, x.shape[-1])
    mean = values.mean(1, keepdim=True)
    values.sub_(mean)
    scale = torch.linalg.vector_norm(values, dim=1, keepdim=True).square_().div_(x.shape[-1]).add_(EPS).rsqrt_()
    return values.mul_(scale).to(dtype), Statistics(mean, scale)


def norm_gradient(gradient: Tensor, x: Tensor, statistics: Statistics, out: Tensor) -> None:
    """Write the gradient of the input `x` of `normalised` into `out`, given the gradient of its output [m, c]."""
    if x.ndim in (2, 3) and x.dtype == out.dtype and (loops := compiled("norm_map", gradient, x, out)):
        loops.write_gradient(gradient.contiguous(), x, *statistics, out)
        return
    positions = x.reshape(gradient.shape)
    if gradient.dtype != x.dtype:
        gradient, positions = gradient.float(), positions.float()
    # With a float32 weight, PyTorch computes in float32 for any dtype of the other arguments.
    weight = torch.ones(x.shape[-1], device=x.device)
    gradients = torch.ops.aten.native_layer_norm_backward(
        gradient.contiguous(), positions, weight.shape, *statistics, weight, None, [True, False, False]
    )
    out.copy_(gradients[0].view(out.shape))


def scaled_norm(x: Tensor, norm: Affine, dtype: torch.dtype) -> tuple[Tensor, Statistics]:
    """Return positions [m, c] after a layer norm with scale and offset, computed in float32, and their statistics."""
    if loops := compiled("norm_map", x):
        values, mean, scale = loops.normalised(x, dtype, norm)
    else:
        values, mean, scale = torch.native_layer_norm(x.float(), norm.weight.shape, norm.weight, norm.bias, EPS)
    return values.to(dtype), Statistics(mean, scale)


def add_scaled_norm_gradient(
    total: Tensor, gradient: Tensor, x: Tensor, norm: Affine, statistics: Statistics, out: Tensor
) -> None:
    """Write the gradient of the input `x` of `scaled_norm` into `out`, given the gradient of its output [m, c].

    Add the gradients of scale and offset to `total` [2, c].
    """
    if loops := compiled("norm_map", gradient, x, out):
        total += torch.stack(loops.write_gradient(gradient.contiguous(), x, *statistics, out, norm))
        return
    grad_x, grad_scale, grad_offset = torch.ops.aten.native_layer_norm_backward(
        gradient.float(), x.float(), norm.weight.shape, *statistics, norm.weight, norm.bias, [True, True, True]
    )
    out.copy_(grad_x)
    total += torch.stack((grad_scale, grad_offset))


class MapGradient:
    """The gradients of the weight and bias of a linear map, summed over blocks in float32; None if not needed."""

    def __init__(self, *, needs_weight: bool, needs_bias: bool) -> None:
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        self._needs_weight, self._needs_bias = needs_weight, needs_bias

    def add(self, gradient: Tensor, values: Tensor) -> None:
        """Add the gradients of a block, given the gradient of the map's output [out, m] and its input [m, in]."""
        if self._needs_weight and self.weight is None:
            # The first term determines the memory layout of the sum, which suits the later terms.
            self.weight = matrix_product(gradient, values).float()
        elif self.weight is not None:
            add_product(self.weight, gradient, values)
        if self._needs_bias and self.bias is None:
            self.bias = torch.zeros(len(gradient), device=gradient.device)
        if self.bias is not None:
            _add_row_sums(self.bias, gradient)


def _add_row_sums(sums: Tensor, x: Tensor) -> None:
    """Add the sum of each row to float32 sums in place."""
    if loops := compiled("sums", x if x.stride(1) == 1 else x.mT):
        loops.add_row_sums(sums, x)
    else:
        for part in x.split(max(1, _SUMMED_ELEMENTS // len(x)), 1):
            sums += part.sum(1, dtype=torch.float32)
