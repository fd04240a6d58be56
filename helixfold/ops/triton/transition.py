"""The transition as Triton kernels that compute hidden channels in chunks, which the forward pass does not store.

The backward pass recomputes them. The weights' gradients are matrix products over all rows, for which hidden channels
and their gradients are written once and passed to cuBLAS. With R rows of c channels and H hidden channels that moves
8 R H bytes in bfloat16 and takes 5 products of 2 R c H operations. Programs that own hidden channels and keep the sums
on the chip would move less but need 7 such products, since they would recompute their hidden channels and gradients.
With 128 x 256 rows, c = 256 and H = 1024 an H200 needs 44 us for two products, and 62 us for the bytes, which it moves
during the other five (109 us).
"""

from typing import Any, no_type_check

import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.recomputed import recomputed
from helixfold.ops.triton.language import cdiv, kernel, tl
from helixfold.ops.triton.layer_norm import (
    as_rows,
    contiguous_channels,
    elements,
    gradient_through_norm,
    normalised,
)
from helixfold.ops.triton.sums import summed
from helixfold.ops.triton.tiles import multiplies_from_shared_memory, scaled
from helixfold.ops.weights import TransitionWeights

# Bytes of hidden channels and their gradients that the backward pass stores at a time.
_BYTES = 2**28


@kernel
@no_type_check
def _forward(
    x_at,
    y_at,
    scale_at,
    offset_at,
    expand_at,
    expand_offset_at,
    contract_at,
    contract_offset_at,
    rows,
    size_i,
    size_j,
    x_b,
    x_i,
    x_j,
    y_b,
    y_i,
    y_j,
    eps,
    c: tl.constexpr,
    hidden: tl.constexpr,
    block_rows: tl.constexpr,
    block_hidden: tl.constexpr,
    precision: tl.constexpr,
):
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    inside = (row < rows)[:, None]
    channel = tl.arange(0, c)
    x = tl.load(elements(x_at, row, channel, size_i, size_j, x_b, x_i, x_j), mask=inside, other=0.0)
    normed, _ = normalised(x.to(tl.float32), channel, eps, c)
    normed = scaled(normed, scale_at, offset_at, c)
    operand = normed.to(x.dtype)
    total = tl.zeros((block_rows, c), tl.float32)
    for first in range(0, hidden, block_hidden):
        unit = first + tl.arange(0, block_hidden)
        expand = tl.load(expand_at + unit[None, :] * c + channel[:, None])
        units = tl.dot(operand, expand, input_precision=precision)
        units += tl.load(expand_offset_at + unit).to(tl.float32)[None, :]
        contract = tl.load(contract_at + channel[None, :] * hidden + unit[:, None])
        total = tl.dot(tl.maximum(units, 0.0).to(x.dtype), contract, total, input_precision=precision)
    total += tl.load(contract_offset_at + channel).to(tl.float32)[None, :]
    tl.store(elements(y_at, row, channel, size_i, size_j, y_b, y_i, y_j), total.to(x.dtype), mask=inside)


@kernel
@no_type_check
def _backward(
    x_at,
    grad_y_at,
    grad_x_at,
    scale_at,
    offset_at,
    expand_at,
    expand_offset_at,
    contract_at,
    normed_at,
    units_at,
    grad_units_at,
    sums_at,
    first_row,
    rows,
    size_i,
    size_j,
    x_b,
    x_i,
    x_j,
    grad_y_b,
    grad_y_i,
    grad_y_j,
    grad_x_b,
    grad_x_i,
    grad_x_j,
    eps,
    c: tl.constexpr,
    hidden: tl.constexpr,
    parameter_gradients: tl.constexpr,
    block_rows: tl.constexpr,
    block_hidden: tl.constexpr,
    block_part: tl.constexpr,
    precision: tl.constexpr,
):
    program = tl.program_id(0)
    index = program * block_rows + tl.arange(0, block_rows)
    row = first_row + index
    inside = (row < rows)[:, None]
    channel = tl.arange(0, c)
    scale = tl.load(scale_at + channel).to(tl.float32)[None, :]
    x = tl.load(elements(x_at, row, channel, size_i, size_j, x_b, x_i, x_j), mask=inside, other=0.0)
    operand, _ = normalised(x.to(tl.float32), channel, eps, c)
    operand = scaled(operand, scale_at, offset_at, c).to(x.dtype)
    grad_y = tl.load(
        elements(grad_y_at, row, channel, size_i, size_j, grad_y_b, grad_y_i, grad_y_j), mask=inside, other=0.0
    )
    # Sums of the gradients of scale and offset, of the hidden bias and of the output's bias.
    sums_at += (first_row // block_rows + program).to(tl.int64) * (3 * c + hidden)
    grad_operand = tl.zeros((block_rows, c), tl.float32)
    for first in range(0, hidden, block_hidden):
        unit = first + tl.arange(0, block_hidden)
        expand = tl.load(expand_at + unit[:, None] * c + channel[None, :])
        units = tl.dot(operand, tl.trans(expand), input_precision=precision)
        units += tl.load(expand_offset_at + unit).to(tl.float32)[None, :]
        contract = tl.load(contract_at + channel[:, None] * hidden + unit[None, :])
        grad_units = tl.where(units > 0.0, tl.dot(grad_y, contract, input_precision=precision), 0.0)
        rounded = grad_units.to(x.dtype)
        grad_operand = tl.dot(rounded, expand, grad_operand, input_precision=precision)
        if parameter_gradients:
            units_index = index.to(tl.int64)[:, None] * hidden + unit[None, :]
            tl.store(units_at + units_index, tl.maximum(units, 0.0).to(x.dtype), mask=inside)
            tl.store(grad_units_at + units_index, rounded, mask=inside)
            tl.store(sums_at + 2 * c + unit, tl.sum(grad_units, 0))
    # The rest needs several float32 values per element, for which registers suffice for some rows at a time.
    grad_operand_at = elements(grad_x_at, row, channel, size_i, size_j, grad_x_b, grad_x_i, grad_x_j)
    tl.store(grad_operand_at, grad_operand.to(x.dtype), mask=inside)
    tl.debug_barrier()
    nothing = tl.zeros((block_part, c), tl.float32)
    sum_grad_scale, sum_grad_offset, sum_grad_y = nothing, nothing, nothing
    for first in range(0, block_rows, block_part):
        part = program * block_rows + first + tl.arange(0, block_part)
        part_row = first_row + part
        exists = (part_row < rows)[:, None]
        some_x_at = elements(x_at, part_row, channel, size_i, size_j, x_b, x_i, x_j)
        normed, factor = normalised(tl.load(some_x_at, mask=exists, other=0.0).to(tl.float32), channel, eps, c)
        part_grad_x_at = elements(grad_x_at, part_row, channel, size_i, size_j, grad_x_b, grad_x_i, grad_x_j)
        grad_rows = tl.load(part_grad_x_at, mask=exists, other=0.0).to(tl.float32)
        grad_x = gradient_through_norm(grad_rows * scale, normed, factor, c)
        tl.store(part_grad_x_at, grad_x.to(x.dtype), mask=exists)
        if parameter_gradients:
            sum_grad_scale += grad_rows * normed
            sum_grad_offset += grad_rows
            part_grad_y_at = elements(grad_y_at, part_row, channel, size_i, size_j, grad_y_b, grad_y_i, grad_y_j)
            sum_grad_y += tl.load(part_grad_y_at, mask=exists, other=0.0).to(tl.float32)
            again = scaled(normed, scale_at, offset_at, c).to(x.dtype)
            tl.store(normed_at + part.to(tl.int64)[:, None] * c + channel[None, :], again, mask=exists)
    if parameter_gradients:
        tl.store(sums_at + channel, tl.sum(sum_grad_scale, 0))
        tl.store(sums_at + c + channel, tl.sum(sum_grad_offset, 0))
        tl.store(sums_at + 2 * c + hidden + channel, tl.sum(sum_grad_y, 0))


# Rows of a tile that a backward pass takes through the norm at a time.
_PART = 16


def _tiles(x: Tensor, warps: int) -> dict[str, Any]:
    """Return tile sizes and launch options.

    In bfloat16 no number is spilled on any architecture, and two thread blocks fit on a multiprocessor but for the
    backward pass of 256 channels: one computes while the other loads.
    """
    if x.dtype == torch.float32:
        num_warps = 4 if x.shape[-1] < 128 else 8
        return {"block_rows": 32, "block_hidden": 32, "precision": "ieee", "num_warps": num_warps, "num_stages": 1}
    # Fewer hidden channels at a time fit into the 99 KiB of shared memory that GeForce cards have.
    hidden = 32 if x.shape[-1] < 256 or multiplies_from_shared_memory(x.device) else 16
    return {"block_rows": 64, "block_hidden": hidden, "precision": None, "num_warps": warps, "num_stages": 2}


def _transition(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    expand: Tensor,
    expand_offset: Tensor,
    contract: Tensor,
    contract_offset: Tensor,
) -> Tensor:
    y = torch.empty_like(x)
    x_rows, y_rows = as_rows(x, y)
    rows = x_rows[..., 0].numel()
    tiles = _tiles(x, 4 if x.shape[-1] == 256 else 8)
    _forward[(cdiv(rows, tiles["block_rows"]),)](
        x_rows,
        y_rows,
        scale,
        offset,
        expand,
        expand_offset,
        contract,
        contract_offset,
        rows,
        *x_rows.shape[1:3],
        *x_rows.stride()[:3],
        *y_rows.stride()[:3],
        EPS,
        c=x.shape[-1],
        hidden=len(expand),
        **tiles,
    )
    return y


def _transition_gradients(
    needed: tuple[bool, ...],
    grad_y: Tensor,
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    expand: Tensor,
    expand_offset: Tensor,
    contract: Tensor,
    contract_offset: Tensor,
) -> tuple[Tensor | None, ...]:
    parameter_gradients = any(needed[1:])
    grad_x = torch.empty_like(x)
    x_rows, grad_y_rows, grad_x_rows = as_rows(x, contiguous_channels(grad_y), grad_x)
    rows, (hidden, c) = x_rows[..., 0].numel(), expand.shape
    tiles = _tiles(x, 8 if c == 256 else 4)
    block = tiles["block_rows"]
    chunk_rows = rows if not parameter_gradients else max(1, _BYTES // (2 * hidden * x.element_size() * block)) * block
    chunk_rows = min(chunk_rows, rows)
    normed, units, grad_units = (
        x.new_empty(chunk_rows if parameter_gradients else 0, width) for width in (c, hidden, hidden)
    )
    grad_y_matrix = grad_y_rows.flatten(0, 2)
    all_programs = cdiv(rows, block) if parameter_gradients else 0
    sums = torch.empty(all_programs, 3 * c + hidden, dtype=torch.float32, device=x.device)
    learn_expand, learn_contract = needed[3], needed[5]
    grad_expand = grad_contract = None
    for first in range(0, rows, chunk_rows):
        last = min(first + chunk_rows, rows)
        _backward[(cdiv(last - first, block),)](
            x_rows,
            grad_y_rows,
            grad_x_rows,
            scale,
            offset,
            expand,
            expand_offset,
            contract,
            normed,
            units,
            grad_units,
            sums,
            first,
            last,
            *x_rows.shape[1:3],
            *x_rows.stride()[:3],
            *grad_y_rows.stride()[:3],
            *grad_x_rows.stride()[:3],
            EPS,
            c=c,
            hidden=hidden,
            parameter_gradients=parameter_gradients,
            block_part=_PART,
            **tiles,
        )
        of_rows, alone = slice(last - first), chunk_rows == rows
        if learn_expand:
            grad_expand = _added(grad_expand, grad_units[of_rows].T @ normed[of_rows], alone=alone)
        if learn_contract:
            grad_contract = _added(grad_contract, grad_y_matrix[first:last].T @ units[of_rows], alone=alone)
    grad_scale = grad_offset = grad_expand_offset = grad_contract_offset = None
    if needed[1] or needed[2] or needed[4] or needed[6]:
        grad_scale, grad_offset, grad_expand_offset, grad_contract_offset = summed(
            sums, scale, offset, expand_offset, contract_offset
        )
    grad_expand, grad_contract = (None if each is None else each.to(x.dtype) for each in (grad_expand, grad_contract))
    return grad_x, grad_scale, grad_offset, grad_expand, grad_expand_offset, grad_contract, grad_contract_offset


def _added(total: Tensor | None, product: Tensor, *, alone: bool) -> Tensor:
    """Return the sum of a product and those before it, in float32 unless it is `alone`."""
    product = product if alone else product.float()
    return product if total is None else total + product


def transition_triton(x: Tensor, weights: TransitionWeights) -> Tensor:
    """Compute `transition` on a CUDA device."""
    norm, expand, contract = weights
    return recomputed(
        _transition,
        _transition_gradients,
        x,
        *norm,
        expand.weight.to(x.dtype).contiguous(),
        expand.bias,
        contract.weight.to(x.dtype).contiguous(),
        contract.bias,
    )
