"""Linear maps whose arithmetic follows the activations' dtype, whatever the parameters are stored in."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.cpu.products import mapped
from helixfold.ops.dispatch import Backend, Op, wants_gradient


class Affine(NamedTuple):
    """The parameters of a linear map, weight [out, in] and offset [out], or scale and offset [c] of a norm."""

    weight: Tensor
    bias: Tensor | None = None

    def to(self, dtype: torch.dtype) -> "Affine":
        return Affine(self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))


def linear(x: Float[Tensor, "*batch c_in"], parameters: Affine) -> Float[Tensor, "*batch c_out"]:
    """The map, in the dtype of `x`."""
    return LINEAR(x, parameters)


def linear_reference(x: Float[Tensor, "*batch c_in"], parameters: Affine) -> Float[Tensor, "*batch c_out"]:
    """What `linear` means, in plain torch."""
    return torch.nn.functional.linear(x, *parameters.to(x.dtype))


def _by_onednn(x: Tensor, parameters: Affine) -> Tensor:
    return mapped(x.reshape(-1, x.shape[-1]), *parameters.to(x.dtype)).view(*x.shape[:-1], -1)


def _refusal_of_onednn(x: Tensor, parameters: Affine) -> str | None:
    if x.dtype != torch.float32:
        return f"PyTorch's own map is as fast for {x.dtype}"
    if wants_gradient(x, *parameters):
        return "gradients are asked for"
    return "there is nothing to compute" if x.numel() == 0 else None


LINEAR = Op(
    "linear",
    Backend(name="onednn", devices=("cpu",), refusal=_refusal_of_onednn, run=_by_onednn),
    Backend(name="reference", run=linear_reference),
)
