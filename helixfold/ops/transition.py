"""Layer norm, two linear maps and the ReLU between them, on every element alone."""

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.cpu.transition import transition_rows
from helixfold.ops.dispatch import Backend, Op, refusal_of_wide_products, refusal_without_triton
from helixfold.ops.layer_norm import layer_norm
from helixfold.ops.linear import Affine, linear


def transition(
    x: Float[Tensor, "*batch c"], norm: Affine, expand: Affine, contract: Affine
) -> Float[Tensor, "*batch c"]:
    """AlphaFold 2, Suppl. Alg. 9 and 15."""
    return TRANSITION(x, norm, expand, contract)


def transition_reference(
    x: Float[Tensor, "*batch c"], norm: Affine, expand: Affine, contract: Affine
) -> Float[Tensor, "*batch c"]:
    """What `transition` means, in plain torch."""
    return linear(linear(layer_norm(x, norm), expand).relu(), contract)


def _refusal_of_rows(x: Tensor, norm: Affine, expand: Affine, contract: Affine) -> str | None:
    return "float64 is left to the reference" if x.dtype == torch.float64 else None


def _by_triton(x: Tensor, norm: Affine, expand: Affine, contract: Affine) -> Tensor:
    from helixfold.ops.triton.transition import transition_triton  # noqa: PLC0415 (triton is there with CUDA only)

    return transition_triton(x, norm, expand, contract)


def _refusal_of_triton(x: Tensor, norm: Affine, expand: Affine, contract: Affine) -> str | None:
    hidden, c = expand.weight.shape
    if reason := refusal_of_wide_products(x):
        return reason
    if c not in (32, 64, 128, 256) or hidden % 64 != 0:
        return f"{c} channels are not 32, 64, 128 or 256, or {hidden} hidden ones not a multiple of 64"
    if any(each.bias is None for each in (norm, expand, contract)):
        return "it adds an offset after every map"
    if x.ndim > 4 or x.numel() == 0 or x.stride(-1) != 1:
        return "it takes rows, in up to 3 dims, whose channels follow each other"
    return refusal_without_triton()


TRANSITION = Op(
    "transition",
    Backend(name="triton", devices=("cuda",), refusal=_refusal_of_triton, run=_by_triton),
    Backend(name="rows", devices=("cpu",), refusal=_refusal_of_rows, run=transition_rows),
    Backend(name="reference", run=transition_reference),
)
