"""Triangle multiplication on a CUDA device: gated maps as Triton kernels, around cuBLAS's batched product.

Operands and product, which cost matrix products, are saved; norms, maps and gates are recomputed for the gradients.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from helixfold.ops.recomputed import recomputed
from helixfold.ops.triton.sums import summed
from helixfold.ops.triton.triangle_backward import Gradients
from helixfold.ops.triton.triangle_forward import GatedMap, change_of, operands
from helixfold.ops.weights import Affine, TriangleOperandWeights, TriangleWeights


def triangle_operand_triton(pair: Tensor, mask: Tensor, weights: TriangleOperandWeights) -> Tensor:
    """Compute `triangle_operand` on a CUDA device."""
    maps = GatedMap.of(weights.project, weights.gate, pair.dtype)
    return recomputed(_operand, _operand_gradients, pair, mask, *weights.norm, *maps)


def triangle_multiplication_triton(pair: Tensor, mask: Tensor, right: Tensor, weights: TriangleWeights) -> Tensor:
    """Compute `triangle_multiplication` on a CUDA device."""
    return _Multiplication.apply(pair, mask, right, *_parameters(pair, weights))


def triangle_update_triton(
    pair: Tensor, mask: Tensor, right: Affine, right_gate: Affine, weights: TriangleWeights
) -> Tensor:
    """Compute `triangle_update` on a CUDA device, with both operands made in one pass over the pair."""
    maps = GatedMap.of(right, right_gate, pair.dtype)
    return _Multiplication.apply(pair, mask, None, *_parameters(pair, weights), *maps)


def _parameters(pair: Tensor, weights: TriangleWeights) -> list[Tensor]:
    """Return the parameters of both norms, of the output's map and of the left operand's."""
    norm_in, left, left_gate, norm_out, out, gate = weights
    maps = GatedMap.of(out, gate, pair.dtype), GatedMap.of(left, left_gate, pair.dtype)
    return [*norm_in, *norm_out, *chain(*maps)]  # type: ignore[list-item]


def _operand(pair: Tensor, mask: Tensor, scale: Tensor, offset: Tensor, *maps: Tensor) -> Tensor:
    return operands(pair, mask, (scale, offset), GatedMap(*maps))[0]


def _operand_gradients(
    needed: tuple[bool, ...], gradient: Tensor, pair: Tensor, mask: Tensor, scale: Tensor, offset: Tensor, *maps: Tensor
) -> tuple[Tensor | None, ...]:
    sides = [GatedMap(*maps)]
    memory = Gradients(pair, len(maps[0]), 1, has_change=False)
    grad_pair = memory.of_operands(mask, (scale, offset), sides, [gradient.contiguous()])
    biases = summed(memory.sums, scale, offset, maps[1], maps[3])
    return grad_pair, None, *biases[:2], *_with_weights(memory.maps.T @ memory.x, biases[2:])


def _with_weights(grad_weights: Tensor, grad_biases: list[Tensor]) -> list[Tensor]:
    """Return the gradients of weight and bias of each map from those of all weights [maps * outputs, channels]."""
    return [*chain(*zip(grad_weights.chunk(len(grad_biases)), grad_biases, strict=True))]


class _Multiplication(torch.autograd.Function):
    """The change of the pair, from its left operand and either a given right one or one that is made here too.

    Parameters are those of both norms, of the output's gated map, of the left operand's, and of the right one's if it
    is made here.
    """

    @staticmethod
    def forward(ctx: Any, pair: Tensor, mask: Tensor, right: Tensor | None, *parameters: Tensor) -> Tensor:
        norm_in, norm_out, out, sides = _grouped(parameters)
        left, *made = operands(pair, mask, norm_in, *sides)
        right = made[0] if right is None else right
        product = torch.bmm(left.flatten(0, 1), right.flatten(0, 1).mT)
        product = product.view(*left.shape[:3], right.shape[2])
        ctx.save_for_backward(pair, mask, left, right, product, *parameters)
        return change_of(pair, product, norm_in, norm_out, out)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        pair, mask, left, right, product, *parameters = ctx.saved_tensors
        norm_in, norm_out, out, sides = _grouped(parameters)
        gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
        memory = Gradients(pair, left.shape[1], len(sides), has_change=True)
        grad_product, grad_out_weight = memory.of_change(product, norm_in, norm_out, out, gradient)
        products = grad_product.flatten(0, 1)
        grad_left = torch.bmm(products, right.flatten(0, 1)).view_as(left)
        grad_right = torch.bmm(products.mT, left.flatten(0, 1)).view_as(right)
        grad_pair = memory.of_operands(mask, norm_in, sides, [grad_left, grad_right][: len(sides)])
        biases = [bias for side in sides for bias in (side.bias, side.gate_bias)]
        grad_scale_out, grad_offset_out, grad_bias, grad_gate_bias, grad_scale, grad_offset, *grad_biases = summed(
            memory.sums, *norm_out, out.bias, out.gate_bias, *norm_in, *biases
        )
        grad_weights = memory.maps.T @ memory.x
        gates = len(out.gate_weight)
        return (
            *(grad_pair, None, grad_right if len(sides) == 1 else None),
            *(grad_scale, grad_offset, grad_scale_out, grad_offset_out),
            *(grad_out_weight, grad_bias, grad_weights[:gates], grad_gate_bias),
            *_with_weights(grad_weights[gates:], grad_biases),
        )


def _grouped(parameters: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor], GatedMap, list[GatedMap]]:
    """Return the norms of pair and product, the output's map, and the operands' maps."""
    maps = [GatedMap(*parameters[at : at + 4]) for at in range(4, len(parameters), 4)]
    return parameters[:2], parameters[2:4], maps[0], maps[1:]
