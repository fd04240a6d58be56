"""The frame aligned point errors (FAPE) as Triton kernels that store no tensor of all pairs.

One kernel sums the errors and their gradients over points, for some frames. The other sums the gradients over frames,
for some points. Both compute the errors, so that no program waits for another.
"""

from typing import no_type_check

import torch
from torch import Tensor

from helixfold.ops.constants import ERROR_FLOOR
from helixfold.ops.triton.language import cdiv, jit, kernel, tl

_FLOOR = tl.constexpr(ERROR_FLOOR)
_CHANNELS = tl.constexpr(7)
_WIDTH = tl.constexpr(16)  # channels of a tile, the minimum of matrix products
_TILE = 32


@jit
@no_type_check
def _rows(at, stride_channel, row, stride, rows):
    """Return a tile [rows, channels] with 7 channels, padded with zeros."""
    channel = tl.arange(0, _WIDTH)
    inside = (row < rows)[:, None] & (channel < _CHANNELS)[None, :]
    return tl.load(at + row[:, None] * stride + channel[None, :] * stride_channel, mask=inside, other=0.0)


@jit
@no_type_check
def _store(at, stride_channel, row, stride, rows, tile):
    """Store the first 7 channels of a tile of rows."""
    channel = tl.arange(0, _WIDTH)
    inside = (row < rows)[:, None] & (channel < _CHANNELS)[None, :]
    tl.store(at + row[:, None] * stride + channel[None, :] * stride_channel, tile, mask=inside)


@jit
@no_type_check
def _slopes(x, y, z, points, frame_mask, point_mask, clamp):
    """Return the coordinate differences [frames, points] times the slopes of their errors, and the weighted errors."""
    points = tl.trans(points)
    dx = tl.dot(x, points, input_precision="ieee")
    dy = tl.dot(y, points, input_precision="ieee")
    dz = tl.dot(z, points, input_precision="ieee")
    error = tl.sqrt(dx * dx + dy * dy + dz * dz + _FLOOR)
    weight = frame_mask[:, None] * point_mask[None, :]
    slope = tl.where(error < clamp, weight / error, 0.0)
    return dx * slope, dy * slope, dz * slope, tl.minimum(error, clamp) * weight


@kernel
@no_type_check
def _of_frames(frames, points_at, masks, clamp_at, sums_at, gradient, sizes, tile: tl.constexpr):
    """Store the sum of the errors of a tile of frames with all points, and the gradients of these frames."""
    frame_count, point_count = sizes
    sample = tl.program_id(1).to(tl.int64)
    frame = tl.program_id(0) * tile + tl.arange(0, tile)
    at = frames[0] + sample * frames[1]
    x = _rows(at, frames[4], frame, frames[3], frame_count)
    y = _rows(at + frames[2], frames[4], frame, frames[3], frame_count)
    z = _rows(at + 2 * frames[2], frames[4], frame, frames[3], frame_count)
    frame_mask = tl.load(masks[0] + sample * frame_count + frame, mask=frame < frame_count, other=0.0)
    clamp = tl.load(clamp_at + sample)
    total = tl.zeros([tile], tl.float32)
    grad_x, grad_y, grad_z = tl.zeros_like(x), tl.zeros_like(x), tl.zeros_like(x)
    for first in range(0, point_count, tile):
        point = first + tl.arange(0, tile)
        points = _rows(points_at + sample * point_count * _CHANNELS, 1, point, _CHANNELS, point_count)
        point_mask = tl.load(masks[1] + sample * point_count + point, mask=point < point_count, other=0.0)
        slope_x, slope_y, slope_z, error = _slopes(x, y, z, points, frame_mask, point_mask, clamp)
        total += tl.sum(error, 1)
        grad_x += tl.dot(slope_x, points, input_precision="ieee")
        grad_y += tl.dot(slope_y, points, input_precision="ieee")
        grad_z += tl.dot(slope_z, points, input_precision="ieee")
    tl.store(sums_at + sample * tl.num_programs(0) + tl.program_id(0), tl.sum(total, 0))
    at = gradient[0] + sample * gradient[1]
    _store(at, gradient[4], frame, gradient[3], frame_count, grad_x)
    _store(at + gradient[2], gradient[4], frame, gradient[3], frame_count, grad_y)
    _store(at + 2 * gradient[2], gradient[4], frame, gradient[3], frame_count, grad_z)


@kernel
@no_type_check
def _of_points(frames, points_at, masks, clamp_at, gradient_at, sizes, tile: tl.constexpr):
    """Store the gradients of a tile of points, summed over all frames."""
    frame_count, point_count = sizes
    sample = tl.program_id(1).to(tl.int64)
    point = tl.program_id(0) * tile + tl.arange(0, tile)
    points = _rows(points_at + sample * point_count * _CHANNELS, 1, point, _CHANNELS, point_count)
    point_mask = tl.load(masks[1] + sample * point_count + point, mask=point < point_count, other=0.0)
    clamp = tl.load(clamp_at + sample)
    at = frames[0] + sample * frames[1]
    gradient = tl.zeros_like(points)
    for first in range(0, frame_count, tile):
        frame = first + tl.arange(0, tile)
        x = _rows(at, frames[4], frame, frames[3], frame_count)
        y = _rows(at + frames[2], frames[4], frame, frames[3], frame_count)
        z = _rows(at + 2 * frames[2], frames[4], frame, frames[3], frame_count)
        frame_mask = tl.load(masks[0] + sample * frame_count + frame, mask=frame < frame_count, other=0.0)
        slope_x, slope_y, slope_z, _ = _slopes(x, y, z, points, frame_mask, point_mask, clamp)
        gradient += tl.dot(tl.trans(slope_x), x, input_precision="ieee")
        gradient += tl.dot(tl.trans(slope_y), y, input_precision="ieee")
        gradient += tl.dot(tl.trans(slope_z), z, input_precision="ieee")
    _store(gradient_at + sample * point_count * _CHANNELS, 1, point, _CHANNELS, point_count, gradient)


def aligned_errors_triton(
    inverse_frames: Tensor,
    points: Tensor,
    frames_mask: Tensor,
    points_mask: Tensor,
    clamp: Tensor,
    gradients: bool = True,
    pairs: None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `aligned_errors` of all pairs on a CUDA device; `pairs` must be None."""
    (n, _, frames, _), count = inverse_frames.shape, points.shape[1]
    points, clamp = points.contiguous(), clamp.contiguous()
    masks = frames_mask.contiguous(), points_mask.contiguous()
    grad_frames, grad_points = torch.empty_like(inverse_frames), torch.empty_like(points)
    sums = clamp.new_empty(n, cdiv(frames, _TILE))
    inputs = (inverse_frames, *inverse_frames.stride()), points, masks, clamp
    _of_frames[(sums.shape[1], n)](
        *inputs, sums, (grad_frames, *grad_frames.stride()), (frames, count), tile=_TILE, num_warps=4
    )
    if gradients:
        _of_points[(cdiv(count, _TILE), n)](*inputs, grad_points, (frames, count), tile=_TILE, num_warps=4)
    return sums.sum(1), grad_frames, grad_points
