"""Linear maps on a CPU in blocks of positions: in float32 for dtypes without instructions, or after a layer norm."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from helixfold.ops.cpu.fused_norm import MapGradient, fused, norm_gradient, normalised, position_blocks
from helixfold.ops.cpu.loops import compiled
from helixfold.ops.cpu.products import mapped, product
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import recomputed
from helixfold.ops.weights import Affine


def linear_in_float32(x: Tensor, parameters: Affine) -> Tensor:
    """Compute `linear` in float32 blocks, on a CPU without instructions to multiply the dtype of `x`."""
    return recomputed(_map_of_blocks, _map_of_blocks_gradients, x, *parameters, dtype=torch.float32, after_norm=False)


def norm_linear_rows(x: Tensor, norm: Affine, project: Affine) -> Tensor:
    """Compute `norm_linear` on a CPU in blocks of positions, which stay in the cache between norm and map."""
    return recomputed(
        _map_of_blocks,
        _map_of_blocks_gradients,
        x,
        *fused(norm, project),
        dtype=product_dtype(x.dtype),
        after_norm=True,
    )


def outer_product_operand_rows(columns: Tensor, mask: Tensor, norm: Affine, project: Affine) -> Tensor:
    """Compute `outer_product_operand` on a CPU."""
    return norm_linear_rows(columns, norm, project) * mask[..., None].to(columns.dtype)


def outer_product_operands_rows(
    columns: Tensor, mask: Tensor, norm: Affine, left: Affine, right: Affine
) -> tuple[Tensor, Tensor]:
    """Compute `outer_product_operands` on a CPU."""
    left_operand, right_operand = (outer_product_operand_rows(columns, mask, norm, each) for each in (left, right))
    return left_operand, right_operand.transpose(1, 2)


def _map_of_blocks(x: Tensor, weight: Tensor, bias: Tensor | None, *, dtype: torch.dtype, after_norm: bool) -> Tensor:
    """Return a linear map of a stream, after a layer norm if `after_norm`, with products in `dtype`."""
    result = x.new_empty(*x.shape[:-1], len(weight))
    if bias is not None and (loops := _loops(x, weight, after_norm=after_norm)):
        for stream, mapped_stream in zip(_streams(x), _streams(result), strict=True):
            loops.write_mapped(stream, weight, bias, mapped_stream)
        return result
    weight, bias = Affine(weight, bias).to(dtype)
    for block in position_blocks(x.shape[:-1]):
        values = normalised(x[block], dtype)[0] if after_norm else x[block].reshape(-1, x.shape[-1]).to(dtype)
        result[block] = mapped(values, weight, bias).view(result[block].shape)
    return result


def _map_of_blocks_gradients(
    needed: tuple[bool, ...],
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    dtype: torch.dtype,
    after_norm: bool,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the stream, weight and bias of `_map_of_blocks`."""
    if loops := _loops(x, weight, after_norm=after_norm):
        grad_stream = torch.empty_like(x)
        grad_weight, grad_bias = torch.zeros_like(weight), weight.new_zeros(len(weight))
        for grad_mapped, stream, out in zip(_streams(gradient), _streams(x), _streams(grad_stream), strict=True):
            terms = loops.write_gradients(grad_mapped.contiguous(), stream, weight, out)
            grad_weight += terms[0]
            grad_bias += terms[1]
        return grad_stream, grad_weight, grad_bias
    grad_map = MapGradient(needs_weight=needed[1], needs_bias=needed[2])
    grad_x = torch.empty_like(x) if needed[0] else None
    rounded_weight = weight.to(dtype)
    for block in position_blocks(x.shape[:-1]):
        values, statistics = (
            normalised(x[block], dtype) if after_norm else (x[block].reshape(-1, x.shape[-1]).to(dtype), None)
        )
        grad_mapped = gradient[block].reshape(-1, len(weight)).to(dtype)
        grad_map.add(grad_mapped.mT, values)
        if grad_x is not None and statistics is not None:
            norm_gradient(product(grad_mapped, rounded_weight), x[block], statistics, grad_x[block])
        elif grad_x is not None:
            grad_x[block] = product(grad_mapped, rounded_weight).view(grad_x[block].shape)
    # A bias has the weight's dtype.
    return grad_x, *(None if each is None else each.to(weight.dtype) for each in (grad_map.weight, grad_map.bias))


def _loops(x: Tensor, weight: Tensor, *, after_norm: bool) -> Any:
    """Return the compiled loops if they support the norm of this stream and its map to a few channels."""
    loops = compiled("norm_map", x, weight) if after_norm and 2 <= x.ndim <= 4 else None
    return loops if loops is not None and len(weight) <= loops.MAX_OUTPUTS else None


def _streams(x: Tensor) -> Iterable[Tensor]:
    """Return views [n, k, c] of a tensor of two to four dims."""
    return x if x.ndim == 4 else [x] if x.ndim == 3 else [x[None]]
