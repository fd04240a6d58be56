"""Triangle multiplication, in two halves: an operand read from edges, and the update of edges by both operands.

Channels lead in operands, so that the sum over the third residue is one matrix product for each channel.
"""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.dispatch import Backend, Op
from helixfold.ops.layer_norm import layer_norm
from helixfold.ops.linear import Affine, linear


def triangle_operand(
    pair: Float[Tensor, "b j k c_z"], mask: Float[Tensor, "b j k"], norm: Affine, project: Affine, gate: Affine
) -> Float[Tensor, "b c j k"]:
    """A gated projection of every edge, zero where the mask is (AlphaFold 2, Suppl. Alg. 11 and 12, lines 1 and 2)."""
    return TRIANGLE_OPERAND(pair, mask, norm, project, gate)


def triangle_multiplication(
    pair: Float[Tensor, "b i k c_z"],
    mask: Float[Tensor, "b i k"],
    right: Float[Tensor, "b c j k"],
    norm_in: Affine,
    left: Affine,
    left_gate: Affine,
    norm_out: Affine,
    out: Affine,
    gate: Affine,
) -> Float[Tensor, "b i j c_z"]:
    """Edges ij from the edges ik and the operand of the edges jk (Suppl. Alg. 11 and 12, lines 2 to 4).

    There are as many j as k.
    """
    return TRIANGLE_MULTIPLICATION(pair, mask, right, norm_in, left, left_gate, norm_out, out, gate)


def triangle_operand_reference(
    pair: Float[Tensor, "b j k c_z"], mask: Float[Tensor, "b j k"], norm: Affine, project: Affine, gate: Affine
) -> Float[Tensor, "b c j k"]:
    """What `triangle_operand` means, in plain torch."""
    return _operand(layer_norm(pair, norm), mask, project, gate)


def triangle_multiplication_reference(
    pair: Float[Tensor, "b i k c_z"],
    mask: Float[Tensor, "b i k"],
    right: Float[Tensor, "b c j k"],
    norm_in: Affine,
    left: Affine,
    left_gate: Affine,
    norm_out: Affine,
    out: Affine,
    gate: Affine,
) -> Float[Tensor, "b i j c_z"]:
    """What `triangle_multiplication` means, in plain torch."""
    x = layer_norm(pair, norm_in)
    product = rearrange(_operand(x, mask, left, left_gate) @ right.mT, "b c i j -> b i j c")
    return linear(layer_norm(product, norm_out), out) * linear(x, gate).sigmoid()


def _operand(x: Tensor, mask: Tensor, project: Affine, gate: Affine) -> Tensor:
    gated = linear(x, project) * linear(x, gate).sigmoid() * mask[..., None].to(x.dtype)
    return rearrange(gated, "b i k c -> b c i k").contiguous()


TRIANGLE_OPERAND = Op("triangle_operand", Backend(name="reference", run=triangle_operand_reference))
TRIANGLE_MULTIPLICATION = Op(
    "triangle_multiplication", Backend(name="reference", run=triangle_multiplication_reference)
)
