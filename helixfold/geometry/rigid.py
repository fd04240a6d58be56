"""Rigid motions: rotations and translations that map local to global coordinates."""

from dataclasses import dataclass
from types import EllipsisType

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rigid:
    """Frames that map local points x to global ones, `rotation @ x + translation`."""

    rotation: Float[Tensor, "*batch 3 3"]
    translation: Float[Tensor, "*batch 3"]

    def __getitem__(self, index: tuple[int | slice | EllipsisType | None, ...]) -> "Rigid":
        """Return the frames at an index of the batch dims."""
        return Rigid(
            rotation=self.rotation[(*index, slice(None), slice(None))],
            translation=self.translation[(*index, slice(None))],
        )

    def compose(self, other: "Rigid") -> "Rigid":
        """Return the motion that applies `other` first and `self` second."""
        return Rigid(
            rotation=self.rotation @ other.rotation,
            translation=self.apply(other.translation),
        )

    def apply(self, points: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
        """Return local points in global coordinates."""
        return einsum(self.rotation, points, "... x y, ... y -> ... x") + self.translation

    def invert_apply(self, points: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
        """Return global points in local coordinates."""
        return einsum(self.rotation, points - self.translation, "... x y, ... x -> ... y")


def quaternion_to_rotation(quaternion: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3 3"]:
    """Return the rotation matrices of unit quaternions (w, x, y, z)."""
    w, x, y, z = quaternion.unbind(-1)
    return torch.stack(
        [
            torch.stack([w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)], -1),
            torch.stack([2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)], -1),
            torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z], -1),
        ],
        -2,
    )


def rigid_from_tensor(frames: Float[Tensor, "*batch 7"]) -> Rigid:
    """Return the frames stored as unit quaternions (w, x, y, z) followed by translations."""
    quaternion, translation = frames.split([4, 3], -1)
    return Rigid(rotation=quaternion_to_rotation(quaternion), translation=translation)


def quaternion_multiply(a: Float[Tensor, "*batch 4"], b: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 4"]:
    """Return the Hamilton product, which is the rotation `b` followed by `a`."""
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    return torch.stack(
        [
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        ],
        -1,
    )


def rigid_from_three_points(
    negative_x: Float[Tensor, "*batch 3"], origin: Float[Tensor, "*batch 3"], xy_plane: Float[Tensor, "*batch 3"]
) -> Rigid:
    """Return frames at `origin` whose x axis points away from `negative_x` and whose xy plane contains `xy_plane`.

    AlphaFold 2, Suppl. Alg. 21.
    """
    x_axis = _unit(origin - negative_x)
    in_plane = xy_plane - origin
    y_axis = _unit(in_plane - x_axis * (in_plane * x_axis).sum(-1, keepdim=True))
    return Rigid(rotation=torch.stack([x_axis, y_axis, torch.linalg.cross(x_axis, y_axis)], -1), translation=origin)


def _unit(vector: Tensor) -> Tensor:
    # 1e-8 keeps coinciding atoms (masked, all zero) finite, as in AlphaFold's rigids_from_3_points.
    return vector / torch.sqrt((vector * vector).sum(-1, keepdim=True) + 1e-8)
