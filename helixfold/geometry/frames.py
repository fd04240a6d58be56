"""Backbone frames as the structure module moves them: a quaternion and a translation per residue."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from helixfold.geometry.rigid import Rigid, quaternion_multiply, quaternion_to_rotation


@dataclass(frozen=True, kw_only=True)
class BackboneFrames:
    """Frames with unit quaternions (w, x, y, z); translations are in units of 10 Angstrom inside the module."""

    quaternion: Float[Tensor, "b r 4"]
    translation: Float[Tensor, "b r 3"]

    @classmethod
    def identity(cls, like: Float[Tensor, "b r c"]) -> "BackboneFrames":
        """All residues at the origin ("black hole" start, Alg. 20 line 4), for as many residues as `like` has."""
        zeros = like.new_zeros(*like.shape[:2], 3)
        return BackboneFrames(quaternion=pad(zeros, (1, 0), value=1.0), translation=zeros)

    def rigid(self) -> Rigid:
        return Rigid(rotation=quaternion_to_rotation(self.quaternion), translation=self.translation)

    def updated(self, update: Float[Tensor, "b r 6"]) -> "BackboneFrames":
        """Compose with a small motion given in the local frame: quaternion (1, u0, u1, u2), translation u3..u5.

        AlphaFold 2, Suppl. Alg. 23.
        """
        rotation, shift = update.split(3, -1)
        # q * (1, u) = q + q * (0, u); written so, a zero update leaves q exactly as it was.
        quaternion = self.quaternion + quaternion_multiply(self.quaternion, pad(rotation, (1, 0)))
        quaternion = quaternion / torch.linalg.vector_norm(quaternion, dim=-1, keepdim=True)
        return BackboneFrames(quaternion=quaternion, translation=self.rigid().apply(shift))

    def scaled(self, unit: float) -> "BackboneFrames":
        return BackboneFrames(quaternion=self.quaternion, translation=self.translation * unit)

    def without_rotation_gradient(self) -> "BackboneFrames":
        """Gradients between iterations flow through translations only (Alg. 20 line 20)."""
        return BackboneFrames(quaternion=self.quaternion.detach(), translation=self.translation)

    def to_tensor(self) -> Float[Tensor, "b r 7"]:
        return torch.cat([self.quaternion, self.translation], -1)
