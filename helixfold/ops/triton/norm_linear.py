"""A layer norm and a linear map to few channels as Triton kernels, one pass over the stream in either direction."""

from typing import no_type_check

import torch
from torch import Tensor

from helixfold.ops.recomputed import recomputed
from helixfold.ops.triton.language import cdiv, jit, kernel, next_power_of_2, tl
from helixfold.ops.triton.tiles import norm_gradient, normalised, programs_at_once, read_normed, scaled, spot, strided
from helixfold.ops.weights import Affine

# The smallest side of a tile in a matrix product.
_LEAST = 16
# Elements of a tile of a stream with two bytes per element: 64 or 32 per thread in registers.
_FORWARD_TILE = 2**14
_BACKWARD_TILE = 2**13


@jit
@no_type_check
def _weight_rows(weight_at, outputs, c: tl.constexpr, most: tl.constexpr):
    output = tl.arange(0, most)[:, None]
    return tl.load(weight_at + output * c + tl.arange(0, c)[None, :], mask=output < outputs, other=0.0)


@jit
@no_type_check
def _narrow(sample, position, positions, outputs, leads: tl.constexpr, most: tl.constexpr):
    """Return the offsets of a tile of outputs, with channels first or last in memory, and the mask of existing ones."""
    output = tl.arange(0, most)[None, :]
    if leads:
        place = (sample * outputs + output) * positions + position[:, None]
    else:
        place = (sample * positions + position[:, None]) * outputs + output
    return place, (position < positions)[:, None] & (output < outputs)


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
    most: tl.constexpr,
    leads: tl.constexpr,
    block: tl.constexpr,
):
    sample, position, there = spot(tl.program_id(0), tiles, positions, block)
    place = strided(sample, position, columns, x_sample, x_row, x_column)[:, None] + tl.arange(0, c)
    x = read_normed(x_at + place, there, norm_at, norm_offset_at, c)
    out = tl.dot(x, tl.trans(_weight_rows(weight_at, outputs, c, most)), input_precision="ieee")
    if bias_at is not None:
        output = tl.arange(0, most)
        out += tl.load(bias_at + output, mask=output < outputs, other=0.0).to(tl.float32)[None, :]
    place, exist = _narrow(sample, position, positions, outputs, leads, most)
    tl.store(out_at + place, out.to(x.dtype), mask=exist)


@kernel
@no_type_check
def _backward(
    x_at,
    gradient_at,
    norm_at,
    norm_offset_at,
    weight_at,
    of_x_at,
    sums_at,
    x_sample,
    x_row,
    x_column,
    of_x_sample,
    of_x_row,
    of_x_column,
    columns,
    positions,
    tiles,
    all_tiles,
    outputs,
    c: tl.constexpr,
    most: tl.constexpr,
    leads: tl.constexpr,
    block: tl.constexpr,
):
    kind = x_at.dtype.element_ty
    channel = tl.arange(0, c)
    weight = _weight_rows(weight_at, outputs, c, most)
    of_weight = tl.zeros([most, c], tl.float32)
    of_bias = tl.zeros([most], tl.float32)
    of_norm = tl.zeros([c], tl.float32)
    of_norm_offset = tl.zeros([c], tl.float32)
    for tile in tl.range(tl.program_id(0), all_tiles, tl.num_programs(0)):
        sample, position, there = spot(tile, tiles, positions, block)
        place = strided(sample, position, columns, x_sample, x_row, x_column)[:, None] + channel
        normed, factor = normalised(tl.load(x_at + place, mask=there[:, None], other=0.0), c)
        place, exist = _narrow(sample, position, positions, outputs, leads, most)
        gradient = tl.load(gradient_at + place, mask=exist, other=0.0)
        of_bias += tl.sum(gradient.to(tl.float32), 0)
        x = scaled(normed, norm_at, norm_offset_at, c).to(kind)
        of_weight = tl.dot(tl.trans(gradient), x, of_weight, input_precision="ieee")
        of_x = tl.dot(gradient, weight, input_precision="ieee")
        of_norm += tl.sum(of_x * normed, 0)
        of_norm_offset += tl.sum(of_x, 0)
        of_x = norm_gradient(of_x, normed, factor, norm_at, c)
        place = strided(sample, position, columns, of_x_sample, of_x_row, of_x_column)[:, None] + channel
        tl.store(of_x_at + place, of_x.to(kind), mask=there[:, None])

    output = tl.arange(0, most)
    sums_at += tl.program_id(0) * (2 * c + most * (c + 1))
    tl.store(sums_at + channel, of_norm)
    tl.store(sums_at + c + channel, of_norm_offset)
    sums_at += 2 * c
    tl.store(sums_at + output[:, None] * c + channel, of_weight)
    tl.store(sums_at + most * c + output, of_bias)


def norm_linear_triton(x: Tensor, norm: Affine, project: Affine) -> Tensor:
    """Compute `norm_linear` on a CUDA device; fewer than 16 channels are first in memory, as attention reads biases."""
    rows = x[(None,) * (4 - x.ndim)]
    weight, bias = project.to(x.dtype)
    return recomputed(
        _norm_linear, _norm_linear_gradients, rows, *norm.to(torch.float32), weight.contiguous(), bias
    ).view(*x.shape[:-1], -1)


def _constants(x: Tensor, outputs: int, elements: int) -> dict[str, int]:
    block = elements // x.shape[-1] // (x.element_size() // 2)
    most = max(_LEAST, next_power_of_2(outputs))
    # Three stages: one program fills the registers, and two tiles being loaded hide the memory's latency.
    return {
        "c": x.shape[-1],
        "most": most,
        "leads": outputs < _LEAST,
        "block": block,
        "num_warps": 8,
        "num_stages": 3,
    }


def _norm_linear(x: Tensor, norm: Tensor, norm_offset: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    samples, rows, columns, _ = x.shape
    outputs, constants = len(weight), _constants(x, len(weight), _FORWARD_TILE)
    out = (
        x.new_empty(samples, outputs, rows, columns).permute(0, 2, 3, 1)
        if constants["leads"]
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
    gradient = (gradient.permute(0, 3, 1, 2) if constants["leads"] else gradient).contiguous()
    of_x = torch.empty_like(x)
    tiles = cdiv(rows * columns, constants["block"])
    programs = min(samples * tiles, programs_at_once(x.device))
    lengths = [c, c, constants["most"] * c, constants["most"]]
    sums = x.new_empty(programs, sum(lengths), dtype=torch.float32)
    _backward[(programs,)](
        x,
        gradient,
        norm,
        norm_offset,
        weight,
        of_x,
        sums,
        *x.stride()[:3],
        *of_x.stride()[:3],
        columns,
        rows * columns,
        tiles,
        samples * tiles,
        outputs,
        **constants,
    )
    of_norm, of_norm_offset, of_weight, of_bias = sums.sum(0).split(lengths)
    of_weight = of_weight.view(-1, c)[:outputs].to(weight.dtype)
    return of_x, of_norm, of_norm_offset, of_weight, of_bias[:outputs].to(weight.dtype) if bias is not None else None
