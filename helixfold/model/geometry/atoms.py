"""Conversion of frames and torsions to atoms, and between the atom14 and atom37 layouts."""

from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot, pad

from data_pipeline import residues
from helixfold.model.geometry.rigid import Rigid
from helixfold.model.geometry.tables import per_residue

_CA, _CB = residues.ATOM_ORDER["CA"], residues.ATOM_ORDER["CB"]
_GLYCINE = residues.RESTYPES.index("G")


def rigid_groups_from_torsions(aatype: Int[Tensor, "b r"], backbone: Rigid, sin_cos: Float[Tensor, "b r 7 2"]) -> Rigid:
    """Return global frames (b r 8) of the backbone, pre-omega, phi, psi and chi1 to chi4 groups.

    AlphaFold 2, Suppl. Alg. 24.
    """
    matrices = rigid_group_matrices(aatype, backbone, sin_cos)
    return Rigid(rotation=matrices[..., :3], translation=matrices[..., 3])


def rigid_group_matrices(
    aatype: Int[Tensor, "b r"], backbone: Rigid, sin_cos: Float[Tensor, "b r 7 2"]
) -> Float[Tensor, "b r 8 3 4"]:
    """Return the frames of `rigid_groups_from_torsions` as matrices: rotations with translations as the last column."""
    # The motion of each group relative to the previous one is linear in 1, sine and cosine. The backbone has no
    # torsion.
    factors = pad(sin_cos, (0, 1, 1, 0), value=1.0)
    local = _torsion_motions(aatype.device)[aatype].to(factors.dtype) @ factors[..., None]
    local = local.squeeze(-1).unflatten(-1, (4, 4))
    # The frame of chi1 is relative to the backbone, and the frame of each later chi to the previous chi.
    chis = list(accumulate(local[:, :, 4:].unbind(2), torch.matmul))
    to_backbone = torch.cat([local[:, :, :4], torch.stack(chis, 2)], 2)
    matrices: Tensor = torch.cat([backbone.rotation, backbone.translation[..., None]], -1)[:, :, None] @ to_backbone
    return matrices


def atom14_from_rigid_groups(aatype: Int[Tensor, "b r"], groups: Rigid) -> Float[Tensor, "b r 14 3"]:
    """Place the ideal atoms of every residue in the frames of their rigid groups, in Angstrom (Alg. 24 line 11)."""
    return atom14_from_matrices(aatype, torch.cat([groups.rotation, groups.translation[..., None]], -1))


def atom14_from_matrices(aatype: Int[Tensor, "b r"], matrices: Float[Tensor, "b r 8 3 4"]) -> Float[Tensor, "b r 14 3"]:
    """Place the ideal atoms of every residue in frames of `rigid_group_matrices`, in Angstrom."""
    groups, positions = (table(aatype.device)[aatype] for table in (_groups_of_atoms, _homogeneous_atoms))
    # A product instead of a gather, whose gradient is summed in a varying order on a GPU.
    frames = (groups.to(matrices.dtype) @ matrices.flatten(-2)).unflatten(-1, (3, 4))
    return (frames @ positions.to(frames.dtype)[..., None]).squeeze(-1)


@cache
def _torsion_motions(device: torch.device) -> Float[Tensor, "21 8 16 3"]:
    """Return the motion of each group as coefficients of sine, cosine and 1 for each element of a 4 x 4 matrix.

    The torsion of a group is a rotation about the x axis of its default frame.
    """
    default = torch.from_numpy(residues.RIGID_GROUP_DEFAULT_FRAME.copy())
    motions = torch.zeros(*default.shape, 3)
    motions[..., 2] = default
    motions[..., 3, :, 2] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    torsions = motions[:, 1:]
    y, z = default[:, 1:, :3, 1], default[:, 1:, :3, 2]
    torsions[..., :3, 1, :] = torch.stack([z, y, torch.zeros_like(y)], -1)
    torsions[..., :3, 2, :] = torch.stack([-y, z, torch.zeros_like(y)], -1)
    return motions.flatten(2, 3).to(device)


@cache
def _groups_of_atoms(device: torch.device) -> Float[Tensor, "21 14 8"]:
    """Return the rigid group of each atom14 atom, one-hot."""
    return one_hot(torch.from_numpy(residues.ATOM14_TO_RIGID_GROUP.copy()).long(), 8).float().to(device)


@cache
def _homogeneous_atoms(device: torch.device) -> Float[Tensor, "21 14 4"]:
    """Return homogeneous coordinates of each atom in the frame of its group; zeros for absent atoms."""
    positions, mask = (
        torch.from_numpy(table.copy()) for table in (residues.ATOM14_RIGID_GROUP_POSITIONS, residues.ATOM14_MASK)
    )
    return (pad(positions, (0, 1), value=1.0) * mask[..., None]).to(device)


def atom14_mask(aatype: Int[Tensor, "b r"], seq_mask: Float[Tensor, "b r"]) -> Float[Tensor, "b r 14"]:
    """Return 1 for the atoms that the type of each real residue has, and 0 for all others, in the atom14 layout."""
    return per_residue("ATOM14_MASK", aatype, seq_mask.dtype) * seq_mask[..., None]


def atom37_mask(aatype: Int[Tensor, "b r"], seq_mask: Float[Tensor, "b r"]) -> Float[Tensor, "b r 37"]:
    """Return 1 for the atoms that the type of each real residue has, and 0 for all others, in the atom37 layout."""
    return per_residue("ATOM37_MASK", aatype, seq_mask.dtype) * seq_mask[..., None]


def atom14_to_atom37(
    positions: Float[Tensor, "b r 14 3"], aatype: Int[Tensor, "b r"], mask: Float[Tensor, "b r 37"]
) -> Float[Tensor, "b r 37 3"]:
    """Return atom14 positions in the atom37 layout, multiplied by `mask`, so that absent atoms are at the origin."""
    index = per_residue("ATOM37_TO_ATOM14", aatype)
    return positions.gather(-2, index[..., None].expand(*index.shape, 3)) * mask[..., None]


def pseudo_beta(
    aatype: Int[Tensor, "*batch r"], positions: Float[Tensor, "*batch r 37 3"]
) -> Float[Tensor, "*batch r 3"]:
    """Return the position of every residue's C-beta, or of the C-alpha for glycine."""
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
    lower, upper = _squared_edges(bins, positions.device)
    difference = rearrange(positions, "... i x -> ... i 1 x") - rearrange(others, "... j x -> ... 1 j x")
    squared = difference.square().sum(-1, keepdim=True)
    return ((squared > lower) & (squared < upper)).to(positions.dtype)


@cache
def _squared_edges(bins: DistanceBins, device: torch.device) -> tuple[Float[Tensor, "bins"], Float[Tensor, "bins"]]:
    """Return the squares of all bins' lower and upper edges."""
    lower = torch.linspace(bins.first, bins.last, bins.count, device=device).square()
    return lower, pad(lower[1:], (0, 1), value=1e8)
