"""Layer norm on a CPU, with gradients that are accurate in bfloat16 and float16."""

from typing import Any

import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.cpu.blocks import steps
from helixfold.ops.weights import Affine

# Elements of the float32 copies from which the gradients of scale and offset are summed.
CHUNK_ELEMENTS = 2**20


def layer_norm_rows(x: Tensor, norm: Affine) -> Tensor:
    """Compute `layer_norm` on a CPU."""
    return _SummedInFloat32.apply(x, *norm.to(x.dtype))


class _SummedInFloat32(torch.autograd.Function):
    """PyTorch's layer norm with the gradients of scale and offset summed in float32.

    PyTorch's CPU kernel sums them in the input's dtype. In bfloat16 such a sum stops growing at 256 times its terms:
    over 4,000 elements a third of the offset's gradient is lost, over 65,000 nearly all.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        # With float32 parameters the kernel's statistics are float32 too.
        normed, mean, scale = torch.native_layer_norm(x, weight.shape, weight.float(), bias.float(), EPS)
        ctx.save_for_backward(x, weight, mean, scale)
        return normed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        gradient = gradient.contiguous()
        grad_x, _, _ = torch.ops.aten.native_layer_norm_backward(
            gradient, x, weight.shape, mean, scale, weight.float(), None, [True, False, False]
        )
        if not any(ctx.needs_input_grad[1:]):
            return grad_x, None, None
        grad_weight, grad_bias = torch.zeros(2, *weight.shape, device=x.device)
        size = max(1, CHUNK_ELEMENTS // weight.numel())
        rows = [tensor.reshape(-1, tensor.shape[-1]).split(size) for tensor in (gradient, x, mean, scale)]
        for gradients, values, means, scales in steps(zip(*rows, strict=True)):
            float32_gradients = gradients.float()
            grad_weight += (float32_gradients * ((values.float() - means) * scales)).sum(0)
            grad_bias += float32_gradients.sum(0)
        return grad_x, grad_weight.to(weight.dtype), grad_bias.to(weight.dtype)
