"""Score structures by the confidence of a prediction that starts from them (AF2Rank, Roney & Ovchinnikov 2022).

The network reads a structure as a template without side chains, or as the input of the first recycling iteration.
Designed binders are screened by the predicted errors between binder and target (Bennett et al. 2023).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.complexes.feature_set import TargetFeatures
from data_pipeline.features.schema import Features
from data_pipeline.ideal_betas import with_ideal_betas
from data_pipeline.io.errors import InputError, did_you_mean
from data_pipeline.residues import ATOM_ORDER, GAP
from data_pipeline.structure import Chain, Structure
from helixfold.analysis.chain_tm import TmScores
from helixfold.analysis.complexes import compare_complexes
from helixfold.analysis.interfaces import complex_scores
from helixfold.analysis.metrics import superposed_scores, superposition
from helixfold.analysis.residues import best_pairing
from helixfold.analysis.scores import compared
from helixfold.apps.score.structures import ScoredStructure
from helixfold.folding.initial_guess import recycled_atoms
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget
from helixfold.model.presets import PRESETS, Preset

_BACKBONE_AND_BETA_INDICES = [ATOM_ORDER[name] for name in ("N", "CA", "C", "CB", "O")]


def as_anonymous_template(structure: ScoredStructure) -> TargetFeatures:
    """Return features in which a structure is the only template, without its sequence and side chains.

    The template has backbone and C-beta atoms, also for glycine, and gaps as residue types, so that it only shows the
    fold (AF2Rank, Roney & Ovchinnikov 2022).
    """
    positions, mask = with_ideal_betas(structure.positions, structure.mask)
    atom_selection = np.zeros(37, np.float32)
    atom_selection[_BACKBONE_AND_BETA_INDICES] = 1
    gap_types = np.full(structure.residues, GAP, np.int32)
    return with_template(structure.features, gap_types, positions, mask * atom_selection)


def as_template_of_target(structure: ScoredStructure, binder: Bool[np.ndarray, " r"]) -> TargetFeatures:
    """Return features with a template of all chains except the binder, with all atoms (Bennett et al. 2023).

    `binder` is the mask of the binder's residues.
    """
    aatype = np.concatenate([chain.aatype for chain in structure.chains]).astype(np.int32)
    mask = np.where(binder[:, None], 0, structure.mask)
    return with_template(structure.features, np.where(binder, GAP, aatype), structure.positions, mask)


def with_template(
    features: TargetFeatures,
    aatype: Int[np.ndarray, "r"],
    positions: Float[np.ndarray, "r 37 3"],
    mask: Float[np.ndarray, "r 37"],
) -> TargetFeatures:
    """Return the features of a target with one template instead of its templates, with atom positions in Å.

    Multimer models read the template within each chain only; monomer models read it as a whole.
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
    """Return the features of a chain with one template instead of its templates."""
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
    """Return features with the template in the first slot; the model averages over the empty slots, too."""
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


@dataclass(frozen=True, kw_only=True)
class BinderChains:
    """Names of the binder's chains in every complex; without names, the binder is the first chain of the file.

    Binder design programs write the binder as the first chain, A.
    """

    names: tuple[str, ...] = ()

    def chain_names(self, structure: ScoredStructure) -> set[str]:
        """Return the names of the binder's chains in a structure.

        Raise `InputError` if the structure does not have one of the chains, or has no other chain.
        """
        own = [chain.name for chain in structure.chains]
        names = {*(self.names or own[:1])}
        if missing := sorted(names - {*own}):
            available = f"{', '.join(own)}{did_you_mean(missing[0], own)}"
            raise InputError(f"it has no chain {missing[0]}, the binder; its chains are {available}")
        if len(own) == len(names):
            raise InputError(f"it has only the binder ({', '.join(own)}); pass complexes with the target")
        return names

    def mask(self, structure: ScoredStructure) -> Bool[np.ndarray, " r"]:
        """Return the mask of the binder's residues; raise `InputError` like `chain_names`."""
        names = self.chain_names(structure)
        indices = [index for index, chain in enumerate(structure.chains) if chain.name in names]
        return np.isin(structure.chain_index, indices)


def binder_scores(
    structure: ScoredStructure, prediction: Prediction, binder: BinderChains
) -> dict[str, float | int | str | None]:
    """Return the scores of a designed binder from a prediction that started from its complex, by name.

    The names are common in binder design. PAE and pLDDT (0 to 100) are means. `pae_interaction` is the mean predicted
    error (Å) between residues of binder and target, in both directions; designs below 10 Å succeed far more often.
    `target_aligned_rmsd` (Å) measures how far the network has moved the binder, with the targets superposed, and
    `binder_aligned_rmsd` (Å) how much the binder itself has changed.
    """
    mask = binder.mask(structure)
    observed = structure.observed
    predicted_positions, input_positions = (
        each[:, _CA_INDEX] for each in (prediction.protein.atom_positions, structure.positions)
    )
    scores: dict[str, float | int | str | None] = {
        "binder": ":".join(chain.sequence for chain in structure.chains if chain.name in binder.chain_names(structure)),
        "binder_plddt": float(prediction.plddt[mask].mean(dtype=np.float64)),
        "target_plddt": float(prediction.plddt[~mask].mean(dtype=np.float64)),
        "binder_aligned_rmsd": _rmsd(predicted_positions, input_positions, mask & observed, mask & observed),
        "target_aligned_rmsd": _rmsd(predicted_positions, input_positions, ~mask & observed, mask & observed),
    }
    if prediction.pae is not None:
        pae = prediction.pae.astype(np.float64)
        between = [pae[np.ix_(mask, ~mask)].mean(), pae[np.ix_(~mask, mask)].mean()]
        scores |= {
            "pae_interaction": float(np.mean(between)),
            "pae_binder": float(pae[np.ix_(mask, mask)].mean()),
            "pae_target": float(pae[np.ix_(~mask, ~mask)].mean()),
        }
    return scores


def _rmsd(one: np.ndarray, other: np.ndarray, aligned: np.ndarray, scored: np.ndarray) -> float | None:
    """Return the RMSD (Å) of the `scored` points after superposing the `aligned` points; None without points."""
    if aligned.sum() < 3 or not scored.any():
        return None
    moved = superposition(one[aligned], other[aligned]).apply(one[scored].astype(np.float64))
    return float(np.sqrt(np.square(moved - other[scored]).sum(-1).mean()))


_CA_INDEX = ATOM_ORDER["CA"]
UsedProtocol = Literal["template", "initial_guess", "binder"]


def require_templates(preset: Preset) -> None:
    """Raise `InputError` if the model of a preset reads no templates."""
    if preset.model.template is None:
        readers = [name for name, make_preset in PRESETS.items() if make_preset().model.template is not None]
        suitable = [name for name in readers if name.endswith(("_ptm", "_v3"))]
        raise InputError(
            f"--protocol template: {preset.name} reads no templates; pass --protocol initial_guess, or a --model that "
            f"reads them: {', '.join(suitable)}"
        )


def target_to_fold(
    structure: ScoredStructure, protocol: UsedProtocol, preset: Preset, binder: BinderChains | None = None
) -> FoldingTarget:
    """Return the folding input by which the model of a preset scores a structure with a protocol.

    With "template", the structure is a template without its sequence; else its atoms are the initial guess. With
    "binder", the chains except the `binder` are also a template if the model reads templates.
    """
    features, guess = structure.features, None
    if protocol == "template":
        features = as_anonymous_template(structure)
    else:
        guess = recycled_atoms(structure.positions, structure.mask)
    if protocol == "binder" and preset.model.template is not None:
        assert binder is not None
        features = as_template_of_target(structure, binder.mask(structure))
    return FoldingTarget(features=features, name=preset.name, initial_guess=guess)


def scores_of(
    structure: ScoredStructure, prediction: Prediction, binder: BinderChains | None = None
) -> dict[str, float | int | str | None]:
    """Return the scores of a structure from the prediction that started from it, by name.

    `composite` is pTM x pLDDT x TM-score of the prediction to the structure, each from 0 to 1. pLDDT itself is from 0
    to 100; PAE and RMSD are in Å. Complexes have interface scores, too.
    """
    observed = structure.observed
    superposed = superposed_scores(
        prediction.protein.atom_positions[observed, _CA_INDEX], structure.positions[observed, _CA_INDEX]
    )
    plddt, ptm = float(prediction.plddt.mean(dtype=np.float64)), prediction.ptm
    scores: dict[str, float | int | str | None] = {
        "residues": structure.residues,
        "chains": len(structure.chains),
        "composite": None if ptm is None else ptm * plddt / 100 * superposed.tm_score,
        "plddt": plddt,
        "ptm": ptm,
        "tm_to_structure": superposed.tm_score,
        "rmsd_to_structure": superposed.rmsd,
        "pae": None if prediction.pae is None else float(prediction.pae.mean(dtype=np.float64)),
        "own_plddt": structure.mean_plddt,
    }
    if len(structure.chains) > 1:
        scores |= {"iptm": prediction.iptm, **_best_interface(prediction, _across(structure, binder))}
    if binder is not None:
        scores |= binder_scores(structure, prediction, binder)
    return scores


def _across(structure: ScoredStructure, binder: BinderChains | None) -> list[set[str]]:
    """Return the pairs of chains whose interfaces count: all, or those between binder and target."""
    names = [chain.name for chain in structure.chains]
    pairs = [{one, other} for one, other in combinations(names, 2)]
    if binder is None:
        return pairs
    binder_names = binder.chain_names(structure)
    return [pair for pair in pairs if len(pair & binder_names) == 1]


def _best_interface(prediction: Prediction, pairs: list[set[str]]) -> dict[str, float | str | None]:
    """Return the scores of the best interface among these pairs, by ipSAE, or by pDockQ without predicted errors."""
    tm = None
    if prediction.tm_by_chain is not None and prediction.ptm is not None and prediction.iptm is not None:
        tm = TmScores(ptm=prediction.ptm, iptm=prediction.iptm, by_chain=prediction.tm_by_chain)
    scores = complex_scores(prediction.protein, prediction.chain_ids, plddt=prediction.plddt, pae=prediction.pae, tm=tm)
    eligible = [each for each in scores.interfaces if {*each.chains} in pairs]
    best = max(eligible, key=lambda each: (each.ipsae or 0.0, each.pdockq))
    return {
        "interface": ":".join(best.chains),
        "ipsae": best.ipsae,
        "pdockq": best.pdockq,
        "pdockq2": best.pdockq2,
        "interface_pae": best.pae,
        "interface_plddt": best.plddt,
    }


def compared_with_native(
    structure: ScoredStructure, prediction: Prediction, native: Structure
) -> Mapping[str, float | None]:
    """Return the similarity of a structure and of its prediction (output) to the native structure.

    TM-scores are normalised by the length of the native structure; for complexes, over all common chains. lDDT is of
    the best matching pair of chains. Complexes have DockQ, too. Raise `ComparisonError` if they are different proteins.
    """
    own = _native_scores(structure.chains, native)
    output = _native_scores(_predicted_chains(structure, prediction), native)
    return {
        "tm_to_native": own["tm"],
        "lddt_to_native": own["lddt"],
        "output_tm_to_native": output["tm"],
        "output_lddt_to_native": output["lddt"],
        **({"dockq": own["dockq"], "output_dockq": output["dockq"]} if len(structure.chains) > 1 else {}),
    }


def _native_scores(chains: tuple[Chain, ...], native: Structure) -> dict[str, Any]:
    """Return the TM-score, lDDT and DockQ of these chains to the native structure."""
    scores, _ = compared(best_pairing(chains, native.chains))
    values = {"tm": scores.tm_score, "lddt": scores.lddt, "dockq": None}
    complex_comparison = compare_complexes(chains, native.chains)
    if complex_comparison is not None:
        values |= {"tm": complex_comparison.tm_score, "dockq": complex_comparison.dockq}
    return values


def _predicted_chains(structure: ScoredStructure, prediction: Prediction) -> tuple[Chain, ...]:
    """Return the structure's chains with the atoms of a prediction."""
    protein, index = prediction.protein, structure.chain_index
    return tuple(
        replace(
            chain,
            atom_positions=protein.atom_positions[index == own],
            atom_mask=protein.atom_mask[index == own],
            b_factors=protein.b_factors[index == own],
        )
        for own, chain in enumerate(structure.chains)
    )
