"""The output map from attended values to a stream, fused with its neighbouring operations as Triton kernels.

In the forward pass, these are dropout and the addition to the stream. In the backward pass, they are dropout before the
map, and after it the gradient of the gate and a term of the gradient of every logit. The gradient of the input of the
map, which has the size of the stream, is therefore not written before the gate.
"""

from typing import NamedTuple, no_type_check

import torch
from torch import Tensor

from helixfold.ops.residual import Residual
from helixfold.ops.triton.language import cdiv, kernel, multiplies_from_shared_memory, tl, weight_rows
from helixfold.ops.triton.layer_norm import contiguous_channels, elements, read_rows

_CHANNELS = (32, 64, 128, 256)


@kernel
@no_type_check
def _forward(
    attended_at,
    weight_at,
    offset_at,
    stream,
    dropout_mask,
    sum_to,
    rows,
    size_i,
    size_j,
    c: tl.constexpr,
    block_rows: tl.constexpr,
    part: tl.constexpr,
):
    """Store the stream plus dropout mask times the map of a tile of rows, `part` channels of the output at a time."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    inside = (row < rows)[:, None]
    attended_at += row.to(tl.int64)[:, None] * c + tl.arange(0, c)[None, :]
    attended = tl.load(attended_at, mask=inside, other=0.0)
    for first in tl.range(0, c, part):
        output = first + tl.arange(0, part)
        change = tl.dot(attended, tl.trans(weight_rows(weight_at, first, c, part)))
        change += tl.load(offset_at + output).to(tl.float32)[None, :]
        if dropout_mask is not None:
            change *= read_rows(dropout_mask, row, output, size_i, size_j, inside)
        change += read_rows(stream, row, output, size_i, size_j, inside)
        sum_at = elements(sum_to[0], row, output, size_i, size_j, sum_to[1], sum_to[2], sum_to[3])
        tl.store(sum_at, change.to(attended.dtype), mask=inside)


@kernel
@no_type_check
def _backward(
    gradient,
    dropout_mask,
    weight_at,
    attended_at,
    gate_at,
    dropped_at,
    grad_attended_at,
    grad_gate_at,
    delta_at,
    rows,
    size_i,
    size_j,
    grad_gate_row,
    heads,
    c: tl.constexpr,
    width: tl.constexpr,
    block_rows: tl.constexpr,
    part: tl.constexpr,
):
    """Store the gradients of the ungated attended values and of the gate for a tile of rows, and `delta` of every head.

    Channels of the attended values are computed `part` at a time. If `dropped_at` is not None, also store the gradient
    after dropout, in the order of the rows.
    """
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    inside, channel, long_row = (row < rows)[:, None], tl.arange(0, c), row.to(tl.int64)
    incoming = read_rows(gradient, row, channel, size_i, size_j, inside)
    if dropout_mask is not None:
        incoming *= read_rows(dropout_mask, row, channel, size_i, size_j, inside)
    incoming = incoming.to(weight_at.dtype.element_ty)
    if dropped_at is not None:
        tl.store(dropped_at + long_row[:, None] * c + channel[None, :], incoming, mask=inside)
    for first in tl.range(0, c, part):
        column = first + tl.arange(0, part)
        place = long_row[:, None] * c + column[None, :]
        grad_gated = tl.dot(incoming, tl.load(weight_at + channel[:, None] * c + column[None, :]))
        product = grad_gated * tl.load(attended_at + place, mask=inside, other=0.0).to(tl.float32)
        gate = tl.sigmoid(tl.load(gate_at + place, mask=inside, other=0.0).to(tl.float32))
        tl.store(grad_attended_at + place, (grad_gated * gate).to(incoming.dtype), mask=inside)
        grad_gate = (product * (1 - gate)).to(incoming.dtype)
        tl.store(grad_gate_at + long_row[:, None] * grad_gate_row + column[None, :], grad_gate, mask=inside)
        delta = tl.sum(tl.reshape(product, (block_rows, part // width, width)), 2)
        head = first // width + tl.arange(0, part // width)
        of_row = delta_at + ((long_row // size_j) * heads * size_j + row % size_j)[:, None]
        tl.store(of_row + head[None, :] * size_j, delta, mask=inside)


class MapGradients(NamedTuple):
    """Intermediate gradients of the output map.

    `dropped` is the gradient of the result of the map [(b n k) c], or None if it is not needed. `attended` is the
    gradient of the ungated attended values [(b n k) (h d)]. `delta` [b n h k] is a term of the gradient of every logit
    of a query.
    """

    dropped: Tensor | None
    attended: Tensor
    delta: Tensor


def can_map(x: Tensor) -> bool:
    """Return whether the kernels support this stream: 32, 64, 128 or 256 channels of two bytes, not float32."""
    return x.element_size() == 2 and x.shape[-1] in _CHANNELS


def added_map(attended: Tensor, weight: Tensor, offset: Tensor, residual: Residual) -> Tensor:
    """Return the residual's stream (b n k c) plus dropout mask times the map of `attended` [(b n k) c].

    The result overwrites the stream if the residual is `in_place`.
    """
    stream, dropout_mask, in_place = residual
    rows, c = attended.shape
    total, tile = stream if in_place else torch.empty_like(stream), _tile(stream)
    _forward[(cdiv(rows, tile["block_rows"]),)](
        attended,
        weight.contiguous(),
        offset,
        (stream, *stream.stride()[:3]),
        _placed(dropout_mask, stream),
        (total, *total.stride()[:3]),
        rows,
        *stream.shape[1:3],
        c=c,
        **tile,
    )
    return total


def map_gradients(
    gradient: Tensor,
    dropout_mask: Tensor | None,
    weight: Tensor,
    attended: Tensor,
    gate: Tensor,
    grad_gate: Tensor,
    heads: int,
    *,
    needs_dropped: bool,
) -> MapGradients:
    """Return the gradients of the output map, given the gradient of the stream (b n k c), and write `grad_gate`.

    `attended` and `gate` are [(b n k) c]. `grad_gate` receives the gradient of the logits of the gate; its rows may be
    parts of longer rows.
    """
    gradient = contiguous_channels(gradient)
    rows, c = attended.shape
    b, n, k, _ = gradient.shape
    dropped = None
    if needs_dropped and (dropout_mask is not None or not gradient.is_contiguous()):
        dropped = torch.empty_like(attended)
    grad_attended, delta = torch.empty_like(attended), attended.new_empty(b, n, heads, k, dtype=torch.float32)
    tile = _tile(gradient, c // heads)
    _backward[(cdiv(rows, tile["block_rows"]),)](
        (gradient, *gradient.stride()[:3]),
        _placed(dropout_mask, gradient),
        weight.contiguous(),
        attended,
        gate,
        dropped,
        grad_attended,
        grad_gate,
        delta,
        rows,
        n,
        k,
        grad_gate.stride(0),
        heads,
        c=c,
        width=c // heads,
        **tile,
    )
    if needs_dropped and dropped is None:
        dropped = gradient.view(rows, c)
    return MapGradients(dropped, grad_attended, delta)


def _tile(stream: Tensor, width: int = 1) -> dict[str, int]:
    """Return tile sizes, which divide heads, and launch options; at least two programs fit on a multiprocessor."""
    side = 64 if multiplies_from_shared_memory(stream.device) else 32
    part = min(max(side, width), stream.shape[-1])
    return {"block_rows": side, "part": part, "num_warps": 4, "num_stages": 2}


def _placed(dropout_mask: Tensor | None, stream: Tensor) -> tuple[Tensor | int, ...] | None:
    """Return the dropout mask and its strides along a stream."""
    if dropout_mask is None:
        return None
    expanded = dropout_mask.expand(stream.shape)
    return (expanded, *expanded.stride()[:3])
