"""Errors of all points in all frames of a structure: their sum with its gradients."""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from helixfold.ops.constants import ERROR_FLOOR
from helixfold.ops.device_properties import DeviceProperties, properties_of
from helixfold.ops.dispatch import Backend, first_reason, operator
from helixfold.ops.mask_bias import unmasked
from helixfold.ops.triton.refusal import refusal_of_kernels

_LEAST_ERROR = 1e-4  # Angstrom, of pairs within and between chains
# Coordinate differences computed at once: as many as a CPU's cache holds, on other devices 256 MiB in float32.
_CPU_BLOCK, _LARGE_BLOCK = 2**16, 2**26


@dataclass(frozen=True, kw_only=True)
class ChainPairs:
    """The pairs of a frame and a point of a complex that count: those within one chain, or those of two chains."""

    frames: Int[Tensor, "n f"]  # the number of each frame's chain
    points: Int[Tensor, "n p"]  # the number of each point's chain
    within: bool  # whether pairs within one chain count, or else pairs of two chains

    def counted(self, frames: slice | Tensor, points: slice | Tensor) -> Bool[Tensor, "n f p"]:
        """Return which pairs of some frames and some points count."""
        same = self.frames[:, frames, None] == self.points[:, None, points]
        return same if self.within else ~same


def _refusal_of_triton(
    properties: DeviceProperties,
    inverse_frames: Tensor,
    points: Tensor,
    frames_mask: Tensor,
    points_mask: Tensor,
    clamp: Tensor,
    gradients: bool = True,
    pairs: ChainPairs | None = None,
) -> str | None:
    return first_reason(
        (pairs is not None, "pairs within and between chains are left to the reference"),
        (inverse_frames.dtype != torch.float32, f"{inverse_frames.dtype} is left to the reference"),
        (inverse_frames.numel() == 0 or points.numel() == 0, "there is nothing to compute"),
    ) or refusal_of_kernels(properties)


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
    pairs: ChainPairs | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n 3 f 7"], Float[Tensor, "n p 7"]]:
    """Return the sum of clamped errors over all unmasked pairs of frames and points, and its gradients if asked for.

    An error is the length of `inverse_frames @ point` (with a floor, or of a complex's pairs a least value), which is
    the difference of a point's coordinates in a frame and in the true one. All is computed block by block, and on a CPU
    without the masked frames and points. Gradients that are not asked for are arbitrary. Of a complex, `pairs` limits
    the sum to pairs within or between chains.
    """
    grad_frames, grad_points = torch.zeros_like(inverse_frames), torch.zeros_like(points)
    total = torch.zeros_like(clamp)
    clamp = clamp[:, None, None]
    chosen, chosen_frames = unmasked(points_mask > 0), unmasked(frames_mask > 0)
    points_mask, points = points_mask[:, chosen], points[:, chosen]
    frames_mask, inverse_frames = frames_mask[:, chosen_frames], inverse_frames[:, :, chosen_frames]
    grad_chosen, grad_chosen_frames = torch.zeros_like(points), torch.empty_like(inverse_frames)
    block_size = _CPU_BLOCK if properties_of(points.device).kind == "cpu" else _LARGE_BLOCK
    size = max(1, block_size // max(1, 3 * points_mask.numel()))
    for start in range(0, frames_mask.shape[1], size):
        frames = slice(start, start + size)
        block, block_mask = inverse_frames[:, :, frames], frames_mask[:, frames]
        matrix = rearrange(block, "n x f c -> n (x f) c")
        difference = rearrange(matrix @ points.mT, "n (x f) p -> n x f p", x=3)
        squared = difference.square().sum(1)
        # DeepMind's program of complexes has a least error instead of a floor.
        error = (squared.add_(ERROR_FLOOR) if pairs is None else squared.clamp_(min=_LEAST_ERROR**2)).sqrt_()
        clamped, weight = torch.minimum(error, clamp), block_mask[..., None] * points_mask[:, None]
        if pairs is not None:
            counted = pairs.counted(chosen_frames, chosen)[:, frames]
            clamped, weight = clamped * counted, weight * counted
        total += ((clamped @ points_mask[..., None])[..., 0] * block_mask).sum(-1)
        if not gradients:
            continue
        slope = (weight / error).masked_fill_(error >= clamp, 0)
        grad_difference = rearrange(difference.mul_(slope[:, None]), "n x f p -> n (x f) p")
        grad_chosen_frames[:, :, frames] = rearrange(grad_difference @ points, "n (x f) c -> n x f c", x=3)
        grad_chosen += grad_difference.mT @ matrix
    grad_points[:, chosen], grad_frames[:, :, chosen_frames] = grad_chosen, grad_chosen_frames
    return total, grad_frames, grad_points
