"""What an update does to its stream: add the change, of which dropout keeps a part."""

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.card import Card
from helixfold.ops.dispatch import Backend, operator, wants_gradient
from helixfold.ops.triton.refusal import refusal_of_kernels


def _refusal_of_triton(card: Card, stream: Tensor, change: Tensor, kept: Tensor | None = None) -> str | None:
    if torch.float64 in (stream.dtype, change.dtype) or stream.dtype != change.dtype:
        return "float64 and mixed dtypes are left to the reference"
    if kept is None and stream.stride() == change.stride():
        return "one addition does it where nothing is dropped and nothing is turned"
    if stream.numel() == 0 or stream.stride(-1) != 1:
        return "it takes rows whose channels follow each other"
    if wants_gradient(kept):
        return "the mask wants a gradient"
    return refusal_of_kernels(card)


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.residual:add_change_triton",
        refusal=_refusal_of_triton,
    )
)
def add_change(
    stream: Float[Tensor, "b i j c"],
    change: Float[Tensor, "b i j c"],
    kept: Float[Tensor, "b #i #j c"] | None = None,
) -> Float[Tensor, "b i j c"]:
    """Return the stream, which is not changed, plus `change` times `kept`, a mask that rows or columns share."""
    return stream + change if kept is None else torch.addcmul(stream, change, kept)
