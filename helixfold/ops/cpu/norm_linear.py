"""Layer norm and a narrow map on a CPU: positions stay in the cache between the two, and only the stream is saved."""

from typing import Any

import torch
from torch import Tensor

from helixfold.ops.cpu.folded_norm import MapGradient, blocks, folded, norm_gradient, normalised
from helixfold.ops.cpu.products import mapped, product
from helixfold.ops.precision import product_dtype
from helixfold.ops.weights import Affine


def norm_linear_rows(x: Tensor, norm: Affine, project: Affine) -> Tensor:
    """`norm_linear` on a CPU."""
    return _NormLinear.apply(x, *folded(norm, project))


class _NormLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        weight, bias = (each.to(product_dtype(x.dtype)) for each in (weight, bias))
        found = x.new_empty(*x.shape[:-1], len(weight))
        for block in blocks(x.shape[:-1]):
            values, _ = normalised(x[block])
            found[block] = mapped(values.to(weight.dtype), weight, bias).view(found[block].shape)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        of_map = MapGradient(weight)
        of_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        weight = weight.to(product_dtype(x.dtype))
        for block in blocks(x.shape[:-1]):
            values, scale = normalised(x[block])
            of_mapped = gradient[block].reshape(-1, len(weight)).to(weight.dtype)
            of_map.add(of_mapped.mT, values.to(weight.dtype))
            if of_x is not None:
                norm_gradient(product(of_mapped, weight).float(), values, scale, of_x[block])
        return of_x, of_map.weight, of_map.bias
