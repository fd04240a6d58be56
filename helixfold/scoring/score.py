"""Score structures by what a network makes of them (AF2Rank, Roney & Ovchinnikov 2022)."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any, Literal

import numpy as np

from data_pipeline.errors import InputError
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.structure import Chain, Structure
from helixfold.analysis.chain_tm import TmScores
from helixfold.analysis.complexes import compare_complexes
from helixfold.analysis.interfaces import complex_scores
from helixfold.analysis.metrics import superposed_scores
from helixfold.analysis.residues import best_pairing
from helixfold.analysis.scores import compared
from helixfold.folding_together import TargetToFold
from helixfold.initial_guess import recycled_atoms
from helixfold.prediction import Prediction
from helixfold.presets import PRESETS, Preset
from helixfold.scoring.binders import BinderChains, binder_scores
from helixfold.scoring.given_structure import as_anonymous_template, as_template_of_target
from helixfold.scoring.structures import ScoredStructure

_CA = ATOM_ORDER["CA"]
UsedProtocol = Literal["template", "initial_guess", "binder"]


def require_templates(preset: Preset) -> None:
    """Raise `InputError` if the model of a preset reads no templates."""
    if preset.model.template is None:
        readers = [name for name, make in PRESETS.items() if make().model.template is not None]
        known = [name for name in readers if name.endswith(("_ptm", "_v3"))]
        raise InputError(
            f"--protocol template: {preset.name} reads no templates; give --protocol initial_guess, or a --model that "
            f"reads them: {', '.join(known)}"
        )


def target_to_fold(
    structure: ScoredStructure, protocol: UsedProtocol, preset: Preset, binder: BinderChains | None = None
) -> TargetToFold:
    """Return what the model of a preset is to fold, so that it judges a structure by a protocol."""
    features, guess = structure.features, None
    if protocol == "template":
        features = as_anonymous_template(structure)
    else:
        guess = recycled_atoms(structure.positions, structure.mask)
    if protocol == "binder" and preset.model.template is not None:
        assert binder is not None
        features = as_template_of_target(structure, binder.mask(structure))
    return TargetToFold(features=features, name=preset.name, initial_guess=guess)


def scores_of(
    structure: ScoredStructure, prediction: Prediction, binder: BinderChains | None = None
) -> dict[str, float | int | str | None]:
    """Return the scores of a structure by the prediction that a network made from it.

    `composite` is pTM x pLDDT x TM-score of the prediction to the structure, each from 0 to 1; pLDDT itself is given
    from 0 to 100, `pae` and `rmsd` in Angstrom. Complexes have scores of their interfaces, too.
    """
    observed = structure.observed
    superposed = superposed_scores(prediction.protein.atom_positions[observed, _CA], structure.positions[observed, _CA])
    plddt, ptm = float(prediction.plddt.mean(dtype=np.float64)), prediction.ptm
    found: dict[str, float | int | str | None] = {
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
        found |= {"iptm": prediction.iptm, **_best_interface(prediction, _across(structure, binder))}
    if binder is not None:
        found |= binder_scores(structure, prediction, binder)
    return found


def _across(structure: ScoredStructure, binder: BinderChains | None) -> list[set[str]]:
    """Return the pairs of chains whose interfaces count: of a binder and its target those between both."""
    names = [chain.name for chain in structure.chains]
    pairs = [{one, other} for one, other in combinations(names, 2)]
    if binder is None:
        return pairs
    own = binder.chain_names(structure)
    return [pair for pair in pairs if len(pair & own) == 1]


def _best_interface(prediction: Prediction, pairs: list[set[str]]) -> dict[str, float | str | None]:
    """Return the scores of the interface with the largest ipSAE, or pDockQ without predicted errors, of these pairs."""
    tm = None
    if prediction.tm_by_chain is not None and prediction.ptm is not None and prediction.iptm is not None:
        tm = TmScores(ptm=prediction.ptm, iptm=prediction.iptm, by_chain=prediction.tm_by_chain)
    scores = complex_scores(prediction.protein, prediction.chain_ids, plddt=prediction.plddt, pae=prediction.pae, tm=tm)
    counted = [each for each in scores.interfaces if {*each.chains} in pairs]
    best = max(counted, key=lambda each: (each.ipsae or 0.0, each.pdockq))
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
    """Return how close the structure, and what the network made of it, are to the native structure.

    TM-scores are normalised by the native's length, and of complexes over all chains that both have. Raise
    `ComparisonError` if they are different proteins.
    """
    own = _native_scores(structure.chains, native)
    made = _native_scores(_predicted_chains(structure, prediction), native)
    return {
        "tm_to_native": own["tm"],
        "lddt_to_native": own["lddt"],
        "output_tm_to_native": made["tm"],
        "output_lddt_to_native": made["lddt"],
        **({"dockq": own["dockq"], "output_dockq": made["dockq"]} if len(structure.chains) > 1 else {}),
    }


def _native_scores(chains: tuple[Chain, ...], native: Structure) -> dict[str, Any]:
    scores, _ = compared(best_pairing(chains, native.chains))
    found = {"tm": scores.tm_score, "lddt": scores.lddt, "dockq": None}
    whole = compare_complexes(chains, native.chains)
    if whole is not None:
        found |= {"tm": whole.tm_score, "dockq": whole.dockq}
    return found


def _predicted_chains(structure: ScoredStructure, prediction: Prediction) -> tuple[Chain, ...]:
    """Return the structure's chains with the atoms of a prediction."""
    protein, index = prediction.protein, structure.chain_index
    return tuple(
        replace(
            chain,
            atom_positions=protein.atom_positions[index == number],
            atom_mask=protein.atom_mask[index == number],
            b_factors=protein.b_factors[index == number],
        )
        for number, chain in enumerate(structure.chains)
    )
