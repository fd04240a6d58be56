"""Frames of the rigid groups of an observed structure."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from data_pipeline import residues
from data_pipeline.residue_geometry import CHI1_GROUP, PSI_GROUP
from helixfold.model.geometry.rigid import Rigid, rigid_from_three_points

_BACKBONE_ATOMS = [residues.ATOM_ORDER[name] for name in ("C", "CA", "N")]
_PSI_ATOMS = [residues.ATOM_ORDER[name] for name in ("CA", "C", "O")]


@dataclass(frozen=True, kw_only=True)
class RigidGroups:
    """Frames of the backbone, pre-omega, phi, psi and chi1 to chi4 groups, in Angstrom; arbitrary where the mask is 0.

    `alternative` has the chi groups with ambiguously named atoms rotated by 180 degrees. `mask` is 1 where the residue
    has the group and its three atoms are observed.
    """

    frames: Rigid  # *batch r 8
    alternative: Rigid  # *batch r 8
    mask: Float[Tensor, "*batch r 8"]  # 1 where the residue has the group and its three atoms are observed


def rigid_groups_from_atom37(
    aatype: Int[Tensor, "*batch r"], positions: Float[Tensor, "*batch r 37 3"], mask: Float[Tensor, "*batch r 37"]
) -> RigidGroups:
    """Return the frames of all groups of every residue (AlphaFold 2, Suppl. Table 2 and Alg. 21).

    Groups 1 (pre-omega) and 2 (phi) have no heavy atoms, so their mask is always 0.
    """
    group_atoms, exists, mirror, half_turn = group_tables(aatype.device)
    atoms = group_atoms[aatype].flatten(-2)
    points = positions.gather(-2, atoms[..., None].expand(*atoms.shape, 3)).unflatten(-2, (8, 3))
    observed = mask.gather(-1, atoms).unflatten(-1, (8, 3)).amin(-1)
    frames = rigid_from_three_points(*points.unbind(-2))
    rotation = frames.rotation * mirror[:, None]
    return RigidGroups(
        frames=Rigid(rotation=rotation, translation=frames.translation),
        alternative=Rigid(rotation=rotation * half_turn[aatype][..., None, :], translation=frames.translation),
        mask=observed * exists[aatype],
    )


@cache
def group_tables(device: torch.device) -> Sequence[Tensor]:
    """Return tables of the groups: atoms [21 8 3], whether they exist [21 8], signs of axes [8 3], half turns [21 8 3].

    The three atoms of a group, as atom37 indices, lie on its x axis, at its origin and in its xy plane. The signs of
    axes are factors of the frame's x, y and z axes. Half turns are the same factors for the alternative frames.
    """
    atoms, exists = np.zeros((21, 8, 3), np.int64), np.zeros((21, 8), np.float32)
    atoms[:, 0], atoms[:, PSI_GROUP] = _BACKBONE_ATOMS, _PSI_ATOMS
    atoms[:, CHI1_GROUP:] = residues.CHI_ATOM_INDICES[..., 1:]
    exists[:, [0, PSI_GROUP]], exists[:, CHI1_GROUP:] = 1, residues.CHI_ANGLES_MASK
    # In the backbone group the first atom (C) lies on the positive x axis, in the other groups on the negative one.
    mirror, half_turn = np.ones((8, 3), np.float32), np.ones((21, 8, 3), np.float32)
    mirror[0] = [-1, 1, -1]
    half_turn[:, CHI1_GROUP:, 1:] -= 2 * residues.CHI_PI_PERIODIC[..., None]
    return [torch.from_numpy(table).to(device) for table in (atoms, exists, mirror, half_turn)]
