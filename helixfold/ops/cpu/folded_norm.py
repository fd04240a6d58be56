"""A layer norm folded into the maps behind it, for blocks of positions that stay in a processor's cache.

`W (x s + t) + b`, with the norm's scale s and offset t, is `W' x + b'` with `W' = W s` and `b' = b + W t`. What is
normalised is computed as such, in float32: folding the mean as well would lose digits where it is large.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.cpu.blocks import of_all_cores, parts, steps
from helixfold.ops.cpu.products import add_product
from helixfold.ops.weights import Affine

# Of a block, for each core: enough for fast products, and few enough for its cache.
POSITIONS = 2048
Index = tuple[int | slice, ...]


def folded(norm: Affine, *maps: Affine) -> tuple[Tensor, Tensor]:
    """W' and b' of maps of the same channels, side by side; autograd takes their gradients apart again."""
    weight = torch.cat([each.weight for each in maps]).float()
    bias = weight.new_zeros(len(weight)) if norm.bias is None else weight @ norm.bias.float()
    if any(each.bias is not None for each in maps):
        given = [weight.new_zeros(len(each.weight)) if each.bias is None else each.bias.float() for each in maps]
        bias = bias + torch.cat(given)
    return weight * norm.weight.float(), bias


def block_rows(rows: int, columns: int) -> Iterator[slice]:
    """Slices of rows that have about as many positions as are in a block."""
    return parts(rows, of_all_cores(POSITIONS) // max(columns, 1))


def blocks(shape: Sequence[int]) -> Iterator[Index]:
    """Indices of leading dims, each of them good for about as many positions as are in a block."""
    if not shape:
        yield ()
        return
    # The first dim whose every index has no more positions than a block.
    dim = next(dim for dim in range(len(shape)) if prod(shape[dim + 1 :]) <= of_all_cores(POSITIONS))
    for index in product(*(steps(range(size)) for size in shape[:dim])):
        for rows in block_rows(shape[dim], prod(shape[dim + 1 :])):
            yield (*index, rows)


def normalised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Positions less their means and by their deviations in float32 [m, c], and one by these deviations [m, 1]."""
    # Several passes in the cache take half the time of PyTorch's one.
    values = torch.empty(x.shape, device=x.device).copy_(x).view(-1, x.shape[-1])
    values.sub_(values.mean(1, keepdim=True))
    scale = torch.linalg.vector_norm(values, dim=1, keepdim=True).square_().div_(x.shape[-1]).add_(EPS).rsqrt_()
    return values.mul_(scale), scale


def norm_gradient(gradient: Tensor, values: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write the gradient of what was normalised to these values, from theirs in float32."""
    still, one = torch.zeros_like(scale), torch.ones_like(scale)
    found = torch.ops.aten.native_layer_norm_backward(
        gradient, values, values.shape[1:], still, one, None, None, [True, False, False]
    )[0]
    torch.mul(found.view(out.shape), scale.view(*out.shape[:-1], 1), out=out)


class MapGradient:
    """The gradients of a map's weight and bias, summed over blocks in float32."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = torch.zeros(weight.shape, device=weight.device)
        self.bias = self.weight.new_zeros(len(weight))

    def add(self, gradient: Tensor, values: Tensor) -> None:
        """What a block adds: the gradient of the map's output [out, m], and its input [m, in]."""
        add_product(self.weight, gradient, values)
        self.bias += gradient.sum(1, dtype=torch.float32)
