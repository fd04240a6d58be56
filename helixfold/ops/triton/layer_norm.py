"""Layer norm as Triton kernels that read and write every row once, for any strides of the other dimensions."""

from collections.abc import Sequence
from typing import no_type_check

import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.recomputed import recomputed
from helixfold.ops.triton.language import cdiv, jit, kernel, next_power_of_2, programs_at_once, tl
from helixfold.ops.triton.sums import summed
from helixfold.ops.weights import Affine

# Elements of a tile: 16 to 32 per thread, which loads 16 bytes at once.
_FORWARD_TILE = 4096
_BACKWARD_TILE = 2048
# Programs of the backward pass per multiprocessor, limited by their registers, and tiles that each program loads ahead.
# Every program has its own partial sums of the gradients of the parameters.
_PROGRAMS, _STAGES = 3, 3


def as_rows(x: Tensor, *others: Tensor) -> list[Tensor]:
    """Return views [b i j c] of tensors of the same shape, all transposed if the first is transposed in memory."""
    views = [tensor[(None,) * (4 - tensor.ndim)] for tensor in (x, *others)]
    return [view.transpose(1, 2) for view in views] if views[0].stride(1) < views[0].stride(2) else views


def contiguous_channels(x: Tensor) -> Tensor:
    """Return the tensor, or a copy if its channels are not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


@jit
@no_type_check
def elements(at, row, channel, size_i, size_j, stride_b, stride_i, stride_j):
    """Return pointers to channels of rows of a tensor [b i j c]; `row` is an index into (b i j)."""
    b = (row // size_j // size_i).to(tl.int64)
    i = (row // size_j % size_i).to(tl.int64)
    j = (row % size_j).to(tl.int64)
    return at + (b * stride_b + i * stride_i + j * stride_j)[:, None] + channel[None, :]


@jit
@no_type_check
def normalised(x, channel, eps, c: tl.constexpr):
    """Return rows normalised over `c` channels, followed by zeros, and their reciprocal standard deviations."""
    mean = tl.sum(x, 1) / c
    centred = tl.where(channel[None, :] < c, x - mean[:, None], 0.0)
    factor = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / c + eps)
    return centred * factor[:, None], factor


@jit
@no_type_check
def gradient_through_norm(grad_normed, normed, factor, c: tl.constexpr):
    """Return the gradient of rows, given the gradient of their normalised values."""
    along_ones = tl.sum(grad_normed, 1) / c
    along_normed = tl.sum(grad_normed * normed, 1) / c
    return factor[:, None] * (grad_normed - along_ones[:, None] - normed * along_normed[:, None])


@kernel
@no_type_check
def _forward(
    x_at,
    y_at,
    scale_at,
    offset_at,
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
    block_rows: tl.constexpr,
    block_c: tl.constexpr,
):
    """Store the layer norm of a tile of rows; `x_b`, `x_i` and `x_j` are strides of `x` [b i j c], and so for y."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    channel = tl.arange(0, block_c)
    inside = (row < rows)[:, None] & (channel < c)[None, :]
    x_at = elements(x_at, row, channel, size_i, size_j, x_b, x_i, x_j)
    x = tl.load(x_at, mask=inside, other=0.0).to(tl.float32)
    normed, _ = normalised(x, channel, eps, c)
    scale = tl.load(scale_at + channel, mask=channel < c, other=0.0).to(tl.float32)
    offset = tl.load(offset_at + channel, mask=channel < c, other=0.0).to(tl.float32)
    y = normed * scale[None, :] + offset[None, :]
    tl.store(elements(y_at, row, channel, size_i, size_j, y_b, y_i, y_j), y.to(y_at.dtype.element_ty), mask=inside)


@jit
@no_type_check
def read_rows(x, row, channel, size_i, size_j, inside):
    """Return rows of a tensor [b i j c] in float32; `x` is a tuple of its address and strides."""
    at = elements(x[0], row, channel, size_i, size_j, x[1], x[2], x[3])
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@kernel
@no_type_check
def _backward(
    x_at,
    grad_y_at,
    grad_x_at,
    scale_at,
    added,
    added_factor,
    first_other,
    second_other,
    sums_at,
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
    sums: tl.constexpr,
    sums_added: tl.constexpr,
    block_rows: tl.constexpr,
    block_c: tl.constexpr,
    stages: tl.constexpr,
):
    """Store the gradient of x plus `added`, and sums over rows: the gradients of both parameters, and other tensors."""
    channel = tl.arange(0, block_c)
    scale = tl.load(scale_at + channel, mask=channel < c, other=0.0).to(tl.float32)
    grad_scale = tl.zeros((block_rows, block_c), tl.float32)
    grad_offset = tl.zeros((block_rows, block_c), tl.float32)
    sum_first = tl.zeros((block_rows, block_c), tl.float32)
    sum_second = tl.zeros((block_rows, block_c), tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, block_rows), tl.num_programs(0), num_stages=stages):
        row = tile * block_rows + tl.arange(0, block_rows)
        inside = (row < rows)[:, None] & (channel < c)[None, :]
        tile_x_at = elements(x_at, row, channel, size_i, size_j, x_b, x_i, x_j)
        tile_grad_y_at = elements(grad_y_at, row, channel, size_i, size_j, grad_y_b, grad_y_i, grad_y_j)
        tile_grad_x_at = elements(grad_x_at, row, channel, size_i, size_j, grad_x_b, grad_x_i, grad_x_j)
        x = tl.load(tile_x_at, mask=inside, other=0.0).to(tl.float32)
        grad_y = tl.load(tile_grad_y_at, mask=inside, other=0.0).to(tl.float32)
        normed, factor = normalised(x, channel, eps, c)
        if sums_at is not None:
            grad_scale += grad_y * normed
            grad_offset += grad_y
        grad_x = gradient_through_norm(grad_y * scale[None, :], normed, factor, c)
        if added is not None:
            more = read_rows(added, row, channel, size_i, size_j, inside)
            grad_x += more
            if sums_added:
                if added_factor is not None:
                    more *= read_rows(added_factor, row, channel, size_i, size_j, inside)
                sum_first += more
        tl.store(tile_grad_x_at, grad_x.to(grad_x_at.dtype.element_ty), mask=inside)
        if first_other is not None:
            sum_first += read_rows(first_other, row, channel, size_i, size_j, inside)
        if second_other is not None:
            sum_second += read_rows(second_other, row, channel, size_i, size_j, inside)
    if sums_at is not None:
        sums_at += tl.program_id(0) * sums * c + channel
        tl.store(sums_at, tl.sum(grad_scale, 0), mask=channel < c)
        tl.store(sums_at + c, tl.sum(grad_offset, 0), mask=channel < c)
        if sums_added or first_other is not None:
            tl.store(sums_at + 2 * c, tl.sum(sum_first, 0), mask=channel < c)
        if second_other is not None:
            tl.store(sums_at + 3 * c, tl.sum(sum_second, 0), mask=channel < c)


def normed_into(y: Tensor, x: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """Write the layer norm of `x` into `y` and return it; channels must be contiguous in both."""
    x_rows, y_rows = as_rows(x, y)
    rows, c = x_rows[..., 0].numel(), x.shape[-1]
    block_c = next_power_of_2(c)
    block_rows = _FORWARD_TILE // block_c
    _forward[(cdiv(rows, block_rows),)](
        x_rows,
        y_rows,
        scale,
        offset,
        rows,
        *x_rows.shape[1:3],
        *x_rows.stride()[:3],
        *y_rows.stride()[:3],
        EPS,
        c=c,
        block_rows=block_rows,
        block_c=block_c,
        num_warps=4,
    )
    return y


def norm_gradients(
    grad_y: Tensor,
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    others: Sequence[Tensor] = (),
    *,
    added: Tensor | None = None,
    added_factor: Tensor | None = None,
    learns: bool = True,
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradient of `x`, and a list of the gradients of scale and offset, empty unless the layer `learns`.

    `added`, with the shape of `x`, is added to the gradient of `x`. The list also has the sums over the rows of up to
    two `others`, with the same shape, which the same kernel computes. The first of them may be `added`, and is then
    multiplied by `added_factor`, which expands to the shape of `x`.
    """
    grad_x = torch.empty_like(x)
    first, second = (*others, None, None)[:2]
    sums_added = first is not None and first is added
    factor = None if added_factor is None else added_factor.expand(x.shape)
    optional = [added, factor, None if sums_added else first, second]
    tensors = [None if each is None else contiguous_channels(each) for each in optional]
    x_rows, grad_y_rows, grad_x_rows, *tensor_rows = as_rows(
        x, contiguous_channels(grad_y), grad_x, *(x if each is None else each for each in tensors)
    )
    rows, c = x_rows[..., 0].numel(), x.shape[-1]
    block_c = next_power_of_2(c)
    block_rows = _BACKWARD_TILE // block_c
    programs = min(cdiv(rows, block_rows), _PROGRAMS * programs_at_once(x.device))
    count = 2 + len(others)
    sums = torch.empty(programs, count, c, dtype=torch.float32, device=x.device) if learns else None
    _backward[(programs,)](
        x_rows,
        grad_y_rows,
        grad_x_rows,
        scale,
        *(
            None if each is None else (view, *view.stride()[:3])
            for each, view in zip(tensors, tensor_rows, strict=True)
        ),
        sums,
        rows,
        *x_rows.shape[1:3],
        *x_rows.stride()[:3],
        *grad_y_rows.stride()[:3],
        *grad_x_rows.stride()[:3],
        EPS,
        c=c,
        sums=count,
        sums_added=sums_added,
        block_rows=block_rows,
        block_c=block_c,
        stages=_STAGES,
        num_warps=4,
    )
    return grad_x, [] if sums is None else summed(sums, scale, offset, *[offset] * len(others))


def _layer_norm(x: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """Return the layer norm of `x` in new memory with the same layout."""
    return normed_into(torch.empty_like(x), x, scale, offset)


def _layer_norm_gradients(
    needed: tuple[bool, ...], grad_y: Tensor, x: Tensor, scale: Tensor, offset: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `x`, scale and offset, or None for both parameters if none is needed."""
    grad_x, sums = norm_gradients(grad_y, x, scale, offset, learns=any(needed[1:]))
    return (grad_x, *sums) if sums else (grad_x, None, None)


def layer_norm_triton(x: Tensor, norm: Affine) -> Tensor:
    """Compute `layer_norm` on a CUDA device."""
    return recomputed(_layer_norm, _layer_norm_gradients, x, *norm)
