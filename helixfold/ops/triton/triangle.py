"""Triangle multiplication on a CUDA device: gated maps as Triton kernels before and after a batched cuBLAS product.

Operands and product, which cost matrix products, are saved. Norms, maps and gates are recomputed for the gradients.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from helixfold.ops.recomputed import recomputed
from helixfold.ops.residual import Adding, Residual
from helixfold.ops.triton.sums import summed, weight_gradients
from helixfold.ops.triton.triangle_backward import Gradients
from helixfold.ops.triton.triangle_forward import GatedMap, change_of, operands
from helixfold.ops.weights import Affine, TriangleOperandWeights, TriangleWeights

# The index of the output weight among the parameters, after both norms.
_OUT_WEIGHT = 4


def triangle_operand_triton(pair: Tensor, mask: Tensor, weights: TriangleOperandWeights) -> Tensor:
    """Compute `triangle_operand` on a CUDA device."""
    maps = GatedMap.of(weights.project, weights.gate, pair.dtype)
    return recomputed(_operand, _operand_gradients, pair, mask, *weights.norm, *maps)


def triangle_multiplication_triton(pair: Tensor, mask: Tensor, right: Tensor, weights: TriangleWeights) -> Tensor:
    """Compute `triangle_multiplication` on a CUDA device."""
    return _Multiplication.apply(pair, mask, right, None, *_parameters(pair, weights))


def triangle_multiplication_adding_triton(
    residual: Residual, pair: Tensor, mask: Tensor, right: Tensor, weights: TriangleWeights
) -> Tensor | None:
    """Compute `triangle_multiplication` on a CUDA device and add it to its input; return None for another stream."""
    if residual.stream is not pair:
        return None
    return _Multiplication.apply(pair, mask, right, residual.adding, *_parameters(pair, weights))


def triangle_update_triton(
    pair: Tensor, mask: Tensor, right: Affine, right_gate: Affine, weights: TriangleWeights
) -> Tensor:
    """Compute `triangle_update` on a CUDA device, with one kernel for both operands."""
    maps = GatedMap.of(right, right_gate, pair.dtype)
    return _Multiplication.apply(pair, mask, None, None, *_parameters(pair, weights), *maps)


def triangle_update_adding_triton(
    residual: Residual, pair: Tensor, mask: Tensor, right: Affine, right_gate: Affine, weights: TriangleWeights
) -> Tensor | None:
    """Compute `triangle_update` on a CUDA device and add it to its input; return None for another stream."""
    if residual.stream is not pair:
        return None
    maps = GatedMap.of(right, right_gate, pair.dtype)
    return _Multiplication.apply(pair, mask, None, residual.adding, *_parameters(pair, weights), *maps)


def _parameters(pair: Tensor, weights: TriangleWeights) -> list[Tensor]:
    """Return the parameters of both norms, of the output map and of the map to the left operand."""
    norm_in, left, left_gate, norm_out, out, gate = weights
    maps = GatedMap.of(out, gate, pair.dtype), GatedMap.of(left, left_gate, pair.dtype)
    return [*norm_in, *norm_out, *chain(*maps)]  # type: ignore[list-item]


def _operand(pair: Tensor, mask: Tensor, scale: Tensor, offset: Tensor, *maps: Tensor) -> Tensor:
    """Return the operand [b, c, rows, columns]; scale and offset are of the norm, `maps` the fields of `GatedMap`."""
    return operands(pair, mask, (scale, offset), GatedMap(*maps))[0]


def _operand_gradients(
    needed: tuple[bool, ...], gradient: Tensor, pair: Tensor, mask: Tensor, scale: Tensor, offset: Tensor, *maps: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of pair, norm and maps of `_operand`, given the `gradient` of its result."""
    sides = [GatedMap(*maps)]
    memory = Gradients(pair, len(maps[0]), 1, has_change=False, learns=any(needed[2:]))
    grad_pair = memory.of_operands(mask, (scale, offset), sides, [gradient.contiguous()])
    sums = _sums(memory, [scale, offset, maps[1], maps[3]], [*needed[2:4], needed[5], needed[7]])
    weights = _weights(memory, [maps[0], maps[2]], [needed[4], needed[6]])
    return grad_pair, None, *sums[:2], weights[0], sums[2], weights[1], sums[3]


def _sums(memory: Gradients, parameters: list[Tensor], needed: Sequence[bool]) -> Sequence[Tensor | None]:
    """Return the gradients of norms and biases from the partial sums of tiles, or None if none is needed."""
    if memory.sums is None or not any(needed):
        return [None] * len(parameters)
    return summed(memory.sums, *parameters)


def _weights(memory: Gradients, weights: list[Tensor], needed: Sequence[bool]) -> list[Tensor | None]:
    """Return the gradients of the weights of maps of the normalised pair, or None where not needed."""
    if memory.maps is None:
        return [None] * len(weights)
    gradients = memory.maps.split([len(weight) for weight in weights], 1)
    return weight_gradients(gradients, memory.maps, memory.x, needed)


class _Multiplication(torch.autograd.Function):
    """The change of the pair, from its left operand and a right operand, which is computed here if it is None.

    With `adding`, the result is the pair plus the change. The parameters belong to both norms, the gated output map,
    the gated map to the left operand, and the gated map to the right operand if it is computed here.
    """

    @staticmethod
    def forward(
        ctx: Any,
        pair: Tensor,
        mask: Tensor,
        right: Tensor | None,
        adding: Adding,
        *parameters: Tensor,
    ) -> Tensor:
        """Return the change of the pair, or the sum of both with `adding`."""
        norm_in, norm_out, out, sides = _grouped(parameters)
        left, *others = operands(pair, mask, norm_in, *sides)
        right = others[0] if right is None else right
        product = torch.bmm(left.flatten(0, 1), right.flatten(0, 1).mT)
        product = product.view(*left.shape[:3], right.shape[2])
        ctx.adds, (dropout_mask, in_place) = adding is not None, adding or (None, False)
        ctx.save_for_backward(pair, mask, left, right, product, dropout_mask, *parameters)
        return change_of(pair, product, norm_in, norm_out, out, dropout_mask, adds=ctx.adds, in_place=in_place)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of pair, right operand and parameters from the saved operands and product."""
        pair, mask, left, right, product, dropout_mask, *parameters = ctx.saved_tensors
        norm_in, norm_out, out, sides = _grouped(parameters)
        gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
        learns = ctx.needs_input_grad[4:]
        memory = Gradients(pair, left.shape[1], len(sides), has_change=True, learns=any(learns))
        grad_product, grad_out_weight = memory.of_change(
            product, norm_in, norm_out, out, gradient, dropout_mask, learns=learns[_OUT_WEIGHT]
        )
        products = grad_product.flatten(0, 1)
        grad_left = torch.bmm(products, right.flatten(0, 1)).view_as(left)
        needs_right = len(sides) == 2 or ctx.needs_input_grad[2]
        grad_right = torch.bmm(products.mT, left.flatten(0, 1)).view_as(right) if needs_right else None
        grad_operands = [grad_left] if grad_right is None or len(sides) == 1 else [grad_left, grad_right]
        grad_pair = memory.of_operands(mask, norm_in, sides, grad_operands, gradient if ctx.adds else None)
        # Indices of the parameters whose gradients are summed over tiles, and of the weights of the maps of the pair.
        operands_at = range(_OUT_WEIGHT + 4, len(parameters), 2)
        summed_at = [2, 3, _OUT_WEIGHT + 1, _OUT_WEIGHT + 3, 0, 1, *(at + 1 for at in operands_at)]
        weights_at = [_OUT_WEIGHT + 2, *operands_at]
        grad_parameters: dict[int, Tensor | None] = {_OUT_WEIGHT: grad_out_weight}
        for places, gradients in ((summed_at, _sums), (weights_at, _weights)):
            of_places = gradients(memory, [parameters[at] for at in places], [learns[at] for at in places])
            grad_parameters |= dict(zip(places, of_places, strict=True))
        grad_right = grad_right if len(sides) == 1 else None
        return grad_pair, None, grad_right, None, *(grad_parameters[at] for at in range(len(parameters)))


def _grouped(parameters: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor], GatedMap, list[GatedMap]]:
    """Return the norms of pair and product, the output map, and the maps to the operands."""
    maps = [GatedMap(*parameters[at : at + 4]) for at in range(4, len(parameters), 4)]
    return parameters[:2], parameters[2:4], maps[0], maps[1:]
