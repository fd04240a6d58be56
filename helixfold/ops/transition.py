"""Layer norm, two linear maps and the ReLU between them, on every element alone."""

from jaxtyping import Float
from torch import Tensor

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


TRANSITION = Op("transition", Backend(name="reference", run=transition_reference))
