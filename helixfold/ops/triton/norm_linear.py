"""A layer norm and a linear map to few channels as Triton kernels, one pass over the stream in either direction.

The outputs are stored in the memory layout that their reader needs, times a mask if there is one.
"""

from typing import no_type_check

import torch
from torch import Tensor

from helixfold.ops.recomputed import recomputed
from helixfold.ops.triton.language import cdiv, jit, kernel, next_power_of_2, tl
from helixfold.ops.triton.sums import summed
from helixfold.ops.triton.tiles import (
    norm_gradient,
    normalised,
    programs_at_once,
    read_normed,
    scaled,
    stream_offsets,
    tile_positions,
)
from helixfold.ops.weights import Affine

# The smallest side of a tile in a matrix product.
_LEAST = 16


@jit
@no_type_check
def _weight_rows(weight_at, outputs, c: tl.constexpr, tile_outputs: tl.constexpr):
    output = tl.arange(0, tile_outputs)[:, None]
    return tl.load(weight_at + output * c + tl.arange(0, c)[None, :], mask=output < outputs, other=0.0)


@jit
@no_type_check
def _output_offsets(sample, position, columns, outputs, strides, tile_outputs: tl.constexpr):
    """Return the offsets of a tile of outputs and the mask of existing outputs."""
    output = tl.arange(0, tile_outputs)[None, :]
    offset = stream_offsets(sample, position, columns, strides[0], strides[1], strides[2])
    return offset[:, None] + output.to(tl.int64) * strides[3], output < outputs


@kernel
@no_type_check
def _forward(
    x_at,
    norm_at,
    norm_offset_at,
    weight_at,
    bias_at,
    mask_at,
    out_at,
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
    sample, position, exists = tile_positions(tl.program_id(0), tiles, positions, block)
    offset = stream_offsets(sample, position, columns, x_strides[0], x_strides[1], x_strides[2])
    x = read_normed(x_at + offset[:, None] + tl.arange(0, c), exists, norm_at, norm_offset_at, c)
    out = tl.dot(x, tl.trans(_weight_rows(weight_at, outputs, c, tile_outputs)), input_precision="ieee")
    if bias_at is not None:
        output = tl.arange(0, tile_outputs)
        out += tl.load(bias_at + output, mask=output < outputs, other=0.0).to(tl.float32)[None, :]
    if mask_at is not None:
        offset = stream_offsets(sample, position, columns, mask_strides[0], mask_strides[1], mask_strides[2])
        out *= tl.load(mask_at + offset, mask=exists, other=0.0).to(tl.float32)[:, None]
    offset, is_output = _output_offsets(sample, position, columns, outputs, out_strides, tile_outputs)
    tl.store(out_at + offset, out.to(x.dtype), mask=exists[:, None] & is_output)


@kernel
@no_type_check
def _backward(
    x_at,
    gradient_at,
    norm_at,
    norm_offset_at,
    weight_at,
    mask_at,
    grad_x_at,
    sums_at,
    x_strides,
    gradient_strides,
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
    dtype = x_at.dtype.element_ty
    channel = tl.arange(0, c)
    weight = _weight_rows(weight_at, outputs, c, tile_outputs)
    grad_weight = tl.zeros([tile_outputs, c], tl.float32)
    grad_bias = tl.zeros([tile_outputs], tl.float32)
    grad_norm = tl.zeros([c], tl.float32)
    grad_norm_offset = tl.zeros([c], tl.float32)
    for tile in tl.range(tl.program_id(0), all_tiles, tl.num_programs(0)):
        sample, position, exists = tile_positions(tile, tiles, positions, block)
        offset = stream_offsets(sample, position, columns, x_strides[0], x_strides[1], x_strides[2])
        x = tl.load(x_at + offset[:, None] + channel, mask=exists[:, None], other=0.0)
        normed, factor = normalised(x, c)
        offset, is_output = _output_offsets(sample, position, columns, outputs, gradient_strides, tile_outputs)
        gradient = tl.load(gradient_at + offset, mask=exists[:, None] & is_output, other=0.0)
        if mask_at is not None:
            offset = stream_offsets(sample, position, columns, mask_strides[0], mask_strides[1], mask_strides[2])
            mask = tl.load(mask_at + offset, mask=exists, other=0.0)
            gradient = (gradient.to(tl.float32) * mask.to(tl.float32)[:, None]).to(dtype)
        grad_x = tl.dot(gradient, weight, input_precision="ieee")
        if sums_at is not None:
            grad_bias += tl.sum(gradient.to(tl.float32), 0)
            x = scaled(normed, norm_at, norm_offset_at, c).to(dtype)
            grad_weight = tl.dot(tl.trans(gradient), x, grad_weight, input_precision="ieee")
            grad_norm += tl.sum(grad_x * normed, 0)
            grad_norm_offset += tl.sum(grad_x, 0)
        grad_x = norm_gradient(grad_x, normed, factor, norm_at, c)
        offset = stream_offsets(sample, position, columns, grad_x_strides[0], grad_x_strides[1], grad_x_strides[2])
        tl.store(grad_x_at + offset[:, None] + channel, grad_x.to(dtype), mask=exists[:, None])

    if sums_at is not None:
        output = tl.arange(0, tile_outputs)
        sums_at += tl.program_id(0) * (2 * c + outputs * (c + has_bias))
        tl.store(sums_at + channel, grad_norm)
        tl.store(sums_at + c + channel, grad_norm_offset)
        sums_at += 2 * c
        tl.store(sums_at + output[:, None] * c + channel, grad_weight, mask=(output < outputs)[:, None])
        if has_bias:
            tl.store(sums_at + outputs * c + output, grad_bias, mask=output < outputs)


def norm_linear_triton(x: Tensor, norm: Affine, project: Affine) -> Tensor:
    """Compute `norm_linear` on a CUDA device; fewer than 16 channels are first in memory, as attention reads biases."""
    rows = x[(None,) * (4 - x.ndim)]
    layout = "b i j c" if len(project.weight) >= _LEAST else "b c i j"
    return _mapped(rows, None, norm, project, layout).view(*x.shape[:-1], -1)


def outer_product_operand_triton(columns: Tensor, mask: Tensor, norm: Affine, project: Affine) -> Tensor:
    """Compute `outer_product_operand` on a CUDA device, with sequences last in memory, for the outer product."""
    return _mapped(columns, mask, norm, project, "b i c j")


def _mapped(x: Tensor, mask: Tensor | None, norm: Affine, project: Affine, layout: str) -> Tensor:
    weight = project.weight.to(x.dtype).contiguous()
    return recomputed(_norm_linear, _norm_linear_gradients, x, mask, *norm, weight, project.bias, layout=layout)


def _empty(x: Tensor, outputs: int, layout: str) -> Tensor:
    """Return memory for the outputs [b i j c] of x [b i j c], which lies as `layout` names the dimensions."""
    b, i, j, _ = x.shape
    match layout:
        case "b c i j":
            return x.new_empty(b, outputs, i, j).permute(0, 2, 3, 1)
        case "b i c j":
            return x.new_empty(b, i, outputs, j).transpose(2, 3)
    return x.new_empty(b, i, j, outputs)


def _tile(x: Tensor, outputs: int, positions: int, warps: int) -> dict[str, int]:
    """Return tile sizes and launch options; `positions` is for two bytes per number."""
    # Two tiles being loaded hide the memory's latency where one program fills the registers.
    return {
        "c": x.shape[-1],
        "tile_outputs": max(_LEAST, next_power_of_2(outputs)),
        "block": positions // (x.element_size() // 2),
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
    *,
    layout: str,
) -> Tensor:
    samples, rows, columns, _ = x.shape
    # 64 numbers of the stream for each thread.
    outputs, tile = len(weight), _tile(x, len(weight), 2**14 // x.shape[-1], 8)
    out = _empty(x, outputs, layout)
    tiles = cdiv(rows * columns, tile["block"])
    _forward[(samples * tiles,)](
        x,
        norm,
        norm_offset,
        weight,
        bias,
        mask,
        out,
        x.stride()[:3],
        (0, 0, 0) if mask is None else mask.stride(),
        out.stride(),
        columns,
        rows * columns,
        tiles,
        outputs,
        **tile,
    )
    return out


def _norm_linear_gradients(
    needed: tuple[bool, ...],
    gradient: Tensor,
    x: Tensor,
    mask: Tensor | None,
    norm: Tensor,
    norm_offset: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    layout: str,
) -> tuple[Tensor | None, ...]:
    samples, rows, columns, c = x.shape
    # 32 numbers of the stream for each thread, of two programs on a multiprocessor where so many fit.
    warps = 8 if c == 256 else 4
    outputs, tile = len(weight), _tile(x, len(weight), 32, warps)
    grad_x = torch.empty_like(x)
    tiles = cdiv(rows * columns, tile["block"])
    programs = min(samples * tiles, 8 // warps * programs_at_once(x.device))
    parameters = [norm, norm_offset, weight, *([] if bias is None else [bias])]
    numbers = sum(each.numel() for each in parameters)
    sums = x.new_empty(programs, numbers, dtype=torch.float32) if any(needed[2:]) else None
    _backward[(programs,)](
        x,
        gradient,
        norm,
        norm_offset,
        weight,
        mask,
        grad_x,
        sums,
        x.stride()[:3],
        gradient.stride(),
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
    gradients = [None] * len(parameters) if sums is None else summed(sums, *parameters)
    return grad_x, None, *gradients, *([None] if bias is None else [])
