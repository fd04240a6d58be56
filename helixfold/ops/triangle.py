"""Triangle multiplication in two parts: operands projected from edges, and the update of edges from both operands.

Operands have channels first, so that the sum over the third residue is one matrix product per channel.
"""

from itertools import chain
from typing import Any

from einops import rearrange
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
from helixfold.ops.weights import Affine, TriangleOperandWeights, TriangleWeights


def _unsupported_by_triton(properties: DeviceProperties, pair: Tensor, mask: Tensor, *arguments: Any) -> str | None:
    """Return why the Triton kernels do not support these arguments, or None; `arguments` are tensors and parameters."""
    tensors = [each for each in arguments if isinstance(each, Tensor)]
    tuples = [each for each in arguments if not isinstance(each, Tensor)]
    affines = [*chain(*([each] if isinstance(each, Affine) else each for each in tuples))]
    channels = pair.shape[-1], *(len(affine.weight) for affine in affines)
    return (
        unsupported_wide_products(properties, pair)
        or first_reason(
            *((c not in (16, 32, 64, 128), f"{c} channels are not 16, 32, 64 or 128") for c in channels),
            (any(affine.bias is None for affine in affines), "maps without bias are left to the reference"),
            (
                pair.stride(-1) != 1 or 0 in pair.shape,
                "the pair is empty or its channels do not follow each other",
            ),
        )
        or missing_requirement(
            properties, f"triangle-{max(channels)}", gradients=wants_gradient(pair, *tensors, *chain(*affines))
        )
    )


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.triangle:triangle_operand_triton",
        unsupported_reason=_unsupported_by_triton,
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.triangle:triangle_operand_rows",
        unsupported_reason=unsupported_float64,
        slower=plain_is_faster,
    ),
)
def triangle_operand(
    pair: Float[Tensor, "b j k c_z"], mask: Float[Tensor, "b j k"], weights: TriangleOperandWeights
) -> Float[Tensor, "b c j k"]:
    """Return one operand of triangle multiplication: the masked, gated projection of every edge.

    AlphaFold 2, Suppl. Alg. 11 and 12, lines 1 and 2.
    """
    return _operand(layer_norm(pair, weights.norm), mask, weights.project, weights.gate)


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.triangle:triangle_multiplication_triton",
        run_adding="helixfold.ops.triton.triangle:triangle_multiplication_adding_triton",
        unsupported_reason=_unsupported_by_triton,
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.triangle:triangle_multiplication_rows",
        run_adding="helixfold.ops.cpu.triangle:triangle_multiplication_adding_rows",
        unsupported_reason=unsupported_float64,
        slower=plain_is_faster,
    ),
)
def triangle_multiplication(
    pair: Float[Tensor, "b i k c_z"],
    mask: Float[Tensor, "b i k"],
    right: Float[Tensor, "b c j k"],
    weights: TriangleWeights,
) -> Float[Tensor, "b i j c_z"]:
    """Return the change of the edges ij, from the edges ik and the right operand of the edges jk.

    Both j and k are all residues. AlphaFold 2, Suppl. Alg. 11 and 12, lines 2 to 4.
    """
    x = layer_norm(pair, weights.norm_in)
    product = rearrange(_operand(x, mask, weights.left, weights.left_gate) @ right.mT, "b c i j -> b i j c")
    return linear(layer_norm(product, weights.norm_out), weights.out) * linear(x, weights.gate).sigmoid()


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.triangle:triangle_update_triton",
        run_adding="helixfold.ops.triton.triangle:triangle_update_adding_triton",
        unsupported_reason=_unsupported_by_triton,
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.triangle:triangle_update_rows",
        run_adding="helixfold.ops.cpu.triangle:triangle_update_adding_rows",
        unsupported_reason=unsupported_float64,
        slower=plain_is_faster,
    ),
)
def triangle_update(
    pair: Float[Tensor, "b r r c_z"],
    mask: Float[Tensor, "b r r"],
    right: Affine,
    right_gate: Affine,
    weights: TriangleWeights,
) -> Float[Tensor, "b r r c_z"]:
    """Return the change of all edges, with both operands from the same pair (AlphaFold 2, Suppl. Alg. 11 and 12).

    `right` and `right_gate` are the maps to the right operand and its gate.
    """
    operand = TriangleOperandWeights(weights.norm_in, right, right_gate)
    return triangle_multiplication(pair, mask, triangle_operand(pair, mask, operand), weights)


def _operand(x: Tensor, mask: Tensor, project: Affine, gate: Affine) -> Tensor:
    """Return the gated and masked map of the normalised pair `x`, with channels first [b c i k]."""
    gated = linear(x, project) * linear(x, gate).sigmoid() * mask[..., None].to(x.dtype)
    return rearrange(gated, "b i k c -> b c i k").contiguous()
