"""The rigid groups of an observed structure: what predicted frames of all groups are compared with."""

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from data_pipeline import residues
from data_pipeline.residue_geometry import CHI1_GROUP, PSI_GROUP
from helixfold.geometry.rigid import Rigid, rigid_from_three_points
from helixfold.geometry.tables import per_residue

_BACKBONE_ATOMS = [residues.ATOM_ORDER[name] for name in ("C", "CA", "N")]
_PSI_ATOMS = [residues.ATOM_ORDER[name] for name in ("CA", "C", "O")]


@dataclass(frozen=True, kw_only=True)
class RigidGroups:
    """Frames of backbone, pre-omega, phi, psi and chi1..4 groups, in Angstrom; those with mask 0 are arbitrary.

    `alternative` half-turns the chi groups whose atoms are ambiguous in name.
    """

    frames: Rigid  # *batch r 8
    alternative: Rigid  # *batch r 8
    mask: Float[Tensor, "*batch r 8"]  # 1 where the residue has the group and its three atoms are observed


def rigid_groups_from_atom37(
    aatype: Int[Tensor, "*batch r"], positions: Float[Tensor, "*batch r 37 3"], mask: Float[Tensor, "*batch r 37"]
) -> RigidGroups:
    """Frames of all groups of every residue (AlphaFold 2, Suppl. Table 2 and Alg. 21).

    Groups 1 (pre-omega) and 2 (phi) hold no heavy atom and are never there.
    """
    atoms = _group_atoms(aatype.device)[aatype].flatten(-2)
    points = positions.gather(-2, atoms[..., None].expand(*atoms.shape, 3)).unflatten(-2, (8, 3))
    observed = mask.gather(-1, atoms).unflatten(-1, (8, 3)).amin(-1)
    has_chi = per_residue("CHI_ANGLES_MASK", aatype, mask.dtype)
    has_group = torch.cat([mask.new_tensor([1, 0, 0, 1]).expand(*aatype.shape, 4), has_chi], -1)

    frames = rigid_from_three_points(*points.unbind(-2))
    # In the backbone group C lies on the positive x axis; in all others the first atom lies on the negative one.
    mirror = mask.new_ones(8, 1, 3)
    mirror[0, 0] = mask.new_tensor([-1, 1, -1])
    rotation = frames.rotation * mirror

    turned = 1 - 2 * per_residue("CHI_PI_PERIODIC", aatype, mask.dtype)
    turned = torch.cat([mask.new_ones(*aatype.shape, CHI1_GROUP), turned], -1)
    half_turn = torch.stack([torch.ones_like(turned), turned, turned], -1)
    return RigidGroups(
        frames=Rigid(rotation=rotation, translation=frames.translation),
        alternative=Rigid(rotation=rotation * half_turn[..., None, :], translation=frames.translation),
        mask=observed * has_group,
    )


@cache
def _group_atoms(device: torch.device) -> Int[Tensor, "21 8 3"]:
    """Atoms (of 37) that define each group: one on the x axis, the origin, one in the xy plane; 0 without a group."""
    atoms = torch.zeros(21, 8, 3, dtype=torch.int64)
    atoms[:, 0] = torch.tensor(_BACKBONE_ATOMS)
    atoms[:, PSI_GROUP] = torch.tensor(_PSI_ATOMS)
    atoms[:, CHI1_GROUP:] = torch.tensor(residues.CHI_ATOM_INDICES)[..., 1:]
    return atoms.to(device)
