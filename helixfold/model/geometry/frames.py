"""Backbone frames as a quaternion, a rotation matrix and a translation per residue, updated by the structure module."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from helixfold.model.geometry.rigid import Rigid
from helixfold.ops.structure.quaternions import quaternion_to_rotation, rotation_to_quaternion
from helixfold.ops.structure.update_frames import update_frames


@dataclass(frozen=True, kw_only=True)
class BackboneFrames:
    """Backbone frames with unit quaternions (w, x, y, z); lengths are in the structure module's unit."""

    quaternion: Float[Tensor, "b r 4"]
    rotation: Float[Tensor, "b r 3 3"]  # of the quaternion
    translation: Float[Tensor, "b r 3"]

    @classmethod
    def of(cls, quaternion: Float[Tensor, "b r 4"], translation: Float[Tensor, "b r 3"]) -> "BackboneFrames":
        """Return frames from unit quaternions and translations."""
        return BackboneFrames(
            quaternion=quaternion, rotation=quaternion_to_rotation(quaternion), translation=translation
        )

    @classmethod
    def identity(cls, like: Float[Tensor, "b r c"]) -> "BackboneFrames":
        """Return identity frames at the origin for all residues of `like` (AlphaFold 2, Suppl. Alg. 20 line 4)."""
        zeros = like.new_zeros(*like.shape[:2], 3)
        return BackboneFrames.of(pad(zeros, (1, 0), value=1.0), zeros)

    @classmethod
    def from_rigid(cls, rigid: Rigid) -> "BackboneFrames":
        """Return the frames with quaternions computed from the rotations."""
        return BackboneFrames.of(rotation_to_quaternion(rigid.rotation), rigid.translation)

    def rigid(self) -> Rigid:
        """Return the frames without quaternions."""
        return Rigid(rotation=self.rotation, translation=self.translation)

    def updated(self, update: Float[Tensor, "b r 6"]) -> "BackboneFrames":
        """Return the frames composed with local motions of quaternion (1, u0, u1, u2) and translation (u3, u4, u5).

        AlphaFold 2, Suppl. Alg. 23.
        """
        quaternion, rotation, translation = update_frames(self.quaternion, self.rotation, self.translation, update)
        return BackboneFrames(quaternion=quaternion, rotation=rotation, translation=translation)

    def without_rotation_gradient(self) -> "BackboneFrames":
        """Return frames whose gradient flows through translations only (Alg. 20 line 20)."""
        return BackboneFrames(
            quaternion=self.quaternion.detach(), rotation=self.rotation.detach(), translation=self.translation
        )

    def to_tensor(self) -> Float[Tensor, "b r 7"]:
        """Return the quaternions followed by the translations."""
        return torch.cat([self.quaternion, self.translation], -1)
