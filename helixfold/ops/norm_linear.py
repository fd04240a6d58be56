"""A layer norm and a narrow linear map behind it: what the pair stream's biases and the outer product are read with."""

from jaxtyping import Float
from torch import Tensor

from helixfold.ops.dispatch import Backend, Op
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


NORM_LINEAR = Op("norm_linear", Backend(name="reference", run=norm_linear_reference))
