"""A layer norm and a narrow linear map behind it: what the pair stream's biases and the outer product are read with."""

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.cpu.norm_linear import norm_linear_rows
from helixfold.ops.dispatch import Backend, Op, refusal_without_triton
from helixfold.ops.layer_norm import layer_norm
from helixfold.ops.linear import Affine, linear


def norm_linear(x: Float[Tensor, "*batch c_in"], norm: Affine, project: Affine) -> Float[Tensor, "*batch c_out"]:
    """The normalised channels, mapped to a few."""
    return NORM_LINEAR(x, norm, project)


def norm_linear_reference(
    x: Float[Tensor, "*batch c_in"], norm: Affine, project: Affine
) -> Float[Tensor, "*batch c_out"]:
    """What `norm_linear` means, in plain torch."""
    return linear(layer_norm(x, norm), project)


def _refusal_of_rows(x: Tensor, *_: object, **__: object) -> str | None:
    return "float64 is left to the reference" if x.dtype == torch.float64 else None


def _refusal_of_triton(x: Tensor, norm: Affine, project: Affine) -> str | None:
    if reason := refusal_without_triton():
        return reason
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"{x.dtype} is left to the reference"
    if x.shape[-1] not in (64, 128, 256):
        return f"{x.shape[-1]} channels are not 64, 128 or 256"
    if len(project.weight) > 64:
        return f"{len(project.weight)} outputs are more than 64"
    if x.ndim > 4 or x.stride(-1) != 1 or 0 in x.shape:
        return "the stream is empty, has more than four dimensions or its channels do not follow each other"
    return None


def _by_triton(x: Tensor, norm: Affine, project: Affine) -> Tensor:
    from helixfold.ops.triton.norm_linear import norm_linear_triton  # noqa: PLC0415 (triton is there with CUDA only)

    return norm_linear_triton(x, norm, project)


NORM_LINEAR = Op(
    "norm_linear",
    Backend(name="triton", devices=("cuda",), refusal=_refusal_of_triton, run=_by_triton),
    Backend(name="rows", devices=("cpu",), refusal=_refusal_of_rows, run=norm_linear_rows),
    Backend(name="reference", run=norm_linear_reference),
)
