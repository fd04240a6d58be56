"""Triangle multiplication on a CUDA device: gated maps as Triton kernels, around cuBLAS's batched product.

Operands and product, which cost matrix products, are saved; norms, maps and gates are recomputed for the gradients.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from helixfold.ops.recomputed import recomputed
from helixfold.ops.triton.triangle_backward import to_maps, to_streams
from helixfold.ops.triton.triangle_forward import Maps, gated
from helixfold.ops.weights import Affine, TriangleOperandWeights, TriangleWeights


def triangle_operand_triton(pair: Tensor, mask: Tensor, weights: TriangleOperandWeights) -> Tensor:
    """Compute `triangle_operand` on a CUDA device."""
    return recomputed(_operand, _operand_gradients, pair, mask, *_parameters(pair, weights[:1], weights[1:]))


def triangle_multiplication_triton(pair: Tensor, mask: Tensor, right: Tensor, weights: TriangleWeights) -> Tensor:
    """Compute `triangle_multiplication` on a CUDA device."""
    norm_in, left, left_gate, norm_out, out, gate = weights
    return _Multiplication.apply(
        pair, mask, right, *_parameters(pair, [norm_in, norm_out], [left, left_gate, out, gate])
    )


def _parameters(pair: Tensor, norms: Sequence[Affine], maps: Sequence[Affine]) -> list[Tensor]:
    affines = [norm.to(torch.float32) for norm in norms] + [affine.to(pair.dtype) for affine in maps]
    return [tensor.contiguous() for affine in affines for tensor in affine if tensor is not None]


def _operand_maps(parameters: Sequence[Tensor]) -> Maps:
    norm, value, gate = (Affine(*parameters[at : at + 2]) for at in (0, 2, 4))
    return Maps(norm, norm, value, gate)


def _multiplication_maps(parameters: Sequence[Tensor]) -> tuple[Maps, Maps]:
    norm_in, norm_out, left, left_gate, out, gate = (Affine(*parameters[at : at + 2]) for at in range(0, 12, 2))
    return Maps(norm_in, norm_in, left, left_gate), Maps(norm_in, norm_out, out, gate)


def _operand(pair: Tensor, mask: Tensor, *parameters: Tensor) -> Tensor:
    return gated(pair, None, mask, _operand_maps(parameters))


def _operand_gradients(
    needed: tuple[bool, ...], gradient: Tensor, pair: Tensor, mask: Tensor, *parameters: Tensor
) -> tuple[Tensor | None, ...]:
    maps, gradient = _operand_maps(parameters), gradient.contiguous()
    grad_pair, _, grad_norm, _ = to_streams(pair, None, mask, maps, gradient)
    grad_maps = to_maps(pair, None, mask, maps, gradient) if any(needed[4:]) else [None] * 4
    return grad_pair, None, *grad_norm, *grad_maps


class _Multiplication(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pair: Tensor, mask: Tensor, right: Tensor, *parameters: Tensor) -> Tensor:
        front, tail = _multiplication_maps(parameters)
        left = gated(pair, None, mask, front)
        product = torch.bmm(left.flatten(0, 1), right.flatten(0, 1).mT)
        product = product.view(*left.shape[:3], right.shape[2])
        ctx.save_for_backward(pair, mask, left, right, product, *parameters)
        return gated(pair, product, None, tail)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        pair, mask, left, right, product, *parameters = ctx.saved_tensors
        front, tail = _multiplication_maps(parameters)
        gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
        grad_pair, grad_product, grad_norm_in, grad_norm_out = to_streams(pair, product, None, tail, gradient)
        needs_maps = any(ctx.needs_input_grad[7:])
        grad_tail = to_maps(pair, product, None, tail, gradient) if needs_maps else [None] * 4
        grad_products = grad_product.flatten(0, 1)
        grad_right = torch.bmm(grad_products.mT, left.flatten(0, 1)).view_as(right) if ctx.needs_input_grad[2] else None
        grad_left = torch.bmm(grad_products, right.flatten(0, 1)).view_as(left)
        # Added in place to the part from the output's gate.
        _, _, grad_norm_left, _ = to_streams(pair, None, mask, front, grad_left, grad_pair)
        grad_front = to_maps(pair, None, mask, front, grad_left) if needs_maps else [None] * 4
        grad_norms = [*(torch.stack(grad_norm_in) + torch.stack(grad_norm_left)), *grad_norm_out]
        return grad_pair, None, grad_right, *grad_norms, *grad_front, *grad_tail
