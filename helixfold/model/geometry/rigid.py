"""Rigid motions: rotations and translations that map local to global coordinates."""

from dataclasses import dataclass
from types import EllipsisType

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from helixfold.ops.structure.quaternions import quaternion_to_rotation


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

    def invert_apply_to_columns(self, points: Float[Tensor, "*batch 3 p"]) -> Float[Tensor, "*batch 3 p"]:
        """Return global points, several for each frame as columns, in local coordinates."""
        return self.rotation.mT @ (points - self.translation[..., None])

    def apply(self, points: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
        """Return local points in global coordinates."""
        return einsum(self.rotation, points, "... x y, ... y -> ... x") + self.translation

    def invert_apply(self, points: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
        """Return global points in local coordinates."""
        return einsum(self.rotation, points - self.translation, "... x y, ... x -> ... y")


def rigid_from_tensor(frames: Float[Tensor, "*batch 7"]) -> Rigid:
    """Return the frames stored as unit quaternions (w, x, y, z) followed by translations."""
    quaternion, translation = frames.split([4, 3], -1)
    return Rigid(rotation=quaternion_to_rotation(quaternion), translation=translation)


def rigid_from_three_points(
    negative_x: Float[Tensor, "*batch 3"], origin: Float[Tensor, "*batch 3"], xy_plane: Float[Tensor, "*batch 3"]
) -> Rigid:
    """Return frames at `origin` whose x axis points away from `negative_x` and whose xy plane contains `xy_plane`.

    AlphaFold 2, Suppl. Alg. 21.
    """
    x_axis = unit(origin - negative_x)
    in_plane = xy_plane - origin
    y_axis = unit(in_plane - x_axis * (in_plane * x_axis).sum(-1, keepdim=True))
    return Rigid(rotation=torch.stack([x_axis, y_axis, torch.linalg.cross(x_axis, y_axis)], -1), translation=origin)


def unit(vector: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """Return vectors divided by their lengths, where 1e-8 is added to the squared length.

    Coinciding atoms (masked, all zero) therefore stay finite, as in AlphaFold's rigids_from_3_points.
    """
    return vector / length(vector, 1e-4)[..., None]


def length(vector: Float[Tensor, "*batch n"], floor: float) -> Float[Tensor, "*batch"]:
    """Return sqrt(squared length + floor**2) of each vector, so that the root has a gradient at 0."""
    return torch.linalg.vector_norm(pad(vector, (0, 1), value=floor), dim=-1)
