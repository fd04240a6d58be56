"""Layer norm over channels, with gradients that are accurate in every dtype."""

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.card import Card
from helixfold.ops.constants import EPS
from helixfold.ops.dispatch import Backend, first_reason, operator, wants_gradient
from helixfold.ops.triton.refusal import refusal_of_kernels
from helixfold.ops.weights import Affine


def _refusal_of_triton(card: Card, x: Tensor, norm: Affine) -> str | None:
    return first_reason(
        (x.dtype == torch.float64, "float64 is left to the reference"),
        (
            norm.bias is None or x.ndim > 4 or x.shape[-1] > 512,
            "it takes up to 4 dims, 512 channels, scale and offset",
        ),
        (x.numel() == 0 or x.stride(-1) != 1, "it takes rows whose channels follow each other"),
    ) or refusal_of_kernels(card)


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.layer_norm:layer_norm_triton",
        refusal=_refusal_of_triton,
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.layer_norm:layer_norm_rows",
        refusal=lambda _, x, norm: first_reason(
            (x.dtype not in (torch.bfloat16, torch.float16), f"{x.dtype} needs no wider sums"),
            (not wants_gradient(x, *norm), "no gradients are asked for"),
        ),
    ),
)
def layer_norm(x: Float[Tensor, "*batch c"], norm: Affine) -> Float[Tensor, "*batch c"]:
    """Return the normalised channels times weight plus bias, in the dtype of `x`, with statistics in float32."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], *norm.to(x.dtype), EPS)
