"""Layer norms fused into the linear maps behind them, for blocks of positions that stay in a processor's cache.

`W (x s + t) + b`, with the norm's scale s and offset t, is `W' x + b'` with `W' = W s` and `b' = b + W t`. The mean is
not fused, since that would lose digits where it is large: x is normalised in float32 first.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.cpu.blocks import for_all_cores, slices, steps
from helixfold.ops.cpu.products import add_product
from helixfold.ops.weights import Affine

# Positions of a block per core: enough for fast matrix products, few enough for its cache.
POSITIONS = 2048
Index = tuple[int | slice, ...]


def fused(norm: Affine, *maps: Affine) -> tuple[Tensor, Tensor]:
    """Return W' and b' of maps of the same channels, concatenated, in float32; autograd passes through."""
    weight = torch.cat([affine.weight for affine in maps]).float()
    bias = weight.new_zeros(len(weight)) if norm.bias is None else weight @ norm.bias.float()
    if any(affine.bias is not None for affine in maps):
        zeros = weight.new_zeros(len(weight))
        biases = [zeros[: len(affine.weight)] if affine.bias is None else affine.bias.float() for affine in maps]
        bias = bias + torch.cat(biases)
    return weight * norm.weight.float(), bias


def block_rows(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices of rows with about as many positions as a block."""
    return slices(rows, for_all_cores(POSITIONS) // max(columns, 1))


def position_blocks(shape: Sequence[int]) -> Iterator[Index]:
    """Yield indices into dims of this shape, each for about as many positions as a block."""
    if not shape:
        yield ()
        return
    # The first dim whose single indices have no more positions than a block.
    dim = next(dim for dim in range(len(shape)) if prod(shape[dim + 1 :]) <= for_all_cores(POSITIONS))
    for index in product(*(steps(range(size)) for size in shape[:dim])):
        for rows in block_rows(shape[dim], prod(shape[dim + 1 :])):
            yield (*index, rows)


def normalised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return normalised positions [m, c] without scale and offset, and their reciprocal deviations [m, 1], float32."""
    # Several passes in the cache take half the time of PyTorch's layer norm.
    values = torch.empty(x.shape, device=x.device).copy_(x).view(-1, x.shape[-1])
    values.sub_(values.mean(1, keepdim=True))
    scale = torch.linalg.vector_norm(values, dim=1, keepdim=True).square_().div_(x.shape[-1]).add_(EPS).rsqrt_()
    return values.mul_(scale), scale


def norm_gradient(gradient: Tensor, values: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write the gradient of the input of `normalised` into `out`, from that of its results `values` and `scale`."""
    mean, rstd = torch.zeros_like(scale), torch.ones_like(scale)
    grad_centred = torch.ops.aten.native_layer_norm_backward(
        gradient, values, values.shape[1:], mean, rstd, None, None, [True, False, False]
    )[0]
    torch.mul(grad_centred.view(out.shape), scale.view(*out.shape[:-1], 1), out=out)


class MapGradient:
    """Sums over blocks of the gradients of a linear map's weight and bias, in float32; None for those not `needed`."""

    def __init__(self, weight: Tensor, needed: Sequence[bool]) -> None:
        needs_weight, needs_bias = needed
        self.weight = torch.zeros(weight.shape, device=weight.device) if needs_weight else None
        self.bias = torch.zeros(len(weight), device=weight.device) if needs_bias else None

    def add(self, gradient: Tensor, values: Tensor) -> None:
        """Add a block's part, from the gradient of the map's output [out, m] and its input [m, in]."""
        if self.weight is not None:
            add_product(self.weight, gradient, values)
        if self.bias is not None:
            self.bias += gradient.sum(1, dtype=torch.float32)
