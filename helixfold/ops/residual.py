"""What an update does to its stream: add the change, of which dropout keeps a part."""

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.card import Card
from helixfold.ops.dispatch import Backend, first_reason, operator, wants_gradient
from helixfold.ops.triton.refusal import refusal_of_kernels


def _refusal_of_triton(card: Card, stream: Tensor, change: Tensor, kept: Tensor | None = None) -> str | None:
    return first_reason(
        (
            torch.float64 in (stream.dtype, change.dtype) or stream.dtype != change.dtype,
            "float64 and mixed dtypes are left to the reference",
        ),
        (
            kept is None and stream.stride() == change.stride(),
            "one addition does it where nothing is dropped and nothing is turned",
        ),
        (stream.numel() == 0 or stream.stride(-1) != 1, "it takes rows whose channels follow each other"),
        (wants_gradient(kept), "the mask wants a gradient"),
    ) or refusal_of_kernels(card)


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
