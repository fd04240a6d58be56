"""Gradients of the gated maps of triangle multiplication: one kernel after and one before the batched cuBLAS product.

Both recompute values and gates, and store the gradients of the outputs of the maps side by side, [positions, outputs],
from which cuBLAS computes the gradients of the weights. Tiles store partial sums over positions, which are added
afterwards in a fixed order.
"""

from collections.abc import Sequence
from typing import no_type_check

import torch
from torch import Tensor

from helixfold.ops.triton.language import (
    cdiv,
    channels_first_offsets,
    jit,
    kernel,
    multiplies_from_shared_memory,
    norm_gradient,
    normalised,
    read_normed,
    sum_norm,
    tile_positions,
    tl,
)
from helixfold.ops.triton.triangle_forward import GatedMap, gated_maps, placed, positions_at, read_outputs


@jit
@no_type_check
def _map_gradients(gradient, value, gate, dtype):
    """Return the gradients of the outputs of a map and of the logits of its gate."""
    grad_value = gradient * gate
    return grad_value.to(dtype), (grad_value * value * (1.0 - gate)).to(dtype)


@kernel
@no_type_check
def _change_backward(
    pair,
    product_at,
    gradient,
    dropout_mask,
    grad_product_at,
    grad_x_at,
    x_at,
    a_at,
    grad_value_at,
    grad_maps_at,
    sums_at,
    norm_at,
    norm_offset_at,
    norm_out_at,
    norm_out_offset_at,
    maps,
    columns,
    positions,
    tiles,
    c_z: tl.constexpr,
    c: tl.constexpr,
    maps_width: tl.constexpr,
    sums_width: tl.constexpr,
    block: tl.constexpr,
    part: tl.constexpr,
):
    """Store the gradients of the product and of the normalised pair.

    If `sums_at` is not None, also store the normalised pair and product, and the gradients of the output maps.
    """
    tile = tl.program_id(0)
    sample, position, exists = tile_positions(tile, tiles, positions, block)
    inside, row = exists[:, None], (sample * positions + position)[:, None]
    channel, channel_a = tl.arange(0, c_z), tl.arange(0, c)
    pair_at = positions_at(pair, sample, position, columns)[:, None] + channel
    x = read_normed(pair_at, exists, norm_at, norm_offset_at, c_z)
    product_index = channels_first_offsets(sample, position, positions, 0, c, c)
    a = read_normed(product_at + product_index, exists, norm_out_at, norm_out_offset_at, c)
    if sums_at is not None:
        tl.store(x_at + row * c_z + channel, x, mask=inside)
        tl.store(a_at + row * c + channel_a, a, mask=inside)
        sums_at += tile.to(tl.int64) * sums_width
    grad_x = tl.zeros([block, c_z], tl.float32)
    grad_a = tl.zeros([block, c], tl.float32)
    gradient_at = positions_at(gradient, sample, position, columns)[:, None]
    for first in tl.range(0, c_z, part):
        value, gate, weight, gate_weight = gated_maps(a, x, maps, first, c, c_z, part)
        output = first + tl.arange(0, part)
        incoming = tl.load(gradient_at + output, mask=inside, other=0.0).to(tl.float32)
        if dropout_mask is not None:
            incoming *= read_outputs(dropout_mask, sample, position, exists, columns, output)
        grad_value, grad_gate = _map_gradients(incoming, value, gate, x.dtype)
        grad_x = tl.dot(grad_gate, gate_weight, grad_x, input_precision="ieee")
        grad_a = tl.dot(grad_value, weight, grad_a, input_precision="ieee")
        if sums_at is not None:
            tl.store(grad_value_at + row * c_z + output, grad_value, mask=inside)
            tl.store(grad_maps_at + row * maps_width + output, grad_gate, mask=inside)
            tl.store(sums_at + 2 * c + output, tl.sum(grad_value.to(tl.float32), 0))
            tl.store(sums_at + 2 * c + c_z + output, tl.sum(grad_gate.to(tl.float32), 0))
    tl.store(grad_x_at + row * c_z + channel, grad_x.to(x.dtype), mask=inside)
    # Read and normalise again, so that no float32 tile is held during the loop.
    a_normed, a_scale = normalised(tl.load(product_at + product_index, mask=inside, other=0.0), c)
    if sums_at is not None:
        sum_norm(sums_at, grad_a, a_normed, c)
    grad_a = norm_gradient(grad_a, a_normed, a_scale, norm_out_at, c)
    tl.store(grad_product_at + product_index, grad_a.to(x.dtype), mask=inside)


@jit
@no_type_check
def _add_operand(
    grad_x,
    x,
    masks,
    grad_operand_at,
    maps,
    index,
    grad_maps_at,
    sums_at,
    first,
    inside,
    side: tl.constexpr,
    c_z: tl.constexpr,
    c: tl.constexpr,
    part: tl.constexpr,
):
    """Return the gradient of the normalised pair plus the part from some outputs of an operand.

    `side` is 0 for the first operand of `sums_at` and `grad_maps_at`, and 1 for the second.
    """
    value, gate, weight, gate_weight = gated_maps(x, x, maps, first, c_z, c_z, part)
    incoming = tl.load(grad_operand_at + index, mask=inside, other=0.0).to(tl.float32) * masks
    grad_value, grad_gate = _map_gradients(incoming, value, gate, x.dtype)
    if sums_at is not None:
        output = 2 * c * side + first + tl.arange(0, part)
        tl.store(grad_maps_at + output, grad_value, mask=inside)
        tl.store(grad_maps_at + c + output, grad_gate, mask=inside)
        tl.store(sums_at + 2 * c_z + output, tl.sum(grad_value.to(tl.float32), 0))
        tl.store(sums_at + 2 * c_z + c + output, tl.sum(grad_gate.to(tl.float32), 0))
    grad_x = tl.dot(grad_value, weight, grad_x, input_precision="ieee")
    return tl.dot(grad_gate, gate_weight, grad_x, input_precision="ieee")


@kernel
@no_type_check
def _operands_backward(
    pair,
    mask,
    grad_left_at,
    grad_right_at,
    earlier_at,
    added,
    grad_pair,
    x_at,
    grad_maps_at,
    sums_at,
    norm_at,
    norm_offset_at,
    left_maps,
    right_maps,
    columns,
    positions,
    tiles,
    c_z: tl.constexpr,
    c: tl.constexpr,
    maps_width: tl.constexpr,
    sums_width: tl.constexpr,
    block: tl.constexpr,
    part: tl.constexpr,
):
    """Store the gradient of the pair plus the optional `added`, and with `sums_at` the gradients of the maps.

    `earlier_at` has the gradient of the normalised pair from the output gate. If it is None, the normalised pair is
    stored too.
    """
    tile = tl.program_id(0)
    sample, position, exists = tile_positions(tile, tiles, positions, block)
    inside, row = exists[:, None], (sample * positions + position)[:, None]
    channel = tl.arange(0, c_z)
    pair_at = positions_at(pair, sample, position, columns)[:, None] + channel
    x = read_normed(pair_at, exists, norm_at, norm_offset_at, c_z)
    if earlier_at is None and sums_at is not None:
        tl.store(x_at + row * c_z + channel, x, mask=inside)
    masks = tl.load(positions_at(mask, sample, position, columns), mask=exists, other=0.0)[:, None]
    grad_x = tl.zeros([block, c_z], tl.float32)
    if sums_at is not None:
        grad_maps_at += row * maps_width
        sums_at += tile.to(tl.int64) * sums_width
    for first in tl.range(0, c, part):
        index = channels_first_offsets(sample, position, positions, first, c, part)
        grad_x = _add_operand(
            grad_x,
            x,
            masks,
            grad_left_at,
            left_maps,
            index,
            grad_maps_at,
            sums_at,
            first,
            inside,
            0,
            c_z,
            c,
            part,
        )
        if grad_right_at is not None:
            grad_x = _add_operand(
                grad_x,
                x,
                masks,
                grad_right_at,
                right_maps,
                index,
                grad_maps_at,
                sums_at,
                first,
                inside,
                1,
                c_z,
                c,
                part,
            )
    if earlier_at is not None:
        grad_x += tl.load(earlier_at + row * c_z + channel, mask=inside, other=0.0).to(tl.float32)
    # Read and normalise again, so that no two float32 tiles are held during the loop.
    x_normed, x_scale = normalised(tl.load(pair_at, mask=inside, other=0.0), c_z)
    if sums_at is not None:
        sum_norm(sums_at, grad_x, x_normed, c_z)
    grad_x = norm_gradient(grad_x, x_normed, x_scale, norm_at, c_z)
    if added is not None:
        grad_x += read_outputs(added, sample, position, exists, columns, channel)
    tl.store(positions_at(grad_pair, sample, position, columns)[:, None] + channel, grad_x.to(x.dtype), mask=inside)


class Gradients:
    """Memory shared by the kernels of a backward pass.

    `maps` are the gradients of the maps of the normalised pair, [positions, outputs]: of the output gate if
    `has_change`, then of value and gate of each operand. `sums` are the partial sums of tiles: for the output if
    `has_change` (scale and offset of its norm, biases of map and gate), then scale and offset of the norm of the pair,
    then the biases of value and gate of each operand. `x` is the normalised pair and `grad_x` its gradient from the
    output. If no parameter learns, `maps`, `sums` and `x` are None.
    """

    def __init__(self, pair: Tensor, c: int, sides: int, *, has_change: bool, learns: bool) -> None:
        """Allocate memory for `sides` operands of `c` channels; `learns` is whether any parameter needs a gradient."""
        samples, rows, columns, self.c_z = pair.shape
        self.pair, self.c, self.has_change = pair, c, has_change
        positions = samples * rows * columns
        is_float32 = pair.element_size() == 4
        is_wide = not is_float32 and multiplies_from_shared_memory(pair.device)
        self.block, self.part = 64 if is_wide else 32, 32 if is_wide or is_float32 else 16
        self.warps = 8 if is_float32 else 4
        self.tiles = cdiv(rows * columns, self.block)
        self.change_sums = 2 * c + 2 * self.c_z if has_change else 0
        self.change_maps = self.c_z if has_change else 0
        self.maps_width = self.change_maps + 2 * c * sides
        self.sums_width = self.change_sums + 2 * self.c_z + 2 * c * sides
        self.grad_x = pair.new_empty(positions, self.c_z) if has_change else None
        self.maps = self.sums = self.x = None
        if learns:
            self.maps, self.x = pair.new_empty(positions, self.maps_width), pair.new_empty(positions, self.c_z)
            self.sums = pair.new_empty(samples * self.tiles, self.sums_width, dtype=torch.float32)

    def _sizes(self, outputs: int) -> dict[str, int]:
        return {
            "c_z": self.c_z,
            "c": self.c,
            "maps_width": self.maps_width,
            "sums_width": self.sums_width,
            "block": self.block,
            "part": min(self.part, outputs),
            "num_warps": self.warps,
            "num_stages": 2,
        }

    def of_change(
        self,
        product: Tensor,
        norm_in: Sequence[Tensor],
        norm_out: Sequence[Tensor],
        maps: GatedMap,
        gradient: Tensor,
        dropout_mask: Tensor | None,
        *,
        learns: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the gradient of the product [b, c, rows, columns] and, if it `learns`, of the output weight.

        `maps` are the output map and its gate, and `gradient` is the gradient of the output. The other gradients are
        written to `grad_x`, `maps` and `sums`, for `of_operands`.
        """
        samples, rows, columns, _ = self.pair.shape
        grad_product, a, grad_value = torch.empty_like(product), None, None
        if self.x is not None:
            a, grad_value = self.x.new_empty(len(self.x), self.c), torch.empty_like(self.x)
        _change_backward[(samples * self.tiles,)](
            placed(self.pair),
            product,
            placed(gradient),
            None if dropout_mask is None else placed(dropout_mask.expand(gradient.shape)),
            grad_product,
            self.grad_x,
            self.x,
            a,
            grad_value,
            self.maps,
            self.sums,
            *norm_in,
            *norm_out,
            maps,
            columns,
            rows * columns,
            self.tiles,
            **self._sizes(self.c_z),
        )
        return grad_product, grad_value.T @ a if learns and a is not None and grad_value is not None else None

    def of_operands(
        self,
        mask: Tensor,
        norm: Sequence[Tensor],
        sides: list[GatedMap],
        gradients: list[Tensor],
        added: Tensor | None = None,
    ) -> Tensor:
        """Return the gradient of the pair, given the gradients of its left and right operands [b, c, rows, columns].

        `sides` are the gated maps from the pair to the operands, and `norm` the scale and offset of the pair's norm.
        The result includes the gradient from `of_change`, if it was called, and `added`. The gradients of parameters
        are written to `maps` and `sums`.
        """
        samples, rows, columns, _ = self.pair.shape
        grad_pair = torch.empty_like(self.pair)
        left, right = (*gradients, None)[:2]
        left_maps, right_maps = (*sides, None)[:2]
        _operands_backward[(samples * self.tiles,)](
            placed(self.pair),
            placed(mask),
            left,
            right,
            self.grad_x,
            None if added is None else placed(added),
            placed(grad_pair),
            self.x,
            None if self.maps is None else self.maps[:, self.change_maps :],
            None if self.sums is None else self.sums[:, self.change_sums :],
            *norm,
            left_maps,
            right_maps,
            columns,
            rows * columns,
            self.tiles,
            **self._sizes(self.c),
        )
        return grad_pair
