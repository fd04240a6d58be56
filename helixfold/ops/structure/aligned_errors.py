"""The sum of the frame aligned point errors (FAPE) of a structure, with its gradients."""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from helixfold.ops.constants import ERROR_FLOOR
from helixfold.ops.device_properties import DeviceProperties, properties_of
from helixfold.ops.dispatch import Backend, first_reason, operator
from helixfold.ops.mask_bias import unmasked
from helixfold.ops.triton.requirements import missing_requirement

_MIN_ERROR = 1e-4  # Å, for pairs within and between chains
# Coordinate differences computed at a time: on a CPU they fit the cache; on other devices they take 256 MiB in float32.
_CPU_BLOCK, _LARGE_BLOCK = 2**16, 2**26


@dataclass(frozen=True, kw_only=True)
class ChainPairs:
    """Selection of pairs of a frame and a point of a complex: pairs within a chain, or pairs between chains.

    `frames` and `points` are the index of the chain of each frame and point.
    """

    frames: Int[Tensor, "n f"]  # the index of each frame's chain
    points: Int[Tensor, "n p"]  # the index of each point's chain
    within: bool  # whether to select pairs within a chain, or pairs between chains

    def selected(self, frames: slice | Tensor, points: slice | Tensor) -> Bool[Tensor, "n f p"]:
        """Return which pairs of these frames and points are selected."""
        same = self.frames[:, frames, None] == self.points[:, None, points]
        return same if self.within else ~same


def _unsupported_by_triton(
    properties: DeviceProperties,
    inverse_frames: Tensor,
    points: Tensor,
    frames_mask: Tensor,
    points_mask: Tensor,
    clamp: Tensor,
    gradients: bool = True,
    pairs: ChainPairs | None = None,
) -> str | None:
    """Return why the Triton kernels do not support these arguments on a device with these properties, or None."""
    return first_reason(
        (pairs is not None, "pairs within and between chains are left to the reference"),
        (inverse_frames.dtype != torch.float32, f"{inverse_frames.dtype} is left to the reference"),
        (inverse_frames.numel() == 0 or points.numel() == 0, "there is nothing to compute"),
    ) or missing_requirement(properties)


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.structure.aligned_errors:aligned_errors_triton",
        unsupported_reason=_unsupported_by_triton,
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
    """Return the sum of clamped errors over all unmasked pairs of frames and points, and its gradients.

    `clamp` is the maximum error of each sample in Angstrom. An error is the length of `inverse_frames @ point`, the
    difference between the coordinates of a point in a predicted frame and in the true one. A floor is added to its
    square; with `pairs`, the error has a minimum instead. `pairs` limits the sum to pairs within or between the chains
    of a complex. Unless `gradients`, the returned gradients are undefined. Errors are computed block by block, on a CPU
    without masked frames and points.
    """
    grad_frames, grad_points = torch.zeros_like(inverse_frames), torch.zeros_like(points)
    total = torch.zeros_like(clamp)
    clamp = clamp[:, None, None]
    point_index, frame_index = unmasked(points_mask > 0), unmasked(frames_mask > 0)
    points_mask, points = points_mask[:, point_index], points[:, point_index]
    frames_mask, inverse_frames = frames_mask[:, frame_index], inverse_frames[:, :, frame_index]
    unmasked_grad_points, unmasked_grad_frames = torch.zeros_like(points), torch.empty_like(inverse_frames)
    block_size = _CPU_BLOCK if properties_of(points.device).kind == "cpu" else _LARGE_BLOCK
    size = max(1, block_size // max(1, 3 * points_mask.numel()))
    for start in range(0, frames_mask.shape[1], size):
        frames = slice(start, start + size)
        block, block_mask = inverse_frames[:, :, frames], frames_mask[:, frames]
        matrix = rearrange(block, "n x f c -> n (x f) c")
        difference = rearrange(matrix @ points.mT, "n (x f) p -> n x f p", x=3)
        squared = difference.square().sum(1)
        # DeepMind's code for complexes has a minimum error instead of a floor.
        error = (squared.add_(ERROR_FLOOR) if pairs is None else squared.clamp_(min=_MIN_ERROR**2)).sqrt_()
        clamped, weight = torch.minimum(error, clamp), block_mask[..., None] * points_mask[:, None]
        if pairs is not None:
            selected = pairs.selected(frame_index, point_index)[:, frames]
            clamped, weight = clamped * selected, weight * selected
        total += ((clamped @ points_mask[..., None])[..., 0] * block_mask).sum(-1)
        if not gradients:
            continue
        slope = (weight / error).masked_fill_(error >= clamp, 0)
        grad_difference = rearrange(difference.mul_(slope[:, None]), "n x f p -> n (x f) p")
        unmasked_grad_frames[:, :, frames] = rearrange(grad_difference @ points, "n (x f) c -> n x f c", x=3)
        unmasked_grad_points += grad_difference.mT @ matrix
    grad_points[:, point_index], grad_frames[:, :, frame_index] = unmasked_grad_points, unmasked_grad_frames
    return total, grad_frames, grad_points
