"""Linear maps whose arithmetic follows the activations' dtype, whatever the parameters are stored in."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Affine(NamedTuple):
    """The parameters of a linear map, weight [out, in] and offset [out], or scale and offset [c] of a norm."""

    weight: Tensor
    bias: Tensor | None = None

    def to(self, dtype: torch.dtype) -> "Affine":
        return Affine(self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))


def linear(x: Float[Tensor, "*batch c_in"], parameters: Affine) -> Float[Tensor, "*batch c_out"]:
    return torch.nn.functional.linear(x, *parameters.to(x.dtype))
