"""Layer norm over channels, with gradients that can be trusted in every dtype."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.dispatch import Backend, Op, refusal_without_triton, wants_gradient
from helixfold.ops.linear import Affine

# Added to the variance (AlphaFold 2; DeepMind's program).
EPS = 1e-5
# Of the float32 copies that the gradients of scale and offset are summed from.
CHUNK_ELEMENTS = 2**20


def layer_norm(x: Float[Tensor, "*batch c"], norm: Affine) -> Float[Tensor, "*batch c"]:
    """Normalised channels times scale plus offset, in the dtype of `x`; statistics are taken in float32."""
    return LAYER_NORM(x, norm)


def layer_norm_reference(x: Float[Tensor, "*batch c"], norm: Affine) -> Float[Tensor, "*batch c"]:
    """What `layer_norm` means, in plain torch."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], *norm.to(x.dtype), EPS)


def _summed_in_float32(x: Tensor, norm: Affine) -> Tensor:
    normed: Tensor = _SummedInFloat32.apply(x, *norm.to(x.dtype))
    return normed


def _refusal_to_sum(x: Tensor, norm: Affine) -> str | None:
    if x.dtype not in (torch.bfloat16, torch.float16):
        return f"{x.dtype} needs no wider sums"
    return None if wants_gradient(x, *norm) else "no gradients are asked for"


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
        of_weight, of_bias = torch.zeros(2, *weight.shape)
        size = max(1, CHUNK_ELEMENTS // weight.numel())
        rows = [each.reshape(-1, each.shape[-1]).split(size) for each in (gradient, x, mean, scale)]
        for gradients, values, means, scales in zip(*rows, strict=True):
            wide = gradients.float()
            of_weight += (wide * ((values.float() - means) * scales)).sum(0)
            of_bias += wide.sum(0)
        return of_x, of_weight.to(weight.dtype), of_bias.to(weight.dtype)


def _by_triton(x: Tensor, norm: Affine) -> Tensor:
    from helixfold.ops.triton.layer_norm import layer_norm_triton  # noqa: PLC0415 (triton is there with CUDA only)

    return layer_norm_triton(x, norm)


def _refusal_of_triton(x: Tensor, norm: Affine) -> str | None:
    if x.dtype == torch.float64:
        return "float64 is left to the reference"
    if norm.bias is None or x.ndim > 4 or x.shape[-1] > 512:
        return "it takes up to 4 dims, 512 channels, scale and offset"
    if x.numel() == 0 or x.stride(-1) != 1:
        return "it takes rows whose channels follow each other"
    return refusal_without_triton()


LAYER_NORM = Op(
    "layer_norm",
    Backend(name="triton", devices=("cuda",), refusal=_refusal_of_triton, run=_by_triton),
    Backend(name="rows", devices=("cpu",), refusal=_refusal_to_sum, run=_summed_in_float32),
    Backend(name="reference", run=layer_norm_reference),
)
