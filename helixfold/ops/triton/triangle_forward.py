"""Gated maps of triangle multiplication before and after cuBLAS's batched product, each in one pass over the pair.

Both compute `(W norm(a) + b) * sigmoid(V norm(pair) + d)` for tiles of positions. Before the product, `a` is the pair
and the result, an operand, is masked and has channels first. After it ("tail"), `a` is the product, which has channels
first, and the result has the pair's memory layout.
"""

from dataclasses import dataclass
from typing import no_type_check

import torch
from torch import Tensor

from helixfold.ops.triton.language import cdiv, jit, kernel, tl
from helixfold.ops.triton.tiles import channels_first_offsets, read_normed, stream_offsets, tile_positions, weight_rows
from helixfold.ops.weights import Affine


@jit
@no_type_check
def gated_maps(
    a, x, weight_at, bias_at, gate_at, gate_bias_at, first, c_a: tl.constexpr, c_z: tl.constexpr, part: tl.constexpr
):
    """Return values and gates [positions, part] of some outputs, and the rows of both weights."""
    weight = weight_rows(weight_at, first, c_a, part)
    gate_weight = weight_rows(gate_at, first, c_z, part)
    output = first + tl.arange(0, part)
    value = tl.dot(a, tl.trans(weight), input_precision="ieee") + tl.load(bias_at + output).to(tl.float32)[None, :]
    gate = tl.dot(x, tl.trans(gate_weight), input_precision="ieee")
    gate = tl.sigmoid(gate + tl.load(gate_bias_at + output).to(tl.float32)[None, :])
    return value, gate, weight, gate_weight


@kernel
@no_type_check
def _gated(
    pair_at,
    product_at,
    mask_at,
    out_at,
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
    out_sample,
    out_row,
    out_column,
    columns,
    positions,
    tiles,
    c_z: tl.constexpr,
    c_a: tl.constexpr,
    c_out: tl.constexpr,
    tail: tl.constexpr,
    block: tl.constexpr,
    part: tl.constexpr,
):
    dtype = pair_at.dtype.element_ty
    sample, position, exists = tile_positions(tl.program_id(0), tiles, positions, block)
    pair_index = stream_offsets(sample, position, columns, pair_sample, pair_row, pair_column)[:, None] + tl.arange(
        0, c_z
    )
    x = read_normed(pair_at + pair_index, exists, norm_at, norm_offset_at, c_z)
    if tail:
        a_index = channels_first_offsets(sample, position, positions, 0, c_a, c_a)
        a = read_normed(product_at + a_index, exists, norm_out_at, norm_out_offset_at, c_a)
        out_index = stream_offsets(sample, position, columns, out_sample, out_row, out_column)
    else:
        a = x
        mask_index = stream_offsets(sample, position, columns, mask_sample, mask_row, mask_column)
        mask = tl.load(mask_at + mask_index, mask=exists, other=0.0)
    for first in tl.range(0, c_out, part):
        value, gate, _, _ = gated_maps(a, x, weight_at, bias_at, gate_at, gate_bias_at, first, c_a, c_z, part)
        out = value * gate
        if tail:
            index = out_index[:, None] + first + tl.arange(0, part)
        else:
            out *= mask[:, None]
            index = channels_first_offsets(sample, position, positions, first, c_out, part)
        tl.store(out_at + index, out.to(dtype), mask=exists[:, None])


@dataclass(frozen=True)
class Maps:
    """Parameters of a gated map: the maps to values and gates, and the layer norms of their inputs."""

    norm: Affine  # of the pair, before the gates
    value_norm: Affine  # of `a`, before the values
    value: Affine
    gate: Affine

    @property
    def pointers(self) -> list[Tensor | None]:
        """All parameters in the order of the kernels' arguments."""
        return [*self.norm, *self.value_norm, *self.value, *self.gate]


def gated(pair: Tensor, product: Tensor | None, mask: Tensor | None, maps: Maps) -> Tensor:
    """Return an operand [b, c, rows, columns] from the pair, or from the product too the change of the pair."""
    samples, rows, columns, c_z = pair.shape
    outputs, c_a = maps.value.weight.shape
    tail = product is not None
    out = torch.empty_like(pair) if tail else pair.new_empty(samples, outputs, rows, columns)
    block, part = (128, 32) if pair.element_size() == 2 else (32, 32)
    tiles = cdiv(rows * columns, block)
    _gated[(samples * tiles,)](
        pair,
        pair if product is None else product,
        pair if mask is None else mask,
        out,
        *maps.pointers,
        *pair.stride()[:3],
        *(0, 0, 0) if mask is None else mask.stride(),
        *out.stride()[:3],
        columns,
        rows * columns,
        tiles,
        c_z=c_z,
        c_a=c_a,
        c_out=outputs,
        tail=tail,
        block=block,
        part=min(part, outputs),
        num_warps=8,
        num_stages=2,
    )
    return out
