"""Gradients of the gated maps of triangle multiplication: one kernel for their inputs, one for their parameters.

Both recompute values and gates. Sums over positions are partial sums of programs that each own some outputs and loop
over many tiles. They are added afterwards, so that their order is fixed.
"""

from typing import no_type_check

import torch
from torch import Tensor

from helixfold.ops.triton.language import cdiv, kernel, tl
from helixfold.ops.triton.tiles import (
    channels_first_offsets,
    norm_gradient,
    normalised,
    programs_at_once,
    read_normed,
    stream_offsets,
    sum_norm,
    tile_positions,
)
from helixfold.ops.triton.triangle_forward import Maps, gated_maps


@kernel
@no_type_check
def _to_streams(
    pair_at,
    product_at,
    mask_at,
    gradient_at,
    grad_pair_at,
    grad_product_at,
    pair_sums_at,
    product_sums_at,
    norm_at,
    norm_offset_at,
    norm_out_at,
    norm_out_offset_at,
    weight_at,
    bias_at,
    gate_at,
    gate_bias_at,
    pair_sample,
    pair_row,
    pair_column,
    mask_sample,
    mask_row,
    mask_column,
    gradient_sample,
    gradient_row,
    gradient_column,
    grad_pair_sample,
    grad_pair_row,
    grad_pair_column,
    columns,
    positions,
    tiles,
    c_z: tl.constexpr,
    c_a: tl.constexpr,
    c_out: tl.constexpr,
    tail: tl.constexpr,
    adds: tl.constexpr,
    block: tl.constexpr,
    part: tl.constexpr,
):
    dtype = pair_at.dtype.element_ty
    tile = tl.program_id(0)
    sample, position, exists = tile_positions(tile, tiles, positions, block)
    channel = tl.arange(0, c_z)
    pair_index = stream_offsets(sample, position, columns, pair_sample, pair_row, pair_column)[:, None] + channel
    x = read_normed(pair_at + pair_index, exists, norm_at, norm_offset_at, c_z)
    grad_x = tl.zeros([block, c_z], tl.float32)
    if tail:
        a_index = channels_first_offsets(sample, position, positions, 0, c_a, c_a)
        a = read_normed(product_at + a_index, exists, norm_out_at, norm_out_offset_at, c_a)
        grad_a = tl.zeros([block, c_a], tl.float32)
        gradient_index = stream_offsets(sample, position, columns, gradient_sample, gradient_row, gradient_column)
    else:
        a = x
        mask_index = stream_offsets(sample, position, columns, mask_sample, mask_row, mask_column)
        mask = tl.load(mask_at + mask_index, mask=exists, other=0.0)
    for first in tl.range(0, c_out, part):
        value, gate, weight, gate_weight = gated_maps(
            a, x, weight_at, bias_at, gate_at, gate_bias_at, first, c_a, c_z, part
        )
        if tail:
            index = gradient_index[:, None] + first + tl.arange(0, part)
        else:
            index = channels_first_offsets(sample, position, positions, first, c_out, part)
        gradient = tl.load(gradient_at + index, mask=exists[:, None], other=0.0).to(tl.float32)
        if not tail:
            gradient *= mask[:, None]
        grad_value = (gradient * gate).to(dtype)
        grad_gate = (gradient * value * gate * (1.0 - gate)).to(dtype)
        grad_x = tl.dot(grad_gate, gate_weight, grad_x, input_precision="ieee")
        if tail:
            grad_a = tl.dot(grad_value, weight, grad_a, input_precision="ieee")
        else:
            grad_x = tl.dot(grad_value, weight, grad_x, input_precision="ieee")

    # Read and normalised a second time, so that two float32 tiles need not be held during the loop.
    x_normed, x_scale = normalised(tl.load(pair_at + pair_index, mask=exists[:, None], other=0.0), c_z)
    sum_norm(pair_sums_at + tile.to(tl.int64) * 2 * c_z, grad_x, x_normed, c_z)
    grad_x = norm_gradient(grad_x, x_normed, x_scale, norm_at, c_z)
    grad_pair_at += (
        stream_offsets(sample, position, columns, grad_pair_sample, grad_pair_row, grad_pair_column)[:, None] + channel
    )
    if adds:
        grad_x += tl.load(grad_pair_at, mask=exists[:, None], other=0.0).to(tl.float32)
    tl.store(grad_pair_at, grad_x.to(dtype), mask=exists[:, None])
    if tail:
        a_normed, a_scale = normalised(tl.load(product_at + a_index, mask=exists[:, None], other=0.0), c_a)
        sum_norm(product_sums_at + tile.to(tl.int64) * 2 * c_a, grad_a, a_normed, c_a)
        grad_a = norm_gradient(grad_a, a_normed, a_scale, norm_out_at, c_a)
        tl.store(grad_product_at + a_index, grad_a.to(dtype), mask=exists[:, None])


@kernel
@no_type_check
def _to_maps(
    pair_at,
    product_at,
    mask_at,
    gradient_at,
    sums_at,
    norm_at,
    norm_offset_at,
    norm_out_at,
    norm_out_offset_at,
    weight_at,
    bias_at,
    gate_at,
    gate_bias_at,
    pair_sample,
    pair_row,
    pair_column,
    mask_sample,
    mask_row,
    mask_column,
    gradient_sample,
    gradient_row,
    gradient_column,
    columns,
    positions,
    tiles,
    all_tiles,
    c_z: tl.constexpr,
    c_a: tl.constexpr,
    c_out: tl.constexpr,
    tail: tl.constexpr,
    block: tl.constexpr,
    part: tl.constexpr,
):
    dtype = pair_at.dtype.element_ty
    first = tl.program_id(0) * part
    output = first + tl.arange(0, part)
    grad_weight = tl.zeros([part, c_a], tl.float32)
    grad_gate_weight = tl.zeros([part, c_z], tl.float32)
    grad_bias = tl.zeros([part], tl.float32)
    grad_gate_bias = tl.zeros([part], tl.float32)
    for tile in tl.range(tl.program_id(1), all_tiles, tl.num_programs(1)):
        sample, position, exists = tile_positions(tile, tiles, positions, block)
        pair_index = stream_offsets(sample, position, columns, pair_sample, pair_row, pair_column)[:, None] + tl.arange(
            0, c_z
        )
        x = read_normed(pair_at + pair_index, exists, norm_at, norm_offset_at, c_z)
        if tail:
            a_index = channels_first_offsets(sample, position, positions, 0, c_a, c_a)
            a = read_normed(product_at + a_index, exists, norm_out_at, norm_out_offset_at, c_a)
            index = stream_offsets(sample, position, columns, gradient_sample, gradient_row, gradient_column)
            index = index[:, None] + output
        else:
            a = x
            index = channels_first_offsets(sample, position, positions, first, c_out, part)
        gradient = tl.load(gradient_at + index, mask=exists[:, None], other=0.0).to(tl.float32)
        if not tail:
            mask_index = stream_offsets(sample, position, columns, mask_sample, mask_row, mask_column)
            gradient *= tl.load(mask_at + mask_index, mask=exists, other=0.0)[:, None]
        # Equals `first`; as the compiler does not know that, it keeps registers for the sums instead of the weights.
        again = first + tile // all_tiles
        value, gate, _, _ = gated_maps(a, x, weight_at, bias_at, gate_at, gate_bias_at, again, c_a, c_z, part)
        grad_value = gradient * gate
        grad_gate = grad_value * value * (1.0 - gate)
        grad_bias += tl.sum(grad_value, 0)
        grad_gate_bias += tl.sum(grad_gate, 0)
        grad_weight = tl.dot(tl.trans(grad_value.to(dtype)), a, grad_weight, input_precision="ieee")
        grad_gate_weight = tl.dot(tl.trans(grad_gate.to(dtype)), x, grad_gate_weight, input_precision="ieee")

    sums_at += tl.program_id(1) * (c_out * (c_a + c_z + 2))
    tl.store(sums_at + output[:, None] * c_a + tl.arange(0, c_a), grad_weight)
    sums_at += c_out * c_a
    tl.store(sums_at + output, grad_bias)
    sums_at += c_out
    tl.store(sums_at + output[:, None] * c_z + tl.arange(0, c_z), grad_gate_weight)
    sums_at += c_out * c_z
    tl.store(sums_at + output, grad_gate_bias)


def to_streams(
    pair: Tensor,
    product: Tensor | None,
    mask: Tensor | None,
    maps: Maps,
    gradient: Tensor,
    grad_pair: Tensor | None = None,
) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """Return the gradients of the pair, of the product, and of scale and offset of both layer norms.

    The pair's is added to `grad_pair` in place if given. Without a product the second and the last are meaningless.
    """
    samples, rows, columns, c_z = pair.shape
    outputs, c_a = maps.value.weight.shape
    tail, adds = product is not None, grad_pair is not None
    grad_pair = torch.empty_like(pair) if grad_pair is None else grad_pair
    grad_product = grad_pair if product is None else torch.empty_like(product)
    is_float32 = pair.element_size() == 4
    block = 32 if is_float32 else 64
    tiles = cdiv(rows * columns, block)
    grad_norm = pair.new_empty(samples * tiles, 2, c_z, dtype=torch.float32)
    grad_norm_product = pair.new_empty(samples * tiles if tail else 0, 2, c_a, dtype=torch.float32)
    _to_streams[(samples * tiles,)](
        pair,
        pair if product is None else product,
        pair if mask is None else mask,
        gradient,
        grad_pair,
        grad_product,
        grad_norm,
        grad_norm_product if tail else grad_norm,
        *maps.pointers,
        *pair.stride()[:3],
        *(0, 0, 0) if mask is None else mask.stride(),
        *gradient.stride()[:3],
        *grad_pair.stride()[:3],
        columns,
        rows * columns,
        tiles,
        c_z=c_z,
        c_a=c_a,
        c_out=outputs,
        tail=tail,
        adds=adds,
        block=block,
        part=min(32, outputs),
        # Two programs of four warps fit if each holds one tile at a time: one computes while the other loads.
        num_warps=8 if tail or is_float32 else 4,
        num_stages=2,
    )
    return grad_pair, grad_product, list(grad_norm.sum(0)), list(grad_norm_product.sum(0))


def to_maps(pair: Tensor, product: Tensor | None, mask: Tensor | None, maps: Maps, gradient: Tensor) -> list[Tensor]:
    """Return the gradients of weight and bias of the map to values, then of the map to gates, in their dtype."""
    samples, rows, columns, c_z = pair.shape
    outputs, c_a = maps.value.weight.shape
    block, part = (64, 64) if pair.element_size() == 2 else (32, 16)
    part = min(part, outputs)
    tiles = cdiv(rows * columns, block)
    groups = max(1, min(samples * tiles, programs_at_once(pair.device) * part // outputs))
    lengths = [outputs * c_a, outputs, outputs * c_z, outputs]
    sums = pair.new_empty(groups, sum(lengths), dtype=torch.float32)
    _to_maps[(outputs // part, groups)](
        pair,
        pair if product is None else product,
        pair if mask is None else mask,
        gradient,
        sums,
        *maps.pointers,
        *pair.stride()[:3],
        *(0, 0, 0) if mask is None else mask.stride(),
        *gradient.stride()[:3],
        columns,
        rows * columns,
        tiles,
        samples * tiles,
        c_z=c_z,
        c_a=c_a,
        c_out=outputs,
        tail=product is not None,
        block=block,
        part=part,
        num_warps=8,
        num_stages=2,
    )
    weight, bias, gate, gate_bias = sums.sum(0).to(maps.value.weight.dtype).split(lengths)
    return [weight.view(outputs, c_a), bias, gate.view(outputs, c_z), gate_bias]
