"""The transition as Triton kernels that compute hidden channels in chunks, which the forward pass does not store.

In the backward pass, each program recomputes a tile of hidden channels with its gradients and writes both once. cuBLAS
products then give the gradients of the weights and of the output of the norm. With R rows of c channels and H hidden
channels in bfloat16, this moves 10 R H bytes and takes 5 products of 2 R c H operations. Programs that loop over all
hidden channels of some rows would not read the hidden gradients again, but only one of them would fit on a
multiprocessor. With 128 x 256 rows, c = 256 and H = 1024 they took 502 us on an H100. The present kernel for hidden
channels takes 140 us, and the norm, its gradient and the product between them take about 80 us.
"""

from typing import Any, no_type_check

import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.recomputed import recomputed
from helixfold.ops.residual import Residual
from helixfold.ops.triton.language import cdiv, kernel, multiplies_from_shared_memory, scaled, tl
from helixfold.ops.triton.layer_norm import (
    as_rows,
    contiguous_channels,
    elements,
    norm_gradients,
    normalised,
    normed_into,
    read_rows,
)
from helixfold.ops.triton.sums import summed
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
    stream,
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
    """Store the change of a tile of rows, plus an optional stream.

    The stream equals x. It is a separate argument because the compiler would otherwise hold the tile in registers.
    """
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
    if stream is None:
        tl.store(elements(y_at, row, channel, size_i, size_j, y_b, y_i, y_j), total.to(x.dtype), mask=inside)
    else:
        # With the stream, two parts take fewer registers than one.
        halves = tl.split(tl.permute(tl.reshape(total, (block_rows, 2, c // 2)), (0, 2, 1)))
        for half in tl.static_range(2):
            part = half * (c // 2) + tl.arange(0, c // 2)
            y = halves[half] + read_rows(stream, row, part, size_i, size_j, inside)
            tl.store(elements(y_at, row, part, size_i, size_j, y_b, y_i, y_j), y.to(x.dtype), mask=inside)


@kernel
@no_type_check
def _hidden_gradients(
    normed_at,
    grad_y_at,
    expand_at,
    expand_offset_at,
    contract_at,
    units_at,
    grad_units_at,
    sums_at,
    rows,
    c: tl.constexpr,
    hidden: tl.constexpr,
    block_rows: tl.constexpr,
    block_hidden: tl.constexpr,
    block_c: tl.constexpr,
    precision: tl.constexpr,
):
    """Recompute a tile of hidden channels and compute its gradients, two products in one loop over channels."""
    tile_row = tl.program_id(0) // (hidden // block_hidden)
    unit = tl.program_id(0) % (hidden // block_hidden) * block_hidden + tl.arange(0, block_hidden)
    row = tile_row.to(tl.int64) * block_rows + tl.arange(0, block_rows)
    inside = (row < rows)[:, None]
    units = tl.zeros((block_rows, block_hidden), tl.float32)
    grad_units = tl.zeros((block_rows, block_hidden), tl.float32)
    for first in range(0, c, block_c):
        channel = first + tl.arange(0, block_c)
        of_rows = row[:, None] * c + channel[None, :]
        normed = tl.load(normed_at + of_rows, mask=inside, other=0.0)
        expand = tl.load(expand_at + unit[:, None] * c + channel[None, :])
        units = tl.dot(normed, tl.trans(expand), units, input_precision=precision)
        grad_y = tl.load(grad_y_at + of_rows, mask=inside, other=0.0)
        contract = tl.load(contract_at + channel[:, None] * hidden + unit[None, :])
        grad_units = tl.dot(grad_y, contract, grad_units, input_precision=precision)
    units += tl.load(expand_offset_at + unit).to(tl.float32)[None, :]
    grad_units = tl.where(units > 0.0, grad_units, 0.0)
    of_units = row[:, None] * hidden + unit[None, :]
    tl.store(grad_units_at + of_units, grad_units.to(grad_units_at.dtype.element_ty), mask=inside)
    if units_at is not None:
        tl.store(units_at + of_units, tl.maximum(units, 0.0).to(units_at.dtype.element_ty), mask=inside)
    if sums_at is not None:
        tl.store(sums_at + tile_row.to(tl.int64) * hidden + unit, tl.sum(grad_units, 0))


def _tiles(x: Tensor, hidden: int) -> dict[str, Any]:
    """Return tile sizes and launch options.

    In bfloat16, no register is spilled on any architecture, and two thread blocks fit on a multiprocessor: one
    computes while the other loads.
    """
    if x.dtype == torch.float32:
        num_warps = 4 if x.shape[-1] < 128 else 8
        return {"block_rows": 32, "block_hidden": 32, "precision": "ieee", "num_warps": num_warps, "num_stages": 1}
    sizes: dict[str, Any] = {"precision": None, "num_stages": 2}
    match x.shape[-1], multiplies_from_shared_memory(x.device):
        case 256, is_wide:
            # GeForce GPUs have 99 KiB of shared memory, which fits fewer hidden channels at a time.
            return {**sizes, "block_rows": 64, "block_hidden": 32 if is_wide else 16, "num_warps": 4}
        case _, True:
            return {**sizes, "block_rows": 64, "block_hidden": min(64, hidden), "num_warps": 4, "num_stages": 3}
    return {**sizes, "block_rows": 64, "block_hidden": 32, "num_warps": 8}


def _gradient_tiles(x: Tensor, c: int, hidden: int) -> dict[str, Any]:
    """Return tile sizes and launch options of the kernel for hidden channels and their gradients."""
    if x.dtype == torch.float32:
        sizes: dict[str, Any] = {"block_rows": 32, "block_hidden": min(hidden, 32), "block_c": 32, "precision": "ieee"}
        return {**sizes, "num_warps": 4, "num_stages": 1}
    sizes = {"block_rows": 64, "block_hidden": min(hidden, 128), "block_c": min(c, 64), "precision": None}
    if not multiplies_from_shared_memory(x.device):
        sizes["block_c"] = 32
    return {**sizes, "num_warps": 4, "num_stages": 2}


def _transition(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    expand: Tensor,
    expand_offset: Tensor,
    contract: Tensor,
    contract_offset: Tensor,
    *,
    adds: bool,
    in_place: bool,
) -> Tensor:
    """Return the change of `x`, or the sum of both if `adds`, in the memory of `x` if `in_place`."""
    y = x if in_place else torch.empty_like(x)
    x_rows, y_rows = as_rows(x, y)
    rows = x_rows[..., 0].numel()
    tiles = _tiles(x, len(expand))
    _forward[(cdiv(rows, tiles["block_rows"]),)](
        x_rows,
        y_rows,
        scale,
        offset,
        expand,
        expand_offset,
        contract,
        contract_offset,
        (x_rows, *x_rows.stride()[:3]) if adds else None,
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
    *,
    adds: bool,
    in_place: bool,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `x` and of all parameters, with None where a parameter needs none."""
    _, *norm_learns, expand_learns, expand_offset_learns, contract_learns, contract_offset_learns = needed
    normed, grad_normed = normed_into(torch.empty_like(x), x, scale, offset), torch.empty_like(x)
    x_rows, grad_y_rows, *ours = as_rows(x, contiguous_channels(grad_y), normed, grad_normed)
    rows, (hidden, c) = x_rows[..., 0].numel(), expand.shape
    normed_matrix, grad_normed_matrix = (each.view(rows, c) for each in ours)
    grad_y_matrix = grad_y_rows.flatten(0, 2)
    tiles = _gradient_tiles(x, c, hidden)
    block = tiles["block_rows"]
    chunk_rows = min(rows, max(1, _BYTES // (2 * hidden * x.element_size() * block)) * block)
    grad_units = x.new_empty(chunk_rows, hidden)
    units = torch.empty_like(grad_units) if contract_learns else None
    sums = None
    if expand_offset_learns:
        sums = torch.empty(cdiv(rows, block), hidden, dtype=torch.float32, device=x.device)
    grad_expand = grad_contract = None
    for first in range(0, rows, chunk_rows):
        last = min(first + chunk_rows, rows)
        _hidden_gradients[(cdiv(last - first, block) * (hidden // tiles["block_hidden"]),)](
            normed_matrix[first:last],
            grad_y_matrix[first:last],
            expand,
            expand_offset,
            contract,
            units,
            grad_units,
            None if sums is None else sums[first // block :],
            last - first,
            c=c,
            hidden=hidden,
            **tiles,
        )
        of_rows, alone = slice(last - first), chunk_rows == rows
        torch.mm(grad_units[of_rows], expand, out=grad_normed_matrix[first:last])
        if expand_learns:
            grad_expand = _added(grad_expand, grad_units[of_rows].T @ normed_matrix[first:last], alone=alone)
        if units is not None:
            grad_contract = _added(grad_contract, grad_y_matrix[first:last].T @ units[of_rows], alone=alone)
    grad_expand, grad_contract = (None if each is None else each.to(x.dtype) for each in (grad_expand, grad_contract))
    others, learns = (grad_y,) if contract_offset_learns else (), any(norm_learns) or contract_offset_learns
    added = grad_y if adds else None
    grad_x, of_norm = norm_gradients(grad_normed, x, scale, offset, others, added=added, learns=learns)
    grad_scale, grad_offset, grad_contract_offset = (*of_norm, *[None] * 3)[:3]
    grad_expand_offset = None if sums is None else summed(sums, expand_offset)[0]
    return grad_x, grad_scale, grad_offset, grad_expand, grad_expand_offset, grad_contract, grad_contract_offset


def _added(total: Tensor | None, product: Tensor, *, alone: bool) -> Tensor:
    """Return a product plus the sum of earlier products, in float32 unless it is `alone`."""
    product = product if alone else product.float()
    return product if total is None else total + product


def transition_triton(x: Tensor, weights: TransitionWeights) -> Tensor:
    """Compute `transition` on a CUDA device."""
    return _run(x, weights, adds=False, in_place=False)


def transition_adding_triton(residual: Residual, x: Tensor, weights: TransitionWeights) -> Tensor | None:
    """Compute `transition` on a CUDA device and add it to its input; return None for another stream or with dropout."""
    is_own = residual.stream is x and residual.dropout_mask is None
    return _run(x, weights, adds=True, in_place=residual.in_place) if is_own else None


def _run(x: Tensor, weights: TransitionWeights, *, adds: bool, in_place: bool) -> Tensor:
    """Compute the transition, plus its input if `adds`, in the memory of the input if `in_place`."""
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
        adds=adds,
        in_place=in_place,
    )
