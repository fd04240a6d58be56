"""Arguments of invariant point attention between its maps, as the structure module makes them."""

from typing import Any

import torch
from torch.nn.functional import normalize

from helixfold.ops.structure.quaternions import quaternion_to_rotation
from helixfold.ops.weights import PointAttentionSizes, PointAttentionWeights
from tests.ops.comparing import affine, mask, norm

TRANSLATION, MASK, PAIR = 2, 3, 4
MONOMER, MULTIMER = (1e-8, 0.0), (0.0, 1e-8)


def point_arguments(
    r: int,
    rows: slice = slice(None),
    *,
    b: int = 1,
    h: int = 3,
    c_z: int = 32,
    d: int = 4,
    q: int = 2,
    p: int = 3,
    extent: float = 1.0,
    center: float = 0.0,
    floors: tuple[float, float] = MONOMER,
) -> list[Any]:
    """Return arguments for the queries of some of `r` residues, which are spread by `extent` around `center`."""
    key_mask = mask(b, r, empty_row=False)
    key_mask[:, 0] = 1
    pair = (3 * torch.randn(b, r, r, c_z) + torch.randn(b, r, r, 1))[:, rows].contiguous()
    rotation = quaternion_to_rotation(normalize(torch.randn(b, r, 4), dim=-1))
    given = [
        torch.randn(b, r, 3 * h * (d + 2 * q + p)),
        rotation,
        center + extent * torch.randn(b, r, 3),
        key_mask,
        pair,
    ]
    weights = PointAttentionWeights((torch.rand(h) + 0.1).requires_grad_(), norm(c_z), affine(h, c_z))
    learning = [each if each is key_mask else each.requires_grad_() for each in given]
    return [*learning, weights, PointAttentionSizes(h, d, q, p, *floors), rows.start or 0]
