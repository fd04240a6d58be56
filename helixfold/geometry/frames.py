"""Backbone frames as a quaternion and a translation per residue, which the structure module updates."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from helixfold.geometry.rigid import Rigid, quaternion_multiply, quaternion_to_rotation


@dataclass(frozen=True, kw_only=True)
class BackboneFrames:
    """Backbone frames with unit quaternions (w, x, y, z); the structure module's unit of length is 10 Angstrom."""

    quaternion: Float[Tensor, "b r 4"]
    translation: Float[Tensor, "b r 3"]

    @classmethod
    def identity(cls, like: Float[Tensor, "b r c"]) -> "BackboneFrames":
        """Return frames of all residues of `like` at the origin (AlphaFold 2, Suppl. Alg. 20 line 4)."""
        zeros = like.new_zeros(*like.shape[:2], 3)
        return BackboneFrames(quaternion=pad(zeros, (1, 0), value=1.0), translation=zeros)

    def rigid(self) -> Rigid:
        """Return the frames with rotation matrices."""
        return Rigid(rotation=quaternion_to_rotation(self.quaternion), translation=self.translation)

    def updated(self, update: Float[Tensor, "b r 6"]) -> "BackboneFrames":
        """Return the frames composed with local motions of quaternion (1, u0, u1, u2) and translation (u3, u4, u5).

        AlphaFold 2, Suppl. Alg. 23.
        """
        rotation, shift = update.split(3, -1)
        # q * (1, u) = q + q * (0, u); in this form a zero update changes q by exactly nothing.
        quaternion = self.quaternion + quaternion_multiply(self.quaternion, pad(rotation, (1, 0)))
        quaternion = quaternion / torch.linalg.vector_norm(quaternion, dim=-1, keepdim=True)
        return BackboneFrames(quaternion=quaternion, translation=self.rigid().apply(shift))

    def without_rotation_gradient(self) -> "BackboneFrames":
        """Return frames whose gradient flows through translations only (Alg. 20 line 20)."""
        return BackboneFrames(quaternion=self.quaternion.detach(), translation=self.translation)

    def to_tensor(self) -> Float[Tensor, "b r 7"]:
        """Return the quaternions and, after them, the translations."""
        return torch.cat([self.quaternion, self.translation], -1)
