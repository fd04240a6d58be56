"""A layer norm and one or two linear maps to few channels as Triton kernels, which read the stream once per direction.

The outputs are stored in the memory layout of the next operator, multiplied by an optional mask.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, no_type_check

import torch
from torch import Tensor

from helixfold.ops.recomputed import recomputed
from helixfold.ops.triton.language import (
    cdiv,
    jit,
    kernel,
    next_power_of_2,
    norm_gradient,
    normalised,
    programs_at_once,
    read_normed,
    scaled,
    stream_offsets,
    tile_positions,
    tl,
)
from helixfold.ops.triton.sums import summed
from helixfold.ops.weights import Affine

# Minimum side of a tile in a matrix product.
_MIN_TILE = 16


@jit
@no_type_check
def _weight_rows(weight_at, outputs, c: tl.constexpr, tile_outputs: tl.constexpr):
    """Return the weight [outputs, c] of a map, with zeros for rows beyond `outputs` up to `tile_outputs`."""
    output = tl.arange(0, tile_outputs)[:, None]
    return tl.load(weight_at + output * c + tl.arange(0, c)[None, :], mask=output < outputs, other=0.0)


@jit
@no_type_check
def _output_offsets(sample, position, columns, outputs, strides, tile_outputs: tl.constexpr):
    """Return the offsets of a tile of outputs and the mask of existing outputs."""
    output = tl.arange(0, tile_outputs)[None, :]
    offset = stream_offsets(sample, position, columns, strides[0], strides[1], strides[2])
    return offset[:, None] + output.to(tl.int64) * strides[3], output < outputs


@jit
@no_type_check
def _store_mapped(
    out_at, x, weight_at, bias_at, mask, offset, is_stored, outputs, c: tl.constexpr, tile_outputs: tl.constexpr
):
    """Store the map of normalised rows, times an optional mask."""
    out = tl.dot(x, tl.trans(_weight_rows(weight_at, outputs, c, tile_outputs)), input_precision="ieee")
    if bias_at is not None:
        output = tl.arange(0, tile_outputs)
        out += tl.load(bias_at + output, mask=output < outputs, other=0.0).to(tl.float32)[None, :]
    if mask is not None:
        out *= mask[:, None]
    tl.store(out_at + offset, out.to(x.dtype), mask=is_stored)


@kernel
@no_type_check
def _forward(
    x_at,
    norm_at,
    norm_offset_at,
    weight_at,
    bias_at,
    second_weight_at,
    second_bias_at,
    mask_at,
    out_at,
    second_out_at,
    x_strides,
    mask_strides,
    out_strides,
    columns,
    positions,
    tiles,
    outputs,
    c: tl.constexpr,
    tile_outputs: tl.constexpr,
    block: tl.constexpr,
):
    """Store one or two maps of the layer norm of a tile of positions; `tiles` is the number of tiles of a sample."""
    sample, position, exists = tile_positions(tl.program_id(0), tiles, positions, block)
    offset = stream_offsets(sample, position, columns, x_strides[0], x_strides[1], x_strides[2])
    x = read_normed(x_at + offset[:, None] + tl.arange(0, c), exists, norm_at, norm_offset_at, c)
    mask = None
    if mask_at is not None:
        offset = stream_offsets(sample, position, columns, mask_strides[0], mask_strides[1], mask_strides[2])
        mask = tl.load(mask_at + offset, mask=exists, other=0.0).to(tl.float32)
    offset, is_output = _output_offsets(sample, position, columns, outputs, out_strides, tile_outputs)
    is_stored = exists[:, None] & is_output
    _store_mapped(out_at, x, weight_at, bias_at, mask, offset, is_stored, outputs, c, tile_outputs)
    if second_out_at is not None:
        _store_mapped(
            second_out_at, x, second_weight_at, second_bias_at, mask, offset, is_stored, outputs, c, tile_outputs
        )


@jit
@no_type_check
def _output_gradient(
    gradient_at, strides, mask, sample, position, exists, columns, outputs, tile_outputs: tl.constexpr
):
    """Return the gradient of a tile of outputs, times an optional mask."""
    offset, is_output = _output_offsets(sample, position, columns, outputs, strides, tile_outputs)
    gradient = tl.load(gradient_at + offset, mask=exists[:, None] & is_output, other=0.0)
    return gradient if mask is None else (gradient.to(tl.float32) * mask[:, None]).to(gradient.dtype)


@jit
@no_type_check
def _store_map_gradients(
    sums_at, grad_weight, grad_bias, outputs, has_bias: tl.constexpr, c: tl.constexpr, tile_outputs: tl.constexpr
):
    """Store the sums of the gradients of the weight [outputs, c] of a map, then of its optional bias."""
    output = tl.arange(0, tile_outputs)
    at = sums_at + output[:, None] * c + tl.arange(0, c)
    tl.store(at, grad_weight, mask=(output < outputs)[:, None])
    if has_bias:
        tl.store(sums_at + outputs * c + output, grad_bias, mask=output < outputs)


@kernel
@no_type_check
def _backward(
    x_at,
    gradient_at,
    second_gradient_at,
    norm_at,
    norm_offset_at,
    weight_at,
    second_weight_at,
    mask_at,
    grad_x_at,
    sums_at,
    x_strides,
    gradient_strides,
    second_gradient_strides,
    mask_strides,
    grad_x_strides,
    columns,
    positions,
    tiles,
    all_tiles,
    outputs,
    c: tl.constexpr,
    tile_outputs: tl.constexpr,
    has_bias: tl.constexpr,
    block: tl.constexpr,
):
    """Store the gradient of x for every n-th tile, and the sums of the gradients of norm and maps over these tiles."""
    dtype = x_at.dtype.element_ty
    channel = tl.arange(0, c)
    weight = _weight_rows(weight_at, outputs, c, tile_outputs)
    grad_weight = tl.zeros([tile_outputs, c], tl.float32)
    grad_bias = tl.zeros([tile_outputs], tl.float32)
    if second_gradient_at is not None:
        second_weight = _weight_rows(second_weight_at, outputs, c, tile_outputs)
        grad_second_weight = tl.zeros([tile_outputs, c], tl.float32)
        grad_second_bias = tl.zeros([tile_outputs], tl.float32)
    grad_norm = tl.zeros([c], tl.float32)
    grad_norm_offset = tl.zeros([c], tl.float32)
    for tile in tl.range(tl.program_id(0), all_tiles, tl.num_programs(0)):
        sample, position, exists = tile_positions(tile, tiles, positions, block)
        offset = stream_offsets(sample, position, columns, x_strides[0], x_strides[1], x_strides[2])
        x = tl.load(x_at + offset[:, None] + channel, mask=exists[:, None], other=0.0)
        normed, factor = normalised(x, c)
        mask = None
        if mask_at is not None:
            offset = stream_offsets(sample, position, columns, mask_strides[0], mask_strides[1], mask_strides[2])
            mask = tl.load(mask_at + offset, mask=exists, other=0.0).to(tl.float32)
        gradient = _output_gradient(
            gradient_at, gradient_strides, mask, sample, position, exists, columns, outputs, tile_outputs
        )
        grad_x = tl.dot(gradient, weight, input_precision="ieee")
        if second_gradient_at is not None:
            second = _output_gradient(
                second_gradient_at,
                second_gradient_strides,
                mask,
                sample,
                position,
                exists,
                columns,
                outputs,
                tile_outputs,
            )
            grad_x = tl.dot(second, second_weight, grad_x, input_precision="ieee")
        if sums_at is not None:
            x = scaled(normed, norm_at, norm_offset_at, c).to(dtype)
            grad_bias += tl.sum(gradient.to(tl.float32), 0)
            grad_weight = tl.dot(tl.trans(gradient), x, grad_weight, input_precision="ieee")
            if second_gradient_at is not None:
                grad_second_bias += tl.sum(second.to(tl.float32), 0)
                grad_second_weight = tl.dot(tl.trans(second), x, grad_second_weight, input_precision="ieee")
            grad_norm += tl.sum(grad_x * normed, 0)
            grad_norm_offset += tl.sum(grad_x, 0)
        grad_x = norm_gradient(grad_x, normed, factor, norm_at, c)
        offset = stream_offsets(sample, position, columns, grad_x_strides[0], grad_x_strides[1], grad_x_strides[2])
        tl.store(grad_x_at + offset[:, None] + channel, grad_x.to(dtype), mask=exists[:, None])

    if sums_at is not None:
        numbers = outputs * (c + has_bias)
        maps = 1 if second_gradient_at is None else 2
        sums_at += tl.program_id(0) * (2 * c + maps * numbers)
        tl.store(sums_at + channel, grad_norm)
        tl.store(sums_at + c + channel, grad_norm_offset)
        sums_at += 2 * c
        _store_map_gradients(sums_at, grad_weight, grad_bias, outputs, has_bias, c, tile_outputs)
        if second_gradient_at is not None:
            sums_at += numbers
            _store_map_gradients(sums_at, grad_second_weight, grad_second_bias, outputs, has_bias, c, tile_outputs)


def norm_linear_triton(x: Tensor, norm: Affine, project: Affine) -> Tensor:
    """Compute `norm_linear` on a CUDA device.

    With fewer than 16 outputs, channels are first in memory, the layout in which attention reads biases.
    """
    rows = x[(None,) * (4 - x.ndim)]
    layout = "b i j c" if len(project.weight) >= _MIN_TILE else "b c i j"
    (mapped,) = _mapped(rows, None, norm, [project], layout)
    return mapped.view(*x.shape[:-1], -1)


def outer_product_operand_triton(columns: Tensor, mask: Tensor, norm: Affine, project: Affine) -> Tensor:
    """Compute `outer_product_operand` on a CUDA device, with sequences last in memory, for the outer product."""
    return _mapped(columns, mask, norm, [project], "b i c j")[0]


def outer_product_operands_triton(
    columns: Tensor, mask: Tensor, norm: Affine, left: Affine, right: Affine
) -> tuple[Tensor, Tensor]:
    """Compute `outer_product_operands` on a CUDA device, with sequences last in memory, for the outer product."""
    left_operand, right_operand = _mapped(columns, mask, norm, [left, right], "b i c j")
    return left_operand, right_operand.transpose(1, 2)


def _mapped(
    x: Tensor, mask: Tensor | None, norm: Affine, projects: Sequence[Affine], layout: str
) -> tuple[Tensor, ...]:
    """Return one or two maps of the layer norm of `x`; two maps must both have a bias or both have none."""
    weights = [project.weight.to(x.dtype).contiguous() for project in projects]
    maps = chain(*zip(weights, [project.bias for project in projects], strict=True))
    outputs: tuple[Tensor, ...] = recomputed(_norm_linear, _norm_linear_gradients, x, mask, *norm, *maps, layout=layout)
    return outputs


def _empty(x: Tensor, outputs: int, layout: str) -> Tensor:
    """Return memory for the outputs [b i j c] of x [b i j c]; `layout` is the order of dimensions in memory."""
    b, i, j, _ = x.shape
    match layout:
        case "b c i j":
            return x.new_empty(b, outputs, i, j).permute(0, 2, 3, 1)
        case "b i c j":
            return x.new_empty(b, i, outputs, j).transpose(2, 3)
    return x.new_empty(b, i, j, outputs)


def _tile(x: Tensor, outputs: int, positions: int, warps: int) -> dict[str, int]:
    """Return tile sizes and launch options; `positions` applies to elements of two bytes."""
    # Loading two tiles ahead hides the latency of memory if one program fills the registers.
    return {
        "c": x.shape[-1],
        "tile_outputs": max(_MIN_TILE, next_power_of_2(outputs)),
        "block": max(_MIN_TILE, positions // (x.element_size() // 2)),
        "num_warps": warps,
        "num_stages": 3,
    }


def _norm_linear(
    x: Tensor,
    mask: Tensor | None,
    norm: Tensor,
    norm_offset: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *second: Tensor | None,
    layout: str,
) -> tuple[Tensor, ...]:
    """Return the results of one map, or of two if the weight and bias of a `second` map are passed."""
    samples, rows, columns, _ = x.shape
    second_weight, second_bias = second or (None, None)
    # 64 elements of the stream per thread.
    outputs, tile = len(weight), _tile(x, len(weight), 2**14 // x.shape[-1], 8)
    out = [_empty(x, outputs, layout) for _ in range(2 if second else 1)]
    tiles = cdiv(rows * columns, tile["block"])
    _forward[(samples * tiles,)](
        x,
        norm,
        norm_offset,
        weight,
        bias,
        second_weight,
        second_bias,
        mask,
        *(*out, None)[:2],
        x.stride()[:3],
        (0, 0, 0) if mask is None else mask.stride(),
        out[0].stride(),
        columns,
        rows * columns,
        tiles,
        outputs,
        **tile,
    )
    return tuple(out)


def _norm_linear_gradients(needed: tuple[bool, ...], *arguments: Any, layout: str) -> tuple[Tensor | None, ...]:
    """Return the gradients of the arguments of `_norm_linear`; its results' gradients precede them in `arguments`."""
    count = (len(arguments) - 4) // 3
    gradients, (x, mask, norm, norm_offset, *maps) = arguments[:count], arguments[count:]
    samples, rows, columns, c = x.shape
    weight, bias, second_weight, _ = (*maps, None, None)[:4]
    # 32 elements of the stream per thread, with two programs per multiprocessor if they fit, or 16 elements if the sums
    # of the gradients of two weights take registers.
    warps, positions = 8 if c == 256 else 4, 64 // len(maps)
    outputs, tile = len(weight), _tile(x, len(weight), positions, warps)
    grad_x = torch.empty_like(x)
    tiles = cdiv(rows * columns, tile["block"])
    programs = min(samples * tiles, 8 // warps * programs_at_once(x.device))
    parameters = [each for each in (norm, norm_offset, *maps) if each is not None]
    size = sum(each.numel() for each in parameters)
    sums = x.new_empty(programs, size, dtype=torch.float32) if any(needed[2:]) else None
    gradient, second_gradient = (*gradients, None)[:2]
    _backward[(programs,)](
        x,
        gradient,
        second_gradient,
        norm,
        norm_offset,
        weight,
        second_weight,
        mask,
        grad_x,
        sums,
        x.stride()[:3],
        gradient.stride(),
        (0, 0, 0, 0) if second_gradient is None else second_gradient.stride(),
        (0, 0, 0) if mask is None else mask.stride(),
        grad_x.stride()[:3],
        columns,
        rows * columns,
        tiles,
        samples * tiles,
        outputs,
        has_bias=bias is not None,
        **tile,
    )
    sums_of_parameters = iter([None] * len(parameters) if sums is None else summed(sums, *parameters))
    return grad_x, None, *(None if each is None else next(sums_of_parameters) for each in (norm, norm_offset, *maps))
