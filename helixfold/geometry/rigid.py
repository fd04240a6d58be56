"""Rigid motions: rotations and translations that map local to global coordinates."""

import re
from dataclasses import dataclass
from functools import cache
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

    def apply_to_columns(self, points: Float[Tensor, "*batch 3 p"]) -> Float[Tensor, "*batch 3 p"]:
        """Return several local points of each frame, whose coordinates are columns, in global coordinates."""
        flat = torch.baddbmm(
            self.translation.reshape(-1, 3, 1), self.rotation.reshape(-1, 3, 3), points.reshape(-1, 3, points.shape[-1])
        )
        return flat.view(points.shape)

    def invert_apply_to_columns(self, points: Float[Tensor, "*batch 3 p"]) -> Float[Tensor, "*batch 3 p"]:
        """Return several global points for each frame, whose coordinates are columns, in its local coordinates."""
        return self.rotation.mT @ (points - self.translation[..., None])

    def apply(self, points: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
        """Return local points in global coordinates."""
        return einsum(self.rotation, points, "... x y, ... y -> ... x") + self.translation

    def invert_apply(self, points: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
        """Return global points in local coordinates."""
        return einsum(self.rotation, points - self.translation, "... x y, ... x -> ... y")


# A rotation's entries and a product's components (Hamilton) as sums of products of quaternions' components w, x, y, z.
_ROTATION = "ww+xx-yy-zz 2xy-2wz 2xz+2wy 2xy+2wz ww-xx+yy-zz 2yz-2wx 2xz-2wy 2yz+2wx ww-xx-yy+zz"
_PRODUCT = "ww-xx-yy-zz wx+xw+yz-zy wy-xz+yw+zx wz+xy-yx+zw"


def quaternion_to_rotation(quaternion: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3 3"]:
    """Return the rotation matrices of unit quaternions (w, x, y, z)."""
    return _sums_of_products(quaternion, quaternion, _ROTATION).unflatten(-1, (3, 3))


def quaternion_multiply(a: Float[Tensor, "*batch 4"], b: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 4"]:
    """Return the Hamilton product, which is the rotation `b` followed by `a`."""
    return _sums_of_products(a, b, _PRODUCT)


def _sums_of_products(
    a: Float[Tensor, "*batch 4"], b: Float[Tensor, "*batch 4"], sums: str
) -> Float[Tensor, "*batch n"]:
    """Return sums of products of a component of `a` and one of `b`, in two operations however many they are."""
    products = a[..., :, None] * b[..., None, :]
    return products.flatten(-2) @ _coefficients(sums, a.dtype, a.device)


@cache
def _coefficients(sums: str, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "16 n"]:
    """Return the coefficients of all products in each sum; "2xy-wz" is twice xy minus wz."""
    table = torch.zeros(4, 4, len(sums.split()), dtype=dtype, device="cpu")
    for column, terms in enumerate(sums.split()):
        for sign, factor, one, other in re.findall(r"([+-]?)(2?)([wxyz])([wxyz])", terms):
            table["wxyz".index(one), "wxyz".index(other), column] = float(f"{sign}{factor or 1}")
    return table.flatten(0, 1).to(device)


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
    x_axis = _unit(origin - negative_x)
    in_plane = xy_plane - origin
    y_axis = _unit(in_plane - x_axis * (in_plane * x_axis).sum(-1, keepdim=True))
    return Rigid(rotation=torch.stack([x_axis, y_axis, torch.linalg.cross(x_axis, y_axis)], -1), translation=origin)


def _unit(vector: Tensor) -> Tensor:
    # 1e-8 keeps coinciding atoms (masked, all zero) finite, as in AlphaFold's rigids_from_3_points.
    return vector / torch.sqrt((vector * vector).sum(-1, keepdim=True) + 1e-8)
