"""Give the network a structure to judge: as a template without side chains, or as what is recycled first."""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.complexes.feature_set import TargetFeatures
from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.schema import Features
from data_pipeline.ideal_betas import with_ideal_betas
from data_pipeline.residues import ATOM_ORDER, GAP
from helixfold.scoring.structures import ScoredStructure

_N, _CA, _C, _CB, _O = (ATOM_ORDER[name] for name in ("N", "CA", "C", "CB", "O"))


def as_anonymous_template(structure: ScoredStructure) -> TargetFeatures:
    """Return features in which a structure is the only template, without its sequence and its side chains.

    The template has backbone and C-beta atoms, glycine too, and gaps for residue types, so that it tells nothing but
    the fold (AF2Rank, Roney & Ovchinnikov 2022).
    """
    positions, mask = with_ideal_betas(structure.positions, structure.mask)
    kept = np.zeros(37, np.float32)
    kept[[_N, _CA, _C, _CB, _O]] = 1
    types = np.full(structure.residues, GAP, np.int32)
    return with_template(structure.features, types, positions, mask * kept)


def as_template_of_target(structure: ScoredStructure, binder: Bool[np.ndarray, " r"]) -> TargetFeatures:
    """Return features in which all chains but the binder's are a template with all atoms (Bennett et al. 2023)."""
    aatype = np.concatenate([chain.aatype for chain in structure.chains]).astype(np.int32)
    mask = np.where(binder[:, None], 0, structure.mask)
    return with_template(structure.features, np.where(binder, GAP, aatype), structure.positions, mask)


def with_template(
    features: TargetFeatures,
    aatype: Int[np.ndarray, "r"],
    positions: Float[np.ndarray, "r 37 3"],
    mask: Float[np.ndarray, "r 37"],
) -> TargetFeatures:
    """Return the features of a target with one template, whose atoms are in Angstrom and known where the mask is 1.

    A model of complexes reads a template within each chain only; a model of single chains reads a complex's as a whole.
    """
    arrays = (aatype.astype(np.int32), positions * mask[..., None], mask)
    if isinstance(features, Features):
        return _with_single(features, *arrays)
    return replace(
        features,
        multimer=_with_slot(features.multimer, *arrays),
        residue_gap=_with_single(features.residue_gap, *arrays),
    )


def _with_single(features: Features, aatype: np.ndarray, positions: np.ndarray, mask: np.ndarray) -> Features:
    return replace(
        features,
        template_domain_names=(f"{features.domain_name}_A",),
        template_aatype=aatype[None],
        template_all_atom_positions=positions[None].astype(np.float32),
        template_all_atom_masks=mask[None].astype(np.float32),
        template_sum_probs=np.zeros((1, 1), np.float32),
    )


def _with_slot(
    features: ComplexFeatures, aatype: np.ndarray, positions: np.ndarray, mask: np.ndarray
) -> ComplexFeatures:
    """Return features whose first slot has the template; the others stay empty, and their zeros are averaged too."""
    slots = [
        np.zeros_like(each)
        for each in (
            features.template_aatype,
            features.template_all_atom_positions,
            features.template_all_atom_masks,
        )
    ]
    for slot, array in zip(slots, (aatype, positions, mask), strict=True):
        slot[0] = array
    return replace(
        features,
        template_aatype=slots[0],
        template_all_atom_positions=slots[1],
        template_all_atom_masks=slots[2],
    )
