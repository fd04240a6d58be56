"""Triangle multiplication, in two halves: an operand read from edges, and the update of edges by both operands.

Channels lead in operands, so that the sum over the third residue is one matrix product for each channel.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.cpu.triangle import triangle_multiplication_rows, triangle_operand_rows
from helixfold.ops.dispatch import Backend, Op, refusal_of_wide_products, refusal_without_triton
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


def _refusal_of_rows(pair: Tensor, *_: object, **__: object) -> str | None:
    return "float64 is left to the reference" if pair.dtype == torch.float64 else None


def _refusal_of_triton(pair: Tensor, *given: object, **named: object) -> str | None:
    if reason := refusal_without_triton() or refusal_of_wide_products(pair):
        return reason
    affines = [each for each in (*given, *named.values()) if isinstance(each, Affine)]
    for channels in (pair.shape[-1], *(len(affine.weight) for affine in affines)):
        if channels not in (16, 32, 64, 128):
            return f"{channels} channels are not 16, 32, 64 or 128"
    if any(affine.bias is None for affine in affines):
        return "maps without offset are left to the reference"
    if pair.stride(-1) != 1 or 0 in pair.shape:
        return "the pair is empty or its channels do not follow each other"
    return None


def _operand_by_triton(pair: Tensor, mask: Tensor, norm: Affine, project: Affine, gate: Affine) -> Tensor:
    from helixfold.ops.triton.triangle import triangle_operand_triton  # noqa: PLC0415 (triton is there with CUDA only)

    return triangle_operand_triton(pair, mask, norm, project, gate)


def _multiplication_by_triton(
    pair: Tensor,
    mask: Tensor,
    right: Tensor,
    norm_in: Affine,
    left: Affine,
    left_gate: Affine,
    norm_out: Affine,
    out: Affine,
    gate: Affine,
) -> Tensor:
    from helixfold.ops.triton.triangle import triangle_multiplication_triton  # noqa: PLC0415 (as above)

    return triangle_multiplication_triton(pair, mask, right, norm_in, left, left_gate, norm_out, out, gate)


TRIANGLE_OPERAND = Op(
    "triangle_operand",
    Backend(name="triton", devices=("cuda",), refusal=_refusal_of_triton, run=_operand_by_triton),
    Backend(name="rows", devices=("cpu",), refusal=_refusal_of_rows, run=triangle_operand_rows),
    Backend(name="reference", run=triangle_operand_reference),
)
TRIANGLE_MULTIPLICATION = Op(
    "triangle_multiplication",
    Backend(name="triton", devices=("cuda",), refusal=_refusal_of_triton, run=_multiplication_by_triton),
    Backend(name="rows", devices=("cpu",), refusal=_refusal_of_rows, run=triangle_multiplication_rows),
    Backend(name="reference", run=triangle_multiplication_reference),
)
