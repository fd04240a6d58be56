"""The transition: layer norm, linear map, ReLU and linear map, applied to each element separately."""

from itertools import chain

from jaxtyping import Float
from torch import Tensor

from helixfold.ops.device_properties import DeviceProperties
from helixfold.ops.dispatch import (
    Backend,
    first_reason,
    operator,
    unsupported_float64,
    unsupported_wide_products,
    wants_gradient,
)
from helixfold.ops.linear import layer_norm, linear
from helixfold.ops.sizes import plain_is_faster
from helixfold.ops.triton.requirements import missing_requirement
from helixfold.ops.weights import TransitionWeights


def _unsupported_by_triton(properties: DeviceProperties, x: Tensor, weights: TransitionWeights) -> str | None:
    """Return why the Triton kernels do not support these arguments on a device with these properties, or None."""
    hidden, c = weights.expand.weight.shape
    return (
        unsupported_wide_products(properties, x)
        or first_reason(
            (
                c not in (32, 64, 128, 256) or hidden % 64 != 0,
                f"{c} channels are not 32, 64, 128 or 256, or {hidden} hidden ones not a multiple of 64",
            ),
            (any(affine.bias is None for affine in weights), "every map must have a bias"),
            (
                x.ndim > 4 or x.numel() == 0 or x.stride(-1) != 1,
                "it takes rows, in up to 3 dims, whose channels follow each other",
            ),
        )
        or missing_requirement(properties, f"transition-{c}", gradients=wants_gradient(x, *chain(*weights)))
    )


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.transition:transition_triton",
        run_adding="helixfold.ops.triton.transition:transition_adding_triton",
        unsupported_reason=_unsupported_by_triton,
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.transition:transition_rows",
        run_adding="helixfold.ops.cpu.transition:transition_adding_rows",
        unsupported_reason=unsupported_float64,
        slower=plain_is_faster,
    ),
)
def transition(x: Float[Tensor, "*batch c"], weights: TransitionWeights) -> Float[Tensor, "*batch c"]:
    """Return the change of every element by the transition (AlphaFold 2, Suppl. Alg. 9 and 15)."""
    return linear(linear(layer_norm(x, weights.norm), weights.expand).relu(), weights.contract)
