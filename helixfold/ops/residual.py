"""What an update does to its stream: add the change, of which dropout keeps a part."""

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.dispatch import Backend, Op, refusal_without_triton, wants_gradient


def add_change(
    stream: Float[Tensor, "b i j c"],
    change: Float[Tensor, "b i j c"],
    kept: Float[Tensor, "b #i #j c"] | None = None,
) -> Float[Tensor, "b i j c"]:
    """A new stream: the old one, which is not changed, plus `change` times `kept`, a mask shared by rows or columns."""
    return ADD_CHANGE(stream, change, kept)


def add_change_reference(
    stream: Float[Tensor, "b i j c"],
    change: Float[Tensor, "b i j c"],
    kept: Float[Tensor, "b #i #j c"] | None = None,
) -> Float[Tensor, "b i j c"]:
    """What `add_change` means, in plain torch."""
    return stream + change if kept is None else torch.addcmul(stream, change, kept)


def _by_triton(stream: Tensor, change: Tensor, kept: Tensor | None = None) -> Tensor:
    from helixfold.ops.triton.residual import add_change_triton  # noqa: PLC0415 (triton is there with CUDA only)

    return add_change_triton(stream, change, kept)


def _refusal_of_triton(stream: Tensor, change: Tensor, kept: Tensor | None = None) -> str | None:
    if torch.float64 in (stream.dtype, change.dtype) or stream.dtype != change.dtype:
        return "float64 and mixed dtypes are left to the reference"
    if kept is None and stream.stride() == change.stride():
        return "one addition does it where nothing is dropped and nothing is turned"
    if stream.numel() == 0 or stream.stride(-1) != 1:
        return "it takes rows whose channels follow each other"
    if wants_gradient(kept):
        return "the mask wants a gradient"
    return refusal_without_triton()


ADD_CHANGE = Op(
    "add_change",
    Backend(name="triton", devices=("cuda",), refusal=_refusal_of_triton, run=_by_triton),
    Backend(name="reference", run=add_change_reference),
)
