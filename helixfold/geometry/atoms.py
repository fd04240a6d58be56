"""Conversion of frames and torsions to atoms, and between the atom14 and atom37 layouts."""

from dataclasses import dataclass
from itertools import accumulate

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from data_pipeline import residues
from helixfold.geometry.rigid import Rigid
from helixfold.geometry.tables import per_residue

_CA, _CB = residues.ATOM_ORDER["CA"], residues.ATOM_ORDER["CB"]
_GLYCINE = residues.RESTYPES.index("G")


def rigid_groups_from_torsions(aatype: Int[Tensor, "b r"], backbone: Rigid, sin_cos: Float[Tensor, "b r 7 2"]) -> Rigid:
    """Return global frames (b r 8) of the backbone, pre-omega, phi, psi and chi1 to chi4 groups.

    AlphaFold 2, Suppl. Alg. 24.
    """
    default = per_residue("RIGID_GROUP_DEFAULT_FRAME", aatype, sin_cos.dtype)
    # The backbone group has no torsion: its sine is 0 and its cosine 1.
    sin, cos = pad(sin_cos[..., 0], (1, 0)), pad(sin_cos[..., 1], (1, 0), value=1.0)
    zero, one = torch.zeros_like(sin), torch.ones_like(sin)
    about_x = torch.stack([one, zero, zero, zero, cos, -sin, zero, sin, cos], -1).unflatten(-1, (3, 3))
    local = Rigid(rotation=default[..., :3, :3] @ about_x, translation=default[..., :3, 3])

    # The frame of chi1 is relative to the backbone, each other chi's to the chi before it.
    chis = list(accumulate((local[..., group] for group in (4, 5, 6, 7)), Rigid.compose))
    to_backbone = Rigid(
        rotation=torch.cat([local.rotation[..., :5, :, :], *(c.rotation[..., None, :, :] for c in chis[1:])], -3),
        translation=torch.cat([local.translation[..., :5, :], *(c.translation[..., None, :] for c in chis[1:])], -2),
    )
    return backbone[..., None].compose(to_backbone)


def atom14_from_rigid_groups(aatype: Int[Tensor, "b r"], groups: Rigid) -> Float[Tensor, "b r 14 3"]:
    """Return the ideal atoms of every residue in their groups' frames, in Angstrom (Suppl. Alg. 24 line 11)."""
    group = per_residue("ATOM14_TO_RIGID_GROUP", aatype)
    frames = Rigid(
        rotation=groups.rotation.gather(-3, group[..., None, None].expand(*group.shape, 3, 3)),
        translation=groups.translation.gather(-2, group[..., None].expand(*group.shape, 3)),
    )
    positions = frames.apply(per_residue("ATOM14_RIGID_GROUP_POSITIONS", aatype, groups.translation.dtype))
    return positions * per_residue("ATOM14_MASK", aatype, positions.dtype)[..., None]


def atom14_mask(aatype: Int[Tensor, "b r"], seq_mask: Float[Tensor, "b r"]) -> Float[Tensor, "b r 14"]:
    """Return 1 for the atoms that each real residue has by its type."""
    return per_residue("ATOM14_MASK", aatype, seq_mask.dtype) * seq_mask[..., None]


def atom37_mask(aatype: Int[Tensor, "b r"], seq_mask: Float[Tensor, "b r"]) -> Float[Tensor, "b r 37"]:
    """Return 1 for the atoms that each real residue has by its type."""
    return per_residue("ATOM37_MASK", aatype, seq_mask.dtype) * seq_mask[..., None]


def atom14_to_atom37(
    positions: Float[Tensor, "b r 14 3"], aatype: Int[Tensor, "b r"], mask: Float[Tensor, "b r 37"]
) -> Float[Tensor, "b r 37 3"]:
    """Return atom14 positions in the atom37 layout, with absent atoms at the origin."""
    index = per_residue("ATOM37_TO_ATOM14", aatype)
    return positions.gather(-2, index[..., None].expand(*index.shape, 3)) * mask[..., None]


def pseudo_beta(
    aatype: Int[Tensor, "*batch r"], positions: Float[Tensor, "*batch r 37 3"]
) -> Float[Tensor, "*batch r 3"]:
    """Return the C-beta of every residue, or the C-alpha of glycine."""
    return torch.where((aatype == _GLYCINE)[..., None], positions[..., _CA, :], positions[..., _CB, :])


@dataclass(frozen=True, kw_only=True)
class DistanceBins:
    """Distance bins in Angstrom: `count` bins whose lower edges are evenly spaced from `first` to `last`."""

    first: float
    last: float
    count: int


def distogram(
    positions: Float[Tensor, "*batch i 3"], others: Float[Tensor, "*batch j 3"], bins: DistanceBins
) -> Float[Tensor, "*batch i j bins"]:
    """Return one-hot binned distances from each position to all others (AlphaFold 2, Suppl. Alg. 32 line 1).

    Distances below the first edge are in no bin, distances above the last edge in the last bin.
    """
    lower = torch.linspace(bins.first, bins.last, bins.count, device=positions.device).square()
    upper = pad(lower[1:], (0, 1), value=1e8)
    difference = rearrange(positions, "... i x -> ... i 1 x") - rearrange(others, "... j x -> ... 1 j x")
    squared = difference.square().sum(-1, keepdim=True)
    return ((squared > lower) & (squared < upper)).to(positions.dtype)
