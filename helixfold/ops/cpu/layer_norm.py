"""Layer norm on a CPU, with accurate gradients in bfloat16 and float16."""

from typing import Any

import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.cpu.blocks import steps
from helixfold.ops.cpu.fused_norm import Statistics, add_scaled_norm_gradient
from helixfold.ops.sizes import loops_if_large
from helixfold.ops.weights import Affine

# Elements whose gradients are computed at a time, because PyTorch copies them to float32 for the sums over positions.
CHUNK_ELEMENTS = 2**20


def layer_norm_rows(x: Tensor, norm: Affine) -> Tensor:
    """Compute `layer_norm` on a CPU, with the gradients of scale and offset summed in float32."""
    return _SummedInFloat32.apply(x, *norm.to(x.dtype))


class _SummedInFloat32(torch.autograd.Function):
    """PyTorch's layer norm with the gradients of scale and offset summed in float32.

    PyTorch's CPU kernel sums them in the dtype of the input. In bfloat16, such a sum stops growing at 256 times its
    terms: with 4,000 elements a third of the gradient of the offset is lost, with 65,000 nearly all of it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the layer norm in the dtype of `x`, and save the statistics of positions in float32."""
        # With float32 parameters, the kernel computes float32 statistics.
        normed, mean, scale = torch.native_layer_norm(x, weight.shape, weight.float(), bias.float(), EPS)
        ctx.save_for_backward(x, weight, bias, mean, scale)
        return normed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of input, scale and offset, computed chunk by chunk."""
        x, weight, bias, mean, scale = ctx.saved_tensors
        channels, norm = len(weight), Affine(weight.float(), bias.float())
        grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        grad_norm = torch.zeros(2, channels, device=x.device)
        size = max(1, CHUNK_ELEMENTS // channels)
        chunks = (each.reshape(-1, each.shape[-1]).split(size) for each in (gradient, x, mean, scale, grad_x))
        with loops_if_large(x.numel()):
            for gradients, values, means, scales, out in steps(zip(*chunks, strict=True)):
                add_scaled_norm_gradient(grad_norm, gradients, values, norm, Statistics(means, scales), out)
        grad_weight, grad_bias = grad_norm.to(weight.dtype)
        return grad_x, grad_weight, grad_bias
