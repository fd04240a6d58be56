"""Layer norm, two linear maps and the ReLU between them, on every element alone."""

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.cpu.transition import transition_rows
from helixfold.ops.dispatch import Backend, Op
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


TRANSITION = Op(
    "transition",
    Backend(name="rows", devices=("cpu",), refusal=_refusal_of_rows, run=transition_rows),
    Backend(name="reference", run=transition_reference),
)
