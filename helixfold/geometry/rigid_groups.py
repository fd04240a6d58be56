"""The rigid groups of an observed structure: what predicted frames of all groups are compared with."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from data_pipeline import residues
from data_pipeline.residue_geometry import CHI1_GROUP, PSI_GROUP
from helixfold.geometry.rigid import Rigid, rigid_from_three_points

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
    tables = _tables(aatype.device)
    atoms = tables.atoms[aatype].flatten(-2)
    points = positions.gather(-2, atoms[..., None].expand(*atoms.shape, 3)).unflatten(-2, (8, 3))
    observed = mask.gather(-1, atoms).unflatten(-1, (8, 3)).amin(-1)
    frames = rigid_from_three_points(*points.unbind(-2))
    rotation = frames.rotation * tables.mirror[:, None]
    return RigidGroups(
        frames=Rigid(rotation=rotation, translation=frames.translation),
        alternative=Rigid(rotation=rotation * tables.half_turn[aatype][..., None, :], translation=frames.translation),
        mask=observed * tables.exists[aatype],
    )


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """Groups by residue type."""

    atoms: Int[Tensor, "21 8 3"]  # of 37: on the x axis, the origin, in the xy plane; 0 without a group
    exists: Float[Tensor, "21 8"]
    mirror: Float[Tensor, "8 3"]  # signs of the axes of all types' groups
    half_turn: Float[Tensor, "21 8 3"]  # signs of the axes under the other names


@cache
def _tables(device: torch.device) -> _Tables:
    atoms, exists = np.zeros((21, 8, 3), np.int64), np.zeros((21, 8), np.float32)
    atoms[:, 0], atoms[:, PSI_GROUP] = _BACKBONE_ATOMS, _PSI_ATOMS
    atoms[:, CHI1_GROUP:] = residues.CHI_ATOM_INDICES[..., 1:]
    exists[:, [0, PSI_GROUP]], exists[:, CHI1_GROUP:] = 1, residues.CHI_ANGLES_MASK
    # In the backbone group C lies on the positive x axis; in all others the first atom lies on the negative one.
    mirror, half_turn = np.ones((8, 3), np.float32), np.ones((21, 8, 3), np.float32)
    mirror[0] = [-1, 1, -1]
    half_turn[:, CHI1_GROUP:, 1:] -= 2 * residues.CHI_PI_PERIODIC[..., None]
    return _Tables(
        **{
            name: torch.from_numpy(table).to(device)
            for name, table in {"atoms": atoms, "exists": exists, "mirror": mirror, "half_turn": half_turn}.items()
        }
    )
