"""A linear map of a narrow dtype on a processor that has no products of it: blocks of it are mapped in float32."""

from typing import Any

import torch
from torch import Tensor

from helixfold.ops.cpu.folded_norm import MapGradient, blocks
from helixfold.ops.cpu.products import mapped, product
from helixfold.ops.weights import Affine


def linear_in_float32(x: Tensor, parameters: Affine) -> Tensor:
    """`linear` on such a CPU; a training pass keeps its arguments only."""
    return _Linear.apply(x, *parameters)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        weight, bias = Affine(weight, bias).to(torch.float32)
        found = x.new_empty(*x.shape[:-1], len(weight))
        for block in blocks(x.shape[:-1]):
            rows = x[block].reshape(-1, x.shape[-1]).float()
            found[block] = mapped(rows, weight, bias).view(found[block].shape)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        of_map = MapGradient(weight)
        of_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        wide = weight.float()
        for block in blocks(x.shape[:-1]):
            of_mapped = gradient[block].reshape(-1, len(weight)).float()
            if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
                of_map.add(of_mapped.mT, x[block].reshape(-1, x.shape[-1]).float())
            if of_x is not None:
                of_x[block] = product(of_mapped, wide).view(of_x[block].shape)
        return of_x, of_map.weight.to(weight.dtype), None if bias is None else of_map.bias.to(bias.dtype)
