"""Quaternions (w, x, y, z): products and rotation matrices."""

import re
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

# Entries of a rotation matrix and components of a Hamilton product, as sums of products of the components w, x, y, z.
_ROTATION = "ww+xx-yy-zz 2xy-2wz 2xz+2wy 2xy+2wz ww-xx+yy-zz 2yz-2wx 2xz-2wy 2yz+2wx ww-xx-yy+zz"
_PRODUCT = "ww-xx-yy-zz wx+xw+yz-zy wy-xz+yw+zx wz+xy-yx+zw"


def quaternion_to_rotation(quaternion: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3 3"]:
    """Return the rotation matrices of unit quaternions (w, x, y, z)."""
    return _sums_of_products(quaternion, quaternion, _ROTATION).unflatten(-1, (3, 3))


def rotation_to_quaternion(rotation: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 4"]:
    """Return a unit quaternion (w, x, y, z) for each rotation matrix; its sign is arbitrary."""
    xx, xy, xz, yx, yy, yz, zx, zy, zz = rotation.flatten(-2).unbind(-1)
    # Four times the products of all pairs of components. Every column is a multiple of the quaternion. The column with
    # the largest diagonal entry, which is at least 1, is numerically the most accurate.
    products = torch.stack(
        [
            *(1 + xx + yy + zz, zy - yz, xz - zx, yx - xy),
            *(zy - yz, 1 + xx - yy - zz, xy + yx, xz + zx),
            *(xz - zx, xy + yx, 1 - xx + yy - zz, yz + zy),
            *(yx - xy, xz + zx, yz + zy, 1 - xx - yy + zz),
        ],
        -1,
    ).unflatten(-1, (4, 4))
    largest = products.diagonal(dim1=-2, dim2=-1).argmax(-1)
    column = products.gather(-2, largest[..., None, None].expand(*largest.shape, 1, 4)).squeeze(-2)
    return normalize(column, dim=-1)


def quaternion_multiply(a: Float[Tensor, "*batch 4"], b: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 4"]:
    """Return the Hamilton product of two quaternions: the rotation `b` followed by `a`."""
    return _sums_of_products(a, b, _PRODUCT)


def _sums_of_products(
    a: Float[Tensor, "*batch 4"], b: Float[Tensor, "*batch 4"], sums: str
) -> Float[Tensor, "*batch n"]:
    """Return sums of products of components of `a` and `b`, in two operations."""
    products = a[..., :, None] * b[..., None, :]
    return products.flatten(-2) @ _coefficients(sums, a.dtype, a.device)


@cache
def _coefficients(sums: str, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "16 n"]:
    """Return the coefficient of each product in each sum, where "2xy-wz" means 2 x y - w z."""
    table = torch.zeros(4, 4, len(sums.split()), dtype=dtype, device="cpu")
    for column, terms in enumerate(sums.split()):
        for sign, factor, one, other in re.findall(r"([+-]?)(2?)([wxyz])([wxyz])", terms):
            table["wxyz".index(one), "wxyz".index(other), column] = float(f"{sign}{factor or 1}")
    return table.flatten(0, 1).to(device)
