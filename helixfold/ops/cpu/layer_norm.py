"""Layer norm on a CPU, with gradients that can be trusted in narrow dtypes."""

from typing import Any

import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.cpu.blocks import steps
from helixfold.ops.weights import Affine

# Of the float32 copies that the gradients of scale and offset are summed from.
CHUNK_ELEMENTS = 2**20


def layer_norm_rows(x: Tensor, norm: Affine) -> Tensor:
    """`layer_norm` on a CPU."""
    return _SummedInFloat32.apply(x, *norm.to(x.dtype))


class _SummedInFloat32(torch.autograd.Function):
    """PyTorch's CPU kernel adds up the gradients of scale and offset in the dtype of the input.

    In bfloat16 such a sum stands still at 256 times its terms: over 4,000 elements a third of the offset's gradient is
    lost, over 65,000 nearly all of it. Here these two sums are taken in float32.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        # With float32 parameters the kernel also keeps its statistics in float32.
        normed, mean, scale = torch.native_layer_norm(x, weight.shape, weight.float(), bias.float(), EPS)
        ctx.save_for_backward(x, weight, mean, scale)
        return normed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, mean, scale = ctx.saved_tensors
        gradient = gradient.contiguous()
        of_x, _, _ = torch.ops.aten.native_layer_norm_backward(
            gradient, x, weight.shape, mean, scale, weight.float(), None, [True, False, False]
        )
        of_weight, of_bias = torch.zeros(2, *weight.shape, device=x.device)
        size = max(1, CHUNK_ELEMENTS // weight.numel())
        rows = [each.reshape(-1, each.shape[-1]).split(size) for each in (gradient, x, mean, scale)]
        for gradients, values, means, scales in steps(zip(*rows, strict=True)):
            wide = gradients.float()
            of_weight += (wide * ((values.float() - means) * scales)).sum(0)
            of_bias += wide.sum(0)
        return of_x, of_weight.to(weight.dtype), of_bias.to(weight.dtype)
