"""Matrix products of activations."""

from jaxtyping import Float
from torch import Tensor

from helixfold.ops.card import Card
from helixfold.ops.dispatch import Backend, operator, wants_gradient
from helixfold.ops.precision import product_dtype


def refusal_of_float32(card: Card, x: Tensor, *_: object) -> str | None:
    """Return why a backend that multiplies in float32 refuses such an input on a CPU, or None."""
    return f"the processor multiplies {x.dtype} as it is" if product_dtype(x.dtype) == x.dtype else None


@operator(
    Backend(
        name="float32",
        kinds=("cpu",),
        run="helixfold.ops.cpu.products:multiply_in_float32",
        refusal=lambda card, left, right: (
            "gradients are asked for" if wants_gradient(left, right) else refusal_of_float32(card, left)
        ),
    )
)
def multiply(left: Float[Tensor, "*batch m k"], right: Float[Tensor, "*batch k n"]) -> Float[Tensor, "*batch m n"]:
    """Return the matrix product in the dtype of the matrices."""
    return left @ right
