"""A layer norm and a linear map to few channels as Triton kernels, one pass over the stream in either direction."""

from typing import no_type_check

import torch
from torch import Tensor

from helixfold.ops.recomputed import recomputed
from helixfold.ops.triton.language import cdiv, jit, kernel, next_power_of_2, tl
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
# Elements of a tile of a stream with two bytes per element: 64 or 32 per thread in registers.
_FORWARD_TILE = 2**14
_BACKWARD_TILE = 2**13


@jit
@no_type_check
def _weight_rows(weight_at, outputs, c: tl.constexpr, tile_outputs: tl.constexpr):
    output = tl.arange(0, tile_outputs)[:, None]
    return tl.load(weight_at + output * c + tl.arange(0, c)[None, :], mask=output < outputs, other=0.0)


@jit
@no_type_check
def _output_offsets(sample, position, positions, outputs, channels_first: tl.constexpr, tile_outputs: tl.constexpr):
    """Return the offsets of a tile of outputs, with channels first or last in memory, and the mask of existing ones."""
    output = tl.arange(0, tile_outputs)[None, :]
    if channels_first:
        offset = (sample * outputs + output) * positions + position[:, None]
    else:
        offset = (sample * positions + position[:, None]) * outputs + output
    return offset, (position < positions)[:, None] & (output < outputs)


@kernel
@no_type_check
def _forward(
    x_at,
    norm_at,
    norm_offset_at,
    weight_at,
    bias_at,
    out_at,
    x_sample,
    x_row,
    x_column,
    columns,
    positions,
    tiles,
    outputs,
    c: tl.constexpr,
    tile_outputs: tl.constexpr,
    channels_first: tl.constexpr,
    block: tl.constexpr,
):
    sample, position, exists = tile_positions(tl.program_id(0), tiles, positions, block)
    offset = stream_offsets(sample, position, columns, x_sample, x_row, x_column)[:, None] + tl.arange(0, c)
    x = read_normed(x_at + offset, exists, norm_at, norm_offset_at, c)
    out = tl.dot(x, tl.trans(_weight_rows(weight_at, outputs, c, tile_outputs)), input_precision="ieee")
    if bias_at is not None:
        output = tl.arange(0, tile_outputs)
        out += tl.load(bias_at + output, mask=output < outputs, other=0.0).to(tl.float32)[None, :]
    offset, is_output = _output_offsets(sample, position, positions, outputs, channels_first, tile_outputs)
    tl.store(out_at + offset, out.to(x.dtype), mask=is_output)


@kernel
@no_type_check
def _backward(
    x_at,
    gradient_at,
    norm_at,
    norm_offset_at,
    weight_at,
    grad_x_at,
    sums_at,
    x_sample,
    x_row,
    x_column,
    grad_x_sample,
    grad_x_row,
    grad_x_column,
    columns,
    positions,
    tiles,
    all_tiles,
    outputs,
    c: tl.constexpr,
    tile_outputs: tl.constexpr,
    channels_first: tl.constexpr,
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
        offset = stream_offsets(sample, position, columns, x_sample, x_row, x_column)[:, None] + channel
        normed, factor = normalised(tl.load(x_at + offset, mask=exists[:, None], other=0.0), c)
        offset, is_output = _output_offsets(sample, position, positions, outputs, channels_first, tile_outputs)
        gradient = tl.load(gradient_at + offset, mask=is_output, other=0.0)
        grad_bias += tl.sum(gradient.to(tl.float32), 0)
        x = scaled(normed, norm_at, norm_offset_at, c).to(dtype)
        grad_weight = tl.dot(tl.trans(gradient), x, grad_weight, input_precision="ieee")
        grad_x = tl.dot(gradient, weight, input_precision="ieee")
        grad_norm += tl.sum(grad_x * normed, 0)
        grad_norm_offset += tl.sum(grad_x, 0)
        grad_x = norm_gradient(grad_x, normed, factor, norm_at, c)
        offset = stream_offsets(sample, position, columns, grad_x_sample, grad_x_row, grad_x_column)[:, None] + channel
        tl.store(grad_x_at + offset, grad_x.to(dtype), mask=exists[:, None])

    output = tl.arange(0, tile_outputs)
    sums_at += tl.program_id(0) * (2 * c + tile_outputs * (c + 1))
    tl.store(sums_at + channel, grad_norm)
    tl.store(sums_at + c + channel, grad_norm_offset)
    sums_at += 2 * c
    tl.store(sums_at + output[:, None] * c + channel, grad_weight)
    tl.store(sums_at + tile_outputs * c + output, grad_bias)


def norm_linear_triton(x: Tensor, norm: Affine, project: Affine) -> Tensor:
    """Compute `norm_linear` on a CUDA device; fewer than 16 channels are first in memory, as attention reads biases."""
    rows = x[(None,) * (4 - x.ndim)]
    weight, bias = project.to(x.dtype)
    return recomputed(
        _norm_linear, _norm_linear_gradients, rows, *norm.to(torch.float32), weight.contiguous(), bias
    ).view(*x.shape[:-1], -1)


def _constants(x: Tensor, outputs: int, elements: int) -> dict[str, int]:
    block = elements // x.shape[-1] // (x.element_size() // 2)
    tile_outputs = max(_LEAST, next_power_of_2(outputs))
    # Three stages: one program fills the registers, and two tiles being loaded hide the memory's latency.
    return {
        "c": x.shape[-1],
        "tile_outputs": tile_outputs,
        "channels_first": outputs < _LEAST,
        "block": block,
        "num_warps": 8,
        "num_stages": 3,
    }


def _norm_linear(x: Tensor, norm: Tensor, norm_offset: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    samples, rows, columns, _ = x.shape
    outputs, constants = len(weight), _constants(x, len(weight), _FORWARD_TILE)
    out = (
        x.new_empty(samples, outputs, rows, columns).permute(0, 2, 3, 1)
        if constants["channels_first"]
        else x.new_empty(samples, rows, columns, outputs)
    )
    tiles = cdiv(rows * columns, constants["block"])
    _forward[(samples * tiles,)](
        x,
        norm,
        norm_offset,
        weight,
        bias,
        out,
        *x.stride()[:3],
        columns,
        rows * columns,
        tiles,
        outputs,
        **constants,
    )
    return out


def _norm_linear_gradients(
    needed: tuple[bool, ...],
    gradient: Tensor,
    x: Tensor,
    norm: Tensor,
    norm_offset: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> tuple[Tensor | None, ...]:
    samples, rows, columns, c = x.shape
    outputs, constants = len(weight), _constants(x, len(weight), _BACKWARD_TILE)
    gradient = (gradient.permute(0, 3, 1, 2) if constants["channels_first"] else gradient).contiguous()
    grad_x = torch.empty_like(x)
    tiles = cdiv(rows * columns, constants["block"])
    programs = min(samples * tiles, programs_at_once(x.device))
    lengths = [c, c, constants["tile_outputs"] * c, constants["tile_outputs"]]
    sums = x.new_empty(programs, sum(lengths), dtype=torch.float32)
    _backward[(programs,)](
        x,
        gradient,
        norm,
        norm_offset,
        weight,
        grad_x,
        sums,
        *x.stride()[:3],
        *grad_x.stride()[:3],
        columns,
        rows * columns,
        tiles,
        samples * tiles,
        outputs,
        **constants,
    )
    grad_norm, grad_norm_offset, grad_weight, grad_bias = sums.sum(0).split(lengths)
    grad_weight = grad_weight.view(-1, c)[:outputs].to(weight.dtype)
    return (
        grad_x,
        grad_norm,
        grad_norm_offset,
        grad_weight,
        grad_bias[:outputs].to(weight.dtype) if bias is not None else None,
    )
