"""Gated maps of triangle multiplication before and after the batched cuBLAS product, which read the pair once each.

Both kernels compute `(W norm(a) + b) * sigmoid(V norm(pair) + d)` for tiles of positions. Before the product, `a` is
the pair, and the results, one or two operands, are masked and have channels first. After the product, `a` is the
product, which has channels first, and the result has the memory layout of the pair.
"""

from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import torch
from torch import Tensor

from helixfold.ops.triton.language import (
    cdiv,
    channels_first_offsets,
    jit,
    kernel,
    multiplies_from_shared_memory,
    read_normed,
    stream_offsets,
    tile_positions,
    tl,
    weight_rows,
)
from helixfold.ops.weights import Affine


class GatedMap(NamedTuple):
    """Parameters of a map and of its gate: weights [out, in] in the dtype of the pair, and biases [out]."""

    weight: Tensor
    bias: Tensor
    gate_weight: Tensor
    gate_bias: Tensor

    @classmethod
    def of(cls, value: Affine, gate: Affine, dtype: torch.dtype) -> "GatedMap":
        """Return the parameters of a map and its gate, with dense weights in `dtype`; biases are not converted."""
        weights = (affine.weight.to(dtype).contiguous() for affine in (value, gate))
        return cls(next(weights), value.bias, next(weights), gate.bias)  # type: ignore[arg-type]


@jit
@no_type_check
def gated_maps(a, x, maps, first, c_a: tl.constexpr, c_z: tl.constexpr, part: tl.constexpr):
    """Return values and gates [positions, part] of some outputs of a gated map, and the rows of both weights."""
    weight = weight_rows(maps[0], first, c_a, part)
    gate_weight = weight_rows(maps[2], first, c_z, part)
    output = first + tl.arange(0, part)
    value = tl.dot(a, tl.trans(weight), input_precision="ieee") + tl.load(maps[1] + output).to(tl.float32)[None, :]
    gate = tl.dot(x, tl.trans(gate_weight), input_precision="ieee")
    gate = tl.sigmoid(gate + tl.load(maps[3] + output).to(tl.float32)[None, :])
    return value, gate, weight, gate_weight


@jit
@no_type_check
def positions_at(x, sample, position, columns):
    """Return the addresses of positions of a stream or a mask, a tuple of its address and first three strides."""
    return x[0] + stream_offsets(sample, position, columns, x[1], x[2], x[3])


@jit
@no_type_check
def read_outputs(x, sample, position, exists, columns, output):
    """Return channels at positions of a stream or dropout mask, in float32."""
    at = positions_at(x, sample, position, columns)[:, None] + output
    return tl.load(at, mask=exists[:, None], other=0.0).to(tl.float32)


@kernel
@no_type_check
def _operands(
    pair,
    mask,
    left_at,
    right_at,
    norm_at,
    norm_offset_at,
    left_maps,
    right_maps,
    columns,
    positions,
    tiles,
    c_z: tl.constexpr,
    c: tl.constexpr,
    block: tl.constexpr,
    part: tl.constexpr,
):
    """Store the gated, masked maps of a tile of positions as channels of the left and the optional right operand."""
    sample, position, exists = tile_positions(tl.program_id(0), tiles, positions, block)
    x_at = positions_at(pair, sample, position, columns)[:, None] + tl.arange(0, c_z)
    x = read_normed(x_at, exists, norm_at, norm_offset_at, c_z)
    masks = tl.load(positions_at(mask, sample, position, columns), mask=exists, other=0.0)[:, None]
    for first in tl.range(0, c, part):
        index = channels_first_offsets(sample, position, positions, first, c, part)
        value, gate, _, _ = gated_maps(x, x, left_maps, first, c_z, c_z, part)
        tl.store(left_at + index, (value * gate * masks).to(x.dtype), mask=exists[:, None])
        if right_at is not None:
            value, gate, _, _ = gated_maps(x, x, right_maps, first, c_z, c_z, part)
            tl.store(right_at + index, (value * gate * masks).to(x.dtype), mask=exists[:, None])


@kernel
@no_type_check
def _change(
    pair,
    product_at,
    change,
    norm_at,
    norm_offset_at,
    norm_out_at,
    norm_out_offset_at,
    maps,
    dropout_mask,
    columns,
    positions,
    tiles,
    c_z: tl.constexpr,
    c: tl.constexpr,
    adds: tl.constexpr,
    block: tl.constexpr,
    part: tl.constexpr,
):
    """Store the change of the pair, times an optional dropout mask, plus the pair if `adds`."""
    sample, position, exists = tile_positions(tl.program_id(0), tiles, positions, block)
    x_at = positions_at(pair, sample, position, columns)[:, None] + tl.arange(0, c_z)
    x = read_normed(x_at, exists, norm_at, norm_offset_at, c_z)
    a_at = product_at + channels_first_offsets(sample, position, positions, 0, c, c)
    a = read_normed(a_at, exists, norm_out_at, norm_out_offset_at, c)
    change_at = positions_at(change, sample, position, columns)[:, None]
    for first in tl.range(0, c_z, part):
        value, gate, _, _ = gated_maps(a, x, maps, first, c, c_z, part)
        output = first + tl.arange(0, part)
        result = value * gate
        if dropout_mask is not None:
            result *= read_outputs(dropout_mask, sample, position, exists, columns, output)
        if adds:
            result += read_outputs(pair, sample, position, exists, columns, output)
        tl.store(change_at + output, result.to(x.dtype), mask=exists[:, None])


def placed(x: Tensor) -> tuple[Tensor | int, ...]:
    """Return a stream or mask and its first three strides as a tuple, the form that kernels take."""
    return (x, *x.stride()[:3])


def _tile(pair: Tensor, outputs: int) -> dict[str, int]:
    """Return tile sizes and launch options for gated maps with `outputs` outputs."""
    block, part = (128, 32) if pair.element_size() == 2 else (32, 32)
    return {"block": block, "part": min(part, outputs), "num_warps": 8, "num_stages": 2}


def operands(pair: Tensor, mask: Tensor, norm: Sequence[Tensor], *sides: GatedMap) -> list[Tensor]:
    """Return the operands [b, c, rows, columns] of the pair for one or two gated maps."""
    samples, rows, columns, c_z = pair.shape
    c = len(sides[0].weight)
    results = [pair.new_empty(samples, c, rows, columns) for _ in sides]
    tile = _tile(pair, c)
    tiles = cdiv(rows * columns, tile["block"])
    left, right = (*results, None)[:2]
    left_maps, right_maps = (*sides, None)[:2]
    _operands[(samples * tiles,)](
        placed(pair),
        placed(mask),
        left,
        right,
        *norm,
        left_maps,
        right_maps,
        columns,
        rows * columns,
        tiles,
        c_z=c_z,
        c=c,
        **tile,
    )
    return results


def change_of(
    pair: Tensor,
    product: Tensor,
    norm_in: Sequence[Tensor],
    norm_out: Sequence[Tensor],
    maps: GatedMap,
    dropout_mask: Tensor | None = None,
    *,
    adds: bool = False,
    in_place: bool = False,
) -> Tensor:
    """Return the change of the pair, given the product of both operands [b, c, rows, columns], times the dropout mask.

    If `adds`, return the pair plus the change, in the memory of the pair if `in_place`.
    """
    samples, rows, columns, c_z = pair.shape
    change = pair if in_place else torch.empty_like(pair)
    tile = _tile(pair, c_z)
    if pair.element_size() == 2 and multiplies_from_shared_memory(pair.device):
        # Two norms are held at a time, so tiles are smaller and more of them fit on a multiprocessor.
        tile |= {"block": 64, "num_warps": 4, "num_stages": 1}
    tiles = cdiv(rows * columns, tile["block"])
    _change[(samples * tiles,)](
        placed(pair),
        product,
        placed(change),
        *norm_in,
        *norm_out,
        maps,
        None if dropout_mask is None else placed(dropout_mask.expand(pair.shape)),
        columns,
        rows * columns,
        tiles,
        c_z=c_z,
        c=product.shape[1],
        adds=adds,
        **tile,
    )
    return change
