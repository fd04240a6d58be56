"""Triangle multiplication on a CPU in blocks of rows.

Norms, projections and gates are computed for smaller blocks of positions, which stay in the cache. Channels are first
where a matrix product per channel follows. The stream and the right operand are saved, and the products are saved or
recomputed. The backward pass recomputes the norms and projections of each block.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.cpu.blocks import Scratch, for_all_cores, slices, steps
from helixfold.ops.cpu.fused_norm import MapGradient, block_rows, fused, norm_gradient, normalised
from helixfold.ops.cpu.loops import compiled
from helixfold.ops.cpu.products import batched_product, mapped, product
from helixfold.ops.cpu.result import Result, change_or_sum
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import SavedIntermediates
from helixfold.ops.residual import Residual
from helixfold.ops.sizes import loops_if_large
from helixfold.ops.weights import Affine, TriangleOperandWeights, TriangleWeights

# Bytes of the left operand in a block of rows, and minimum rows of a block. Every block reads the whole right operand,
# so products of few rows would be slow.
_BYTES = 2**24
_MIN_ROWS = 128
# Bytes of products per core that are computed at a time, for some channels, before they overwrite the left operand.
_PRODUCT_BYTES = 2**20


class ChannelStatistics(NamedTuple):
    """Means and reciprocal standard deviations of the channels of positions [c, m], each [m] in float32."""

    mean: Tensor
    scale: Tensor


def gate(both: Tensor, bias: Tensor, mask: Tensor, out: Tensor) -> None:
    """Write gated and masked values into `out` [c, rows, columns].

    `both` [2c, m] are projections without their bias [2c]: first the values, then the logits of the gates. It is
    overwritten. The mask is [rows, columns].
    """
    if loops := compiled("channels_first", both, bias, mask, out, one_dtype=True):
        loops.write_gated(both, bias, mask, out)
    else:
        values = torch.nn.functional.glu(both.add_(bias[:, None]), 0)
        torch.mul(values.view(out.shape), mask, out=out)


def gate_gradient(gradient: Tensor, both: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """Return the gradient of the projections [2c, m], given the gradient of the output of `gate`; overwrite `both`."""
    if loops := compiled("channels_first", gradient, both, bias, mask, one_dtype=True):
        loops.write_gated_gradient(both, bias, mask, _with_dense_rows(gradient))
        return both
    return torch.ops.aten.glu_backward((gradient * mask).reshape(len(gradient), -1), both.add_(bias[:, None]), 0)


def gate_gradient_from_result(gradient: Tensor, result: Tensor, logits: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """Return the result of `gate_gradient`, given the output of `gate` and the logits of the gates.

    The logits [c, m] are without their bias [c] and are overwritten.
    """
    if loops := compiled("channels_first", gradient, result, logits, bias, mask, one_dtype=True):
        return loops.gradient_by_result(logits, bias, mask, _with_dense_rows(gradient), result)
    gates = logits.add_(bias[:, None]).sigmoid_()
    grad_both = logits.new_empty(2, *gradient.shape)
    torch.mul(gradient, mask, out=grad_both[0])
    torch.mul(gradient, result, out=grad_both[1])
    grad_value, grad_gate = grad_both.view(2, *gates.shape)
    grad_value.mul_(gates)
    grad_gate.addcmul_(grad_gate, gates, value=-1)
    return grad_both.view(-1, gates.shape[1])


def gate_change(logits: Tensor, mapped: Tensor) -> None:
    """Overwrite the logits of gates [rows, columns, c] with the gated values of `mapped` [m, c]."""
    if loops := compiled("channels_first", logits, mapped, one_dtype=True):
        loops.write_gated_change(logits, mapped)
    else:
        logits.sigmoid_().mul_(mapped.view(logits.shape))


def gate_change_gradient(gradient: Tensor, logits: Tensor, mapped: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients [m, c] of `logits` and `mapped` before `gate_change`, given the gradient of its output.

    Both inputs are overwritten.
    """
    if loops := compiled("channels_first", gradient, logits, mapped, one_dtype=True):
        loops.write_gated_change_gradient(logits, mapped, gradient.contiguous())
        return logits, mapped
    gates = logits.sigmoid_()
    grad_logits = torch.ops.aten.sigmoid_backward(mapped.mul_(gradient), gates)
    return grad_logits, gates.mul_(gradient)


def normalised_channels(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, ChannelStatistics]:
    """Return the positions of `x` [c, rows, columns] normalised over channels, as [c, m], and their statistics.

    The norm has neither scale nor offset.
    """
    if x.dtype == dtype and (loops := compiled("channels_first", x)):
        values, mean, scale = loops.normalised(x)
        return values, ChannelStatistics(mean, scale)
    values = torch.empty(x.shape, device=x.device).copy_(x).view(len(x), -1)
    average = torch.full((1, len(x)), 1 / len(x), device=x.device)
    mean = average @ values
    values.sub_(mean)
    scale = (average @ values.square()).add_(EPS).rsqrt_()
    return values.mul_(scale).to(dtype), ChannelStatistics(mean[0], scale[0])


def channel_norm_gradient(gradient: Tensor, x: Tensor, statistics: ChannelStatistics, out: Tensor) -> None:
    """Write the gradient of the input `x` of `normalised_channels` into `out`, which may be `x`.

    `gradient` [c, m] is the gradient of its output.
    """
    if loops := compiled("channels_first", gradient, x, out, one_dtype=True):
        loops.write_normalised_gradient(gradient.contiguous(), x, *statistics, out)
        return
    values = torch.empty(x.shape, device=x.device).copy_(x).view(len(x), -1)
    values.sub_(statistics.mean).mul_(statistics.scale)
    gradient = gradient.float()
    average = torch.full((1, len(x)), 1 / len(x), device=x.device)
    slope = average @ (gradient * values)
    gradient = (gradient - average @ gradient).addcmul_(values, slope, value=-1).mul_(statistics.scale)
    out.copy_(gradient.view(out.shape))


def _with_dense_rows(x: Tensor) -> Tensor:
    """Return a tensor [c, rows, columns] whose channels are contiguous matrices; gradients may have any strides."""
    return x if x.stride(1) == x.shape[2] else x.contiguous()


def triangle_operand_rows(pair: Tensor, mask: Tensor, weights: TriangleOperandWeights) -> Tensor:
    """Compute `triangle_operand` on a CPU."""
    return _Operand.apply(pair, mask.to(pair.dtype).contiguous(), *fused(*weights))


def triangle_update_rows(
    pair: Tensor,
    mask: Tensor,
    right: Affine,
    right_gate: Affine,
    weights: TriangleWeights,
    *,
    residual: Residual | None = None,
) -> Tensor:
    """Compute `triangle_update` on a CPU, and add it to the stream of `residual`, if any."""
    operand = TriangleOperandWeights(weights.norm_in, right, right_gate)
    right_operand = triangle_operand_rows(pair, mask, operand)
    return triangle_multiplication_rows(pair, mask, right_operand, weights, residual=residual)


def triangle_update_adding_rows(
    residual: Residual, pair: Tensor, mask: Tensor, right: Affine, right_gate: Affine, weights: TriangleWeights
) -> Tensor:
    """Compute `triangle_update` on a CPU, and add it to the stream of `residual`."""
    return triangle_update_rows(pair, mask, right, right_gate, weights, residual=residual)


def triangle_multiplication_adding_rows(
    residual: Residual, pair: Tensor, mask: Tensor, right: Tensor, weights: TriangleWeights
) -> Tensor:
    """Compute `triangle_multiplication` on a CPU, and add it to the stream of `residual`."""
    return triangle_multiplication_rows(pair, mask, right, weights, residual=residual)


def triangle_multiplication_rows(
    pair: Tensor, mask: Tensor, right: Tensor, weights: TriangleWeights, *, residual: Residual | None = None
) -> Tensor:
    """Compute `triangle_multiplication` on a CPU, and add it to the stream of `residual`, if any."""
    norm_in, left, left_gate, norm_out, out, gate = weights
    # The norm is converted once, so that the gradients of both uses are added before they are rounded.
    norm_in = norm_in.to(torch.float32)
    return change_or_sum(
        residual,
        _multiplication,
        _multiplication_gradients,
        pair,
        mask.to(pair.dtype).contiguous(),
        right,
        *fused(norm_in, left, left_gate),
        *fused(norm_in, gate),
        *fused(norm_out, out),
        can_save=True,
    )


class _Operand(torch.autograd.Function):
    """The operand of triangle multiplication, which saves its input and result and recomputes gates."""

    @staticmethod
    def forward(ctx: Any, pair: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the operand [b c j k] of a pair; weight and bias include the norm and have values, then gates."""
        b, j, k, _ = pair.shape
        operand = pair.new_empty(b, len(weight) // 2, j, k)
        # The operand exists until its use anyway. If it is saved, only the gate must be recomputed.
        ctx.save_for_backward(pair, mask, weight, bias, operand)
        weight, bias = (x.to(product_dtype(pair.dtype)) for x in (weight, bias))
        with loops_if_large(pair.numel()):
            for sample in steps(range(b)):
                for rows in block_rows(j, k):
                    values, _ = normalised(pair[sample, rows], weight.dtype)
                    gate(mapped(weight, values), bias, mask[sample, rows], operand[sample, :, rows])
        return operand

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of pair, weight and bias, given the gradient of the operand."""
        pair, mask, weight, bias, operand = ctx.saved_tensors
        needs_pair, _, needs_weight, needs_bias = ctx.needs_input_grad
        grad_map = MapGradient(needs_weight=needs_weight, needs_bias=needs_bias)
        grad_pair = torch.empty_like(pair) if needs_pair else None
        weight, bias = (x.to(product_dtype(pair.dtype)) for x in (weight, bias))
        c = operand.shape[1]
        with loops_if_large(pair.numel()):
            for sample in steps(range(len(pair))):
                for rows in block_rows(*mask.shape[1:]):
                    stream, grad_operand = pair[sample, rows], gradient[sample, :, rows]
                    values, statistics = normalised(stream, weight.dtype)
                    logits, result = mapped(weight[c:], values), operand[sample, :, rows]
                    grad_both = gate_gradient_from_result(grad_operand, result, logits, bias[c:], mask[sample, rows])
                    grad_map.add(grad_both, values)
                    if grad_pair is not None:
                        norm_gradient(product(grad_both.mT, weight), stream, statistics, grad_pair[sample, rows])
        return grad_pair, None, grad_map.weight, grad_map.bias


def _multiplication(
    pair: Tensor,
    mask: Tensor,
    right: Tensor,
    *parameters: Tensor,
    saved: SavedIntermediates,
    residual: Residual | None = None,
) -> Tensor:
    """Return the change of the pair, or the stream of `residual` plus the change.

    `parameters` are the map to the left operand, output gate and output map.
    """
    w_in, b_in, w_gate, b_gate, w_out, b_out = (x.to(product_dtype(pair.dtype)) for x in parameters)
    result = Result(pair, residual)
    scratch = Scratch(pair.device)
    buffer = saved.buffer(len(pair), right.shape[1] * mask[0].numel(), like=w_in)
    for sample, block in _blocks(pair, right):
        stream, block_mask = pair[sample, block], mask[sample, block]
        # The logits of the output gate are stored where the result will be written, unless the pair is there.
        if residual is None or not residual.in_place:
            logits = result.tensor[sample, block]
        else:
            logits = scratch("logits", *stream.shape, dtype=pair.dtype)
        left = _block_operand(scratch, "left", right, len(stream))
        for rows in block_rows(*block_mask.shape):
            values = normalised(stream[rows], w_in.dtype)[0]
            gate(mapped(w_in, values), b_in, block_mask[rows], left[:, rows])
            logits[rows] = mapped(values, w_gate, b_gate).view(logits[rows].shape)
        if buffer is None:
            products = _products(left, right[sample].mT, scratch)
        else:
            products = _block_of_products(buffer[sample], left, block)
            batched_product(left, right[sample].mT, products)
        for rows in block_rows(*block_mask.shape):
            values = normalised_channels(products[:, rows], w_in.dtype)[0]
            gate_change(logits[rows], mapped(values.mT, w_out, b_out))
            if residual is not None:
                within = slice(block.start + rows.start, block.start + rows.stop)
                result.write((sample, within), logits[rows])
    return result.tensor


def _multiplication_gradients(
    needed: tuple[bool, ...],
    gradient: Tensor,
    pair: Tensor,
    mask: Tensor,
    right: Tensor,
    *parameters: Tensor,
    saved: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of pair, right operand and parameters; `saved` has the products or is empty."""
    grad_in, grad_gate, grad_out = (MapGradient(needs_weight=needed[at], needs_bias=needed[at + 1]) for at in (3, 5, 7))
    w_in, b_in, w_gate, b_gate, w_out, b_out = (x.to(product_dtype(pair.dtype)) for x in parameters)
    grad_pair = torch.empty_like(pair)
    grad_right = torch.zeros_like(right) if needed[2] else None
    c_z = pair.shape[-1]
    scratch = Scratch(pair.device)
    for sample, block in _blocks(pair, right):
        stream, block_mask, grad_stream = pair[sample, block], mask[sample, block], grad_pair[sample, block]
        left, grad_products = (_block_operand(scratch, name, right, len(stream)) for name in ("left", "gradients"))
        for rows in block_rows(*block_mask.shape):
            values = normalised(stream[rows], w_in.dtype)[0]
            gate(mapped(w_in, values), b_in, block_mask[rows], left[:, rows])
        if saved:
            products = _block_of_products(saved[0][sample], left, block)
        else:
            # The products are overwritten by their gradients.
            products = grad_products
            batched_product(left, right[sample].mT, products)
        for rows in block_rows(*block_mask.shape):
            values = normalised(stream[rows], w_in.dtype)[0]
            normed, of_products = normalised_channels(products[:, rows], w_in.dtype)
            grad_change = gradient[sample, block][rows].reshape(-1, c_z).to(w_in.dtype)
            grad_logits, grad_mapped = gate_change_gradient(
                grad_change, mapped(values, w_gate, b_gate), mapped(normed.mT, w_out, b_out)
            )
            grad_gate.add(grad_logits.mT, values)
            # The gradient of the pair through the gate is stored where the sum will be written.
            grad_stream[rows] = product(grad_logits, w_gate).view(grad_stream[rows].shape)
            grad_out.add(grad_mapped.mT, normed.mT)
            grad_normed = product(w_out.mT, grad_mapped.mT)
            channel_norm_gradient(grad_normed, products[:, rows], of_products, grad_products[:, rows])
        if grad_right is not None:
            batched_product(grad_products.mT, left, grad_right[sample], add=True)
        batched_product(grad_products, right[sample], left)
        for rows in block_rows(*block_mask.shape):
            values, statistics = normalised(stream[rows], w_in.dtype)
            # The projections are recomputed, because they are twice as large as the operand.
            grad_both = gate_gradient(left[:, rows], mapped(w_in, values), b_in, block_mask[rows])
            grad_in.add(grad_both, values)
            grad_values = product(grad_both.mT, w_in).add_(grad_stream[rows].reshape(-1, c_z))
            norm_gradient(grad_values, stream[rows], statistics, grad_stream[rows])
    grad_maps = (grad for grad_map in (grad_in, grad_gate, grad_out) for grad in (grad_map.weight, grad_map.bias))
    return grad_pair, None, grad_right, *grad_maps


def _blocks(pair: Tensor, right: Tensor) -> Iterator[tuple[int, slice]]:
    """Yield the sample and rows of each block of the stream whose products are computed together."""
    row_bytes = right.shape[1] * right.shape[3] * product_dtype(right.dtype).itemsize
    for sample in steps(range(len(pair))):
        for rows in slices(pair.shape[1], max(_MIN_ROWS, _BYTES // max(1, row_bytes))):
            yield sample, rows


def _block_operand(scratch: Scratch, name: str, right: Tensor, rows: int) -> Tensor:
    """Return scratch memory for the operand or the products of a block."""
    return scratch(name, right.shape[1], rows, right.shape[3], dtype=product_dtype(right.dtype))


def _block_of_products(products: Tensor, left: Tensor, block: slice) -> Tensor:
    """Return the view of a block, with the shape of its left operand [c rows columns], in memory for all products."""
    start = block.start * left[:, 0].numel()
    return products[start : start + left.numel()].view(left.shape)


def _products(left: Tensor, right: Tensor, scratch: Scratch) -> Tensor:
    """Overwrite the left operand with the products of both operands, a few channels at a time, and return it."""
    for channels in slices(len(left), for_all_cores(_PRODUCT_BYTES) // max(1, left[0].nbytes)):
        products = scratch("products", *left[channels].shape, dtype=left.dtype)
        batched_product(left[channels], right[channels], products)
        left[channels] = products
    return left
