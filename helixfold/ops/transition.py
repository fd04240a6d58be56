"""The transition: layer norm and two linear maps with a ReLU between them, applied to every element alone."""

from itertools import chain

from jaxtyping import Float
from torch import Tensor

from helixfold.ops.device_properties import DeviceProperties
from helixfold.ops.dispatch import (
    Backend,
    first_reason,
    operator,
    refusal_of_float64,
    refusal_of_wide_products,
    wants_gradient,
)
from helixfold.ops.linear import layer_norm, linear
from helixfold.ops.sizes import plain_is_faster
from helixfold.ops.triton.refusal import refusal_of_kernels
from helixfold.ops.weights import TransitionWeights


def _refusal_of_triton(properties: DeviceProperties, x: Tensor, weights: TransitionWeights) -> str | None:
    hidden, c = weights.expand.weight.shape
    return (
        refusal_of_wide_products(properties, x)
        or first_reason(
            (
                c not in (32, 64, 128, 256) or hidden % 64 != 0,
                f"{c} channels are not 32, 64, 128 or 256, or {hidden} hidden ones not a multiple of 64",
            ),
            (any(affine.bias is None for affine in weights), "it adds a bias after every map"),
            (
                x.ndim > 4 or x.numel() == 0 or x.stride(-1) != 1,
                "it takes rows, in up to 3 dims, whose channels follow each other",
            ),
        )
        or refusal_of_kernels(properties, f"transition-{c}", gradients=wants_gradient(x, *chain(*weights)))
    )


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.transition:transition_triton",
        run_adding="helixfold.ops.triton.transition:transition_adding_triton",
        refusal=_refusal_of_triton,
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.transition:transition_rows",
        refusal=refusal_of_float64,
        slower=plain_is_faster,
    ),
)
def transition(x: Float[Tensor, "*batch c"], weights: TransitionWeights) -> Float[Tensor, "*batch c"]:
    """Return the change of every element, computed from its own channels (AlphaFold 2, Suppl. Alg. 9 and 15)."""
    return linear(linear(layer_norm(x, weights.norm), weights.expand).relu(), weights.contract)
