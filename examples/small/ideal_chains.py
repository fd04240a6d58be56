"""Chains that are ideal helices, strands and coil throughout, built from torsion angles."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torsion_backbone import backbone_from_torsions

from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM37_MASK, ATOM_ORDER, RESTYPES, UNKNOWN
from helixfold.geometry.atoms import (
    atom14_from_rigid_groups,
    atom14_to_atom37,
    rigid_groups_from_torsions,
)

Angles = tuple[tuple[float, float], ...]  # phi and psi in degrees, of helix, strand and coil
BACKBONE = [ATOM_ORDER[name] for name in ("N", "CA", "C", "O", "CB")]


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """Atoms of one chain as a prediction has them."""

    positions: Float[np.ndarray, "r 37 3"]  # Angstrom
    mask: Float[np.ndarray, "r 37"]


def ideal_chains(
    aatypes: Sequence[Int[np.ndarray, "_"]], states: Sequence[Int[np.ndarray, "_"]], angles: Angles
) -> list[Backbone]:
    """Each chain's backbone and C-beta atoms, every residue with the angles of its state."""
    longest = max(map(len, aatypes))
    # Unknown residues are built as alanine; what fills up short chains is cut off again.
    types = np.zeros((len(aatypes), longest), np.int64)
    torsions = np.zeros((len(aatypes), longest, 7))
    for row, (aatype, state) in enumerate(zip(aatypes, states, strict=True)):
        types[row, : len(aatype)] = np.where(aatype == UNKNOWN, RESTYPES.index("A"), aatype)
        torsions[row, : len(aatype), 1:3] = np.deg2rad(angles)[state]
    torsions[..., 0] = np.pi
    turns, kinds = torch.from_numpy(torsions), torch.from_numpy(types)
    frames = backbone_from_torsions(kinds, turns[..., 1], turns[..., 2])
    groups = rigid_groups_from_torsions(kinds, frames, torch.stack([turns.sin(), turns.cos()], -1))
    mask = torch.from_numpy(backbone_mask(types)).to(turns)
    atoms = atom14_to_atom37(atom14_from_rigid_groups(kinds, groups), kinds, mask)
    found = []
    for row, aatype in enumerate(aatypes):
        own, where = backbone_mask(aatype), atoms[row, : len(aatype)].numpy().astype(np.float32)
        found.append(Backbone(positions=where * own[..., None], mask=own))
    return found


def backbone_mask(aatype: Int[np.ndarray, "*b r"]) -> Float[np.ndarray, "*b r 37"]:
    """N, CA, C, O and C-beta, where the residue type has them; unknown ones have no C-beta."""
    mask = np.zeros((*aatype.shape, 37), np.float32)
    mask[..., BACKBONE] = np.where((aatype == UNKNOWN)[..., None], [1, 1, 1, 1, 0], ATOM37_MASK[aatype][..., BACKBONE])
    return mask


def as_protein(
    aatype: Int[np.ndarray, "r"], backbone: Backbone, b_factors: Float[np.ndarray, "r 37"] | None = None
) -> Protein:
    """As files have it."""
    there = backbone.mask > 0
    middle = backbone.positions[there].mean(0) if there.any() else 0
    return Protein(
        aatype=aatype,
        # Where it stands means nothing, and a PDB file has room for few digits.
        atom_positions=np.where(there[..., None], backbone.positions - middle, 0),
        atom_mask=backbone.mask,
        residue_index=np.arange(1, len(aatype) + 1),
        chain_index=np.zeros(len(aatype), np.int64),
        b_factors=np.zeros(backbone.mask.shape) if b_factors is None else b_factors,
    )
