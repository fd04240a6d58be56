"""The update of backbone frames by small motions in local coordinates."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from helixfold.ops.device_properties import DeviceProperties
from helixfold.ops.dispatch import Backend, first_reason, operator
from helixfold.ops.structure.quaternions import quaternion_multiply, quaternion_to_rotation
from helixfold.ops.triton.requirements import missing_requirement


def _unsupported_by_triton(properties: DeviceProperties, quaternion: Tensor, *_: Tensor) -> str | None:
    """Return why the Triton kernels do not support these arguments on a device with these properties, or None."""
    return first_reason(
        (quaternion.dtype != torch.float32, f"{quaternion.dtype} is left to the reference"),
        (quaternion.numel() == 0, "there is nothing to compute"),
    ) or missing_requirement(properties)


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.structure.update_frames:update_frames_triton",
        unsupported_reason=_unsupported_by_triton,
    )
)
def update_frames(
    quaternion: Float[Tensor, "b r 4"],
    rotation: Float[Tensor, "b r 3 3"],
    translation: Float[Tensor, "b r 3"],
    update: Float[Tensor, "b r 6"],
) -> tuple[Float[Tensor, "b r 4"], Float[Tensor, "b r 3 3"], Float[Tensor, "b r 3"]]:
    """Return the unit quaternions, rotations and translations of frames composed with local motions.

    `rotation` is the rotation matrix of `quaternion`. The motions have the unnormalised quaternion (1, u0, u1, u2) and
    the translation (u3, u4, u5). AlphaFold 2, Suppl. Alg. 23.
    """
    turn, shift = update.split(3, -1)
    # A zero update leaves the quaternion exactly as it is.
    turned = quaternion_multiply(quaternion, pad(turn, (1, 0), value=1.0))
    turned = turned / torch.linalg.vector_norm(turned, dim=-1, keepdim=True)
    return turned, quaternion_to_rotation(turned), translation + (rotation @ shift[..., None]).squeeze(-1)
