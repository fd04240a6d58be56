"""Triangle multiplication on a CPU in blocks of rows.

Norms, projections and gates are computed for smaller blocks of positions, which stay in the cache, with channels first
where a matrix product per channel follows. Only the stream and the right operand are saved; the backward pass
recomputes a block's norms, projections and products.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.cpu.blocks import Scratch, for_all_cores, slices, steps
from helixfold.ops.cpu.fused_norm import MapGradient, block_rows, fused, norm_gradient, normalised
from helixfold.ops.cpu.products import batched_product, mapped, product
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import recomputed
from helixfold.ops.weights import Affine, TriangleOperandWeights, TriangleWeights

# Bytes of the left operand in a block of rows. A block has at least as many rows as make products fast, since every
# block reads the whole right operand.
_BYTES = 2**24
_LEAST_ROWS = 128
# Bytes per core of a block's products, computed some channels at a time and written over its operand.
_PRODUCT_BYTES = 2**20


def triangle_operand_rows(pair: Tensor, mask: Tensor, weights: TriangleOperandWeights) -> Tensor:
    """Compute `triangle_operand` on a CPU."""
    return _Operand.apply(pair, mask.to(pair.dtype), *fused(*weights))


def triangle_update_rows(
    pair: Tensor, mask: Tensor, right: Affine, right_gate: Affine, weights: TriangleWeights
) -> Tensor:
    """Compute `triangle_update` on a CPU: the right operand, then the rest."""
    operand = TriangleOperandWeights(weights.norm_in, right, right_gate)
    return triangle_multiplication_rows(pair, mask, triangle_operand_rows(pair, mask, operand), weights)


def triangle_multiplication_rows(pair: Tensor, mask: Tensor, right: Tensor, weights: TriangleWeights) -> Tensor:
    """Compute `triangle_multiplication` on a CPU."""
    norm_in, left, left_gate, norm_out, out, gate = weights
    # Converted once, so that the gradients of both uses are added before they are rounded.
    norm_in = norm_in.to(torch.float32)
    return recomputed(
        _multiplication,
        _multiplication_gradients,
        pair,
        mask.to(pair.dtype),
        right,
        *fused(norm_in, left, left_gate),
        *fused(norm_in, gate),
        *fused(norm_out, out),
    )


class _Operand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pair: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        b, j, k, _ = pair.shape
        operand = pair.new_empty(b, len(weight) // 2, j, k)
        # The operand exists until its use anyway; with it saved, only the gate must be recomputed.
        ctx.save_for_backward(pair, mask, weight, bias, operand)
        weight, bias = (x.to(product_dtype(pair.dtype)) for x in (weight, bias))
        for sample in steps(range(b)):
            for rows in block_rows(j, k):
                values, _ = normalised(pair[sample, rows])
                _gate(_projected(values.to(weight.dtype), weight, bias), mask[sample, rows], operand[sample, :, rows])
        return operand

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        pair, mask, weight, bias, operand = ctx.saved_tensors
        needs_pair, _, needs_weight, needs_bias = ctx.needs_input_grad
        grad_map = MapGradient(needs_weight=needs_weight, needs_bias=needs_bias)
        grad_pair = torch.empty_like(pair) if needs_pair else None
        weight, bias = (x.to(product_dtype(pair.dtype)) for x in (weight, bias))
        c = operand.shape[1]
        for sample in steps(range(len(pair))):
            for rows in block_rows(*mask.shape[1:]):
                values, statistics = normalised(pair[sample, rows])
                rounded = values.to(weight.dtype)
                gate = _projected(rounded, weight[c:], bias[c:]).sigmoid_()
                grad_operand = gradient[sample, :, rows]
                grad_both = weight.new_empty(2, *grad_operand.shape)
                torch.mul(grad_operand, mask[sample, rows], out=grad_both[0])
                torch.mul(grad_operand, operand[sample, :, rows], out=grad_both[1])
                grad_value, grad_gate = grad_both.view(2, c, -1)
                grad_value.mul_(gate)
                grad_gate.addcmul_(grad_gate, gate, value=-1)
                grad_both = grad_both.view(2 * c, -1)
                grad_map.add(grad_both, rounded)
                if grad_pair is not None:
                    norm_gradient(
                        product(grad_both.mT, weight), pair[sample, rows], statistics, grad_pair[sample, rows]
                    )
        return grad_pair, None, grad_map.weight, grad_map.bias


def _multiplication(pair: Tensor, mask: Tensor, right: Tensor, *parameters: Tensor) -> Tensor:
    w_in, b_in, w_gate, b_gate, w_out, b_out = (x.to(product_dtype(pair.dtype)) for x in parameters)
    change = torch.empty_like(pair)
    scratch = Scratch(pair.device)
    for sample, block in _blocks(pair, right):
        stream, block_mask, out = pair[sample, block], mask[sample, block], change[sample, block]
        left = _block_operand(scratch, "left", right, len(stream))
        for rows in block_rows(*block_mask.shape):
            values = normalised(stream[rows])[0].to(w_in.dtype)
            _gate(_projected(values, w_in, b_in), block_mask[rows], left[:, rows])
            # The output's gate is stored where the change will be.
            gate = mapped(values, w_gate, b_gate)
            torch.sigmoid(gate.view(out[rows].shape), out=out[rows])
        products = _products(left, right[sample].mT, scratch)
        for rows in block_rows(*block_mask.shape):
            values = _normalised_channels(products[:, rows])[0].to(w_in.dtype)
            out[rows] *= mapped(values.mT, w_out, b_out).view(out[rows].shape)
    return change


def _multiplication_gradients(
    needed: tuple[bool, ...], gradient: Tensor, pair: Tensor, mask: Tensor, right: Tensor, *parameters: Tensor
) -> tuple[Tensor | None, ...]:
    grad_in, grad_gate, grad_out = (MapGradient(needs_weight=needed[at], needs_bias=needed[at + 1]) for at in (3, 5, 7))
    w_in, b_in, w_gate, b_gate, w_out, b_out = (x.to(product_dtype(pair.dtype)) for x in parameters)
    grad_pair = torch.empty_like(pair)
    grad_right = torch.zeros_like(right) if needed[2] else None
    c_z = pair.shape[-1]
    scratch = Scratch(pair.device)
    for sample, block in _blocks(pair, right):
        stream, block_mask, grad_stream = pair[sample, block], mask[sample, block], grad_pair[sample, block]
        left, products = (_block_operand(scratch, name, right, len(stream)) for name in ("left", "products"))
        for rows in block_rows(*block_mask.shape):
            values = normalised(stream[rows])[0].to(w_in.dtype)
            _gate(_projected(values, w_in, b_in), block_mask[rows], left[:, rows])
        batched_product(left, right[sample].mT, products)
        for rows in block_rows(*block_mask.shape):
            values = normalised(stream[rows])[0].to(w_in.dtype)
            normed, scale = _normalised_channels(products[:, rows])
            rounded = normed.to(w_in.dtype)
            grad_change = gradient[sample, block][rows].reshape(-1, c_z).to(w_in.dtype)
            gate = mapped(values, w_gate, b_gate).sigmoid_()
            grad_logits = mapped(rounded.mT, w_out, b_out).mul_(grad_change)
            torch.ops.aten.sigmoid_backward.grad_input(grad_logits, gate, grad_input=grad_logits)
            grad_gate.add(grad_logits.mT, values)
            # The part of the pair's gradient that comes through the gate is stored where the sum will be.
            grad_stream[rows] = product(grad_logits, w_gate).view(grad_stream[rows].shape)
            grad_mapped = gate.mul_(grad_change)
            grad_out.add(grad_mapped.mT, rounded.mT)
            grad_products = _channel_norm_gradient(product(w_out.mT, grad_mapped.mT).float(), normed, scale)
            products[:, rows] = grad_products.view(products[:, rows].shape)
        if grad_right is not None:
            batched_product(products.mT, left, grad_right[sample], add=True)
        batched_product(products, right[sample], left)
        for rows in block_rows(*block_mask.shape):
            values, statistics = normalised(stream[rows])
            rounded = values.to(w_in.dtype)
            # The projections are recomputed, since they are twice as large as the operand.
            grad_both = _gate_gradient(left[:, rows], block_mask[rows], _projected(rounded, w_in, b_in))
            grad_in.add(grad_both, rounded)
            grad_values = product(grad_both.mT, w_in).add_(grad_stream[rows].reshape(-1, c_z))
            norm_gradient(grad_values, stream[rows], statistics, grad_stream[rows])
    grad_maps = (grad for grad_map in (grad_in, grad_gate, grad_out) for grad in (grad_map.weight, grad_map.bias))
    return grad_pair, None, grad_right, *grad_maps


def _blocks(pair: Tensor, right: Tensor) -> Iterator[tuple[int, slice]]:
    """Yield the sample and rows of blocks of the stream whose products are computed at once."""
    row_bytes = right.shape[1] * right.shape[3] * product_dtype(right.dtype).itemsize
    for sample in steps(range(len(pair))):
        for rows in slices(pair.shape[1], max(_LEAST_ROWS, _BYTES // max(1, row_bytes))):
            yield sample, rows


def _block_operand(scratch: Scratch, name: str, right: Tensor, rows: int) -> Tensor:
    """Return memory for a block's operand or products."""
    return scratch(name, right.shape[1], rows, right.shape[3], dtype=product_dtype(right.dtype))


def _products(left: Tensor, right: Tensor, scratch: Scratch) -> Tensor:
    """Return the products of both operands in the memory of the left one, computed a few channels at a time."""
    for channels in slices(len(left), for_all_cores(_PRODUCT_BYTES) // max(1, left[0].nbytes)):
        products = scratch("products", *left[channels].shape, dtype=left.dtype)
        batched_product(left[channels], right[channels], products)
        left[channels] = products
    return left


def _projected(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return projections of positions with channels first, in their first half the values and then the gates."""
    return mapped(weight, values).add_(bias[:, None])


def _gate(both: Tensor, mask: Tensor, out: Tensor) -> None:
    torch.mul(torch.nn.functional.glu(both, 0).view(out.shape), mask, out=out)


def _gate_gradient(gradient: Tensor, mask: Tensor, both: Tensor) -> Tensor:
    """Return the gradient of projections from that of the gated and masked values."""
    return torch.ops.aten.glu_backward((gradient * mask).reshape(len(gradient), -1), both, 0)


def _normalised_channels(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same as `normalised` for channels before positions: [c, m] and [1, m]."""
    values = torch.empty(x.shape, device=x.device).copy_(x).view(len(x), -1)
    average = torch.full((1, len(x)), 1 / len(x), device=x.device)
    values.sub_(average @ values)
    scale = (average @ values.square()).add_(EPS).rsqrt_()
    return values.mul_(scale), scale


def _channel_norm_gradient(gradient: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """Return the same as `norm_gradient` writes, for channels before positions."""
    average = torch.full((1, len(values)), 1 / len(values), device=values.device)
    slope = average @ (gradient * values)
    return gradient.sub_(average @ gradient).addcmul_(values, slope, value=-1).mul_(scale)
