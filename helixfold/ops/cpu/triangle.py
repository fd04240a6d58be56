"""Triangle multiplication on a CPU, in blocks of rows.

What is computed position by position is so for blocks that stay in the cache, with channels before positions where a
matrix product for each channel follows. Only the stream and the operand are saved; the backward pass computes a block's
norms, projections and products anew.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.cpu.blocks import Scratch, of_all_cores, parts, steps
from helixfold.ops.cpu.folded_norm import MapGradient, block_rows, folded, norm_gradient, normalised
from helixfold.ops.cpu.products import batched_product, mapped, product
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import recomputed
from helixfold.ops.weights import TriangleOperandWeights, TriangleWeights

# Rows of a block, whose products read the whole operand of the other edges: as many as have so many bytes, but not
# fewer than make the product of a channel fast.
_BYTES = 2**24
_LEAST_ROWS = 128
# Of a block's products that are there beside its operand, for each core.
_PRODUCT_BYTES = 2**20


def triangle_operand_rows(pair: Tensor, mask: Tensor, weights: TriangleOperandWeights) -> Tensor:
    """`triangle_operand` on a CPU."""
    return _Operand.apply(pair, mask.to(pair.dtype), *folded(*weights))


def triangle_multiplication_rows(pair: Tensor, mask: Tensor, right: Tensor, weights: TriangleWeights) -> Tensor:
    """`triangle_multiplication` on a CPU."""
    norm_in, left, left_gate, norm_out, out, gate = weights
    # Cast once: the gradients of both uses are added before they are rounded.
    norm_in = norm_in.to(torch.float32)
    return recomputed(
        _multiplication,
        _multiplication_gradients,
        pair,
        mask.to(pair.dtype),
        right,
        *folded(norm_in, left, left_gate),
        *folded(norm_in, gate),
        *folded(norm_out, out),
    )


class _Operand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pair: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        b, j, k, _ = pair.shape
        operand = pair.new_empty(b, len(weight) // 2, j, k)
        # The operand is there until it is used: with it, the gate alone is computed anew.
        ctx.save_for_backward(pair, mask, weight, bias, operand)
        weight, bias = (each.to(product_dtype(pair.dtype)) for each in (weight, bias))
        for sample in steps(range(b)):
            for rows in block_rows(j, k):
                values, _ = normalised(pair[sample, rows])
                _gate(_projected(values.to(weight.dtype), weight, bias), mask[sample, rows], operand[sample, :, rows])
        return operand

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        pair, mask, weight, bias, operand = ctx.saved_tensors
        of_map = MapGradient(weight)
        of_pair = torch.empty_like(pair) if ctx.needs_input_grad[0] else None
        weight, bias = (each.to(product_dtype(pair.dtype)) for each in (weight, bias))
        c = operand.shape[1]
        for sample in steps(range(len(pair))):
            for rows in block_rows(*mask.shape[1:]):
                values, scale = normalised(pair[sample, rows])
                rounded = values.to(weight.dtype)
                gate = _projected(rounded, weight[c:], bias[c:]).sigmoid_()
                of_operand = gradient[sample, :, rows]
                of_both = weight.new_empty(2, *of_operand.shape)
                torch.mul(of_operand, mask[sample, rows], out=of_both[0])
                torch.mul(of_operand, operand[sample, :, rows], out=of_both[1])
                of_value, of_gate = of_both.view(2, c, -1)
                of_value.mul_(gate)
                of_gate.addcmul_(of_gate, gate, value=-1)
                of_both = of_both.view(2 * c, -1)
                of_map.add(of_both, rounded)
                if of_pair is not None:
                    norm_gradient(product(of_both.mT, weight).float(), values, scale, of_pair[sample, rows])
        return of_pair, None, of_map.weight, of_map.bias


def _multiplication(pair: Tensor, mask: Tensor, right: Tensor, *parameters: Tensor) -> Tensor:
    w_in, b_in, w_gate, b_gate, w_out, b_out = (each.to(product_dtype(pair.dtype)) for each in parameters)
    change = torch.empty_like(pair)
    scratch = Scratch(pair.device)
    for sample, block in _blocks(pair, right):
        stream, kept, changed = pair[sample, block], mask[sample, block], change[sample, block]
        left = _room(scratch, "left", right, len(stream))
        for rows in block_rows(*kept.shape):
            values = normalised(stream[rows])[0].to(w_in.dtype)
            _gate(_projected(values, w_in, b_in), kept[rows], left[:, rows])
            # The gate waits where the change will be.
            gate = mapped(values, w_gate, b_gate)
            torch.sigmoid(gate.view(changed[rows].shape), out=changed[rows])
        products = _products(left, right[sample].mT, scratch)
        for rows in block_rows(*kept.shape):
            values = _normalised_channels(products[:, rows])[0].to(w_in.dtype)
            changed[rows] *= mapped(values.mT, w_out, b_out).view(changed[rows].shape)
    return change


def _multiplication_gradients(
    needed: tuple[bool, ...], gradient: Tensor, pair: Tensor, mask: Tensor, right: Tensor, *parameters: Tensor
) -> tuple[Tensor | None, ...]:
    of_in, of_gate, of_out = (MapGradient(each) for each in parameters[::2])
    w_in, b_in, w_gate, b_gate, w_out, b_out = (each.to(product_dtype(pair.dtype)) for each in parameters)
    of_pair = torch.empty_like(pair)
    of_right = torch.zeros_like(right) if needed[2] else None
    c_z = pair.shape[-1]
    scratch = Scratch(pair.device)
    for sample, block in _blocks(pair, right):
        stream, kept, of_stream = pair[sample, block], mask[sample, block], of_pair[sample, block]
        left, products = (_room(scratch, name, right, len(stream)) for name in ("left", "products"))
        for rows in block_rows(*kept.shape):
            values = normalised(stream[rows])[0].to(w_in.dtype)
            _gate(_projected(values, w_in, b_in), kept[rows], left[:, rows])
        batched_product(left, right[sample].mT, products)
        for rows in block_rows(*kept.shape):
            values = normalised(stream[rows])[0].to(w_in.dtype)
            normed, scale = _normalised_channels(products[:, rows])
            rounded = normed.to(w_in.dtype)
            of_change = gradient[sample, block][rows].reshape(-1, c_z).to(w_in.dtype)
            gate = mapped(values, w_gate, b_gate).sigmoid_()
            of_logits = mapped(rounded.mT, w_out, b_out).mul_(of_change)
            torch.ops.aten.sigmoid_backward.grad_input(of_logits, gate, grad_input=of_logits)
            of_gate.add(of_logits.mT, values)
            # The part of the pair's gradient that comes through the gate waits where the whole will be.
            of_stream[rows] = product(of_logits, w_gate).view(of_stream[rows].shape)
            of_mapped = gate.mul_(of_change)
            of_out.add(of_mapped.mT, rounded.mT)
            found = _channel_norm_gradient(product(w_out.mT, of_mapped.mT).float(), normed, scale)
            products[:, rows] = found.view(products[:, rows].shape)
        if of_right is not None:
            batched_product(products.mT, left, of_right[sample], add=True)
        batched_product(products, right[sample], left)
        for rows in block_rows(*kept.shape):
            values, scale = normalised(stream[rows])
            rounded = values.to(w_in.dtype)
            # Computed once more: kept, a block's projections would be twice its operand.
            of_both = _gate_gradient(left[:, rows], kept[rows], _projected(rounded, w_in, b_in))
            of_in.add(of_both, rounded)
            of_values = product(of_both.mT, w_in).add_(of_stream[rows].reshape(-1, c_z)).float()
            norm_gradient(of_values, values, scale, of_stream[rows])
    sums = [each for of_map in (of_in, of_gate, of_out) for each in (of_map.weight, of_map.bias)]
    return of_pair, None, of_right, *sums


def _blocks(pair: Tensor, right: Tensor) -> Iterator[tuple[int, slice]]:
    """Samples and rows of the stream whose products are computed at once."""
    row_bytes = right.shape[1] * right.shape[3] * product_dtype(right.dtype).itemsize
    for sample in steps(range(len(pair))):
        for rows in parts(pair.shape[1], max(_LEAST_ROWS, _BYTES // max(1, row_bytes))):
            yield sample, rows


def _room(scratch: Scratch, name: str, right: Tensor, rows: int) -> Tensor:
    """For a block's operand or products."""
    return scratch(name, right.shape[1], rows, right.shape[3], dtype=product_dtype(right.dtype))


def _products(left: Tensor, right: Tensor, scratch: Scratch) -> Tensor:
    """The products of an operand, in its memory: a few channels at a time."""
    for channels in parts(len(left), of_all_cores(_PRODUCT_BYTES) // max(1, left[0].nbytes)):
        found = scratch("products", *left[channels].shape, dtype=left.dtype)
        batched_product(left[channels], right[channels], found)
        left[channels] = found
    return left


def _projected(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Maps of positions, channels first; the second half of them is the gate of the first."""
    return mapped(weight, values).add_(bias[:, None])


def _gate(both: Tensor, mask: Tensor, out: Tensor) -> None:
    torch.mul(torch.nn.functional.glu(both, 0).view(out.shape), mask, out=out)


def _gate_gradient(gradient: Tensor, mask: Tensor, both: Tensor) -> Tensor:
    """The gradient of projections, from that of what they were gated to."""
    return torch.ops.aten.glu_backward((gradient * mask).reshape(len(gradient), -1), both, 0)


def _normalised_channels(x: Tensor) -> tuple[Tensor, Tensor]:
    """As `normalised`, for channels before positions: [c, m] and [1, m]."""
    values = torch.empty(x.shape, device=x.device).copy_(x).view(len(x), -1)
    average = torch.full((1, len(x)), 1 / len(x), device=x.device)
    values.sub_(average @ values)
    scale = (average @ values.square()).add_(EPS).rsqrt_()
    return values.mul_(scale), scale


def _channel_norm_gradient(gradient: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """As `norm_gradient`, for channels before positions."""
    average = torch.full((1, len(values)), 1 / len(values), device=values.device)
    slope = average @ (gradient * values)
    return gradient.sub_(average @ gradient).addcmul_(values, slope, value=-1).mul_(scale)
