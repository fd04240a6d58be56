"""Errors of all points in all frames of a structure: their sum with its gradients."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.card import Card, card_of
from helixfold.ops.constants import ERROR_FLOOR
from helixfold.ops.dispatch import Backend, first_reason, operator
from helixfold.ops.triton.refusal import refusal_of_kernels
from helixfold.ops.unmasked import unmasked

# Coordinate differences computed at once: as many as a CPU's cache holds, on other devices 256 MiB in float32.
_CPU_BLOCK, _LARGE_BLOCK = 2**16, 2**26


def _refusal_of_triton(card: Card, inverse_frames: Tensor, points: Tensor, *_: object) -> str | None:
    return first_reason(
        (inverse_frames.dtype != torch.float32, f"{inverse_frames.dtype} is left to the reference"),
        (inverse_frames.numel() == 0 or points.numel() == 0, "there is nothing to compute"),
    ) or refusal_of_kernels(card)


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.structure.aligned_errors:aligned_errors_triton",
        refusal=_refusal_of_triton,
    )
)
def aligned_errors(
    inverse_frames: Float[Tensor, "n 3 f 7"],
    points: Float[Tensor, "n p 7"],
    frames_mask: Float[Tensor, "n f"],
    points_mask: Float[Tensor, "n p"],
    clamp: Float[Tensor, " n"],
    gradients: bool = True,
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n 3 f 7"], Float[Tensor, "n p 7"]]:
    """Return the sum of clamped errors over all unmasked pairs of frames and points, and its gradients if asked for.

    An error is the length of `inverse_frames @ point` (with a floor), which is the difference of a point's coordinates
    in a frame and in the true one. All is computed block by block, and on a CPU without the masked frames and points.
    Gradients that are not asked for are arbitrary.
    """
    grad_frames, grad_points = torch.zeros_like(inverse_frames), torch.zeros_like(points)
    total = torch.zeros_like(clamp)
    clamp = clamp[:, None, None]
    chosen, chosen_frames = unmasked(points_mask > 0), unmasked(frames_mask > 0)
    points_mask, points = points_mask[:, chosen], points[:, chosen]
    frames_mask, inverse_frames = frames_mask[:, chosen_frames], inverse_frames[:, :, chosen_frames]
    grad_chosen, grad_chosen_frames = torch.zeros_like(points), torch.empty_like(inverse_frames)
    block_size = _CPU_BLOCK if card_of(points.device).kind == "cpu" else _LARGE_BLOCK
    size = max(1, block_size // max(1, 3 * points_mask.numel()))
    for start in range(0, frames_mask.shape[1], size):
        frames = slice(start, start + size)
        block, block_mask = inverse_frames[:, :, frames], frames_mask[:, frames]
        matrix = rearrange(block, "n x f c -> n (x f) c")
        difference = rearrange(matrix @ points.mT, "n (x f) p -> n x f p", x=3)
        error = difference.square().sum(1).add_(ERROR_FLOOR).sqrt_()
        total += ((torch.minimum(error, clamp) @ points_mask[..., None])[..., 0] * block_mask).sum(-1)
        if not gradients:
            continue
        weight = block_mask[..., None] * points_mask[:, None]
        slope = (weight / error).masked_fill_(error >= clamp, 0)
        grad_difference = rearrange(difference.mul_(slope[:, None]), "n x f p -> n (x f) p")
        grad_chosen_frames[:, :, frames] = rearrange(grad_difference @ points, "n (x f) c -> n x f c", x=3)
        grad_chosen += grad_difference.mT @ matrix
    grad_points[:, chosen], grad_frames[:, :, chosen_frames] = grad_chosen, grad_chosen_frames
    return total, grad_frames, grad_points
