"""Substitute residues in the features of a target, whose alignment and templates stay as they were found.

Only the target's own row of the alignment is changed. The other rows are what evolution has left of the family,
whatever the target's sequence is: with the mutation in them, too, they would say that all relatives have it. So one
search serves all mutants.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Int

from data_pipeline.complexes.feature_set import TargetFeatures
from data_pipeline.features.schema import Features
from data_pipeline.residues import MASKED, RESTYPES_WITH_X, UNKNOWN
from helixfold.scoring.mutations import Mutant


def mutated(features: TargetFeatures, mutant: Mutant) -> TargetFeatures:
    """Return the features of a mutant, with the alignment and the templates of its target."""
    types = {each.position.index: RESTYPES_WITH_X.index(each.letter) for each in mutant.substitutions}
    return _with_residues(features, types, types)


def hidden(features: TargetFeatures, index: int) -> TargetFeatures:
    """Return features from which no one can tell the target's own residue at a position.

    It is the mask in the target's row of the alignment, and unknown in the sequence, which the network reads as well.
    """
    return _with_residues(features, {index: UNKNOWN}, {index: MASKED})


def _with_residues(features: TargetFeatures, types: Mapping[int, int], row: Mapping[int, int]) -> TargetFeatures:
    if isinstance(features, Features):
        return _with_single(features, types, row)
    complex_ = features.multimer
    return replace(
        features,
        multimer=replace(complex_, aatype=_changed(complex_.aatype, types), msa=_with_first_row(complex_.msa, row)),
        residue_gap=_with_single(features.residue_gap, types, row),
    )


def _with_single(features: Features, types: Mapping[int, int], row: Mapping[int, int]) -> Features:
    letters = list(features.sequence)
    for index, residue in types.items():
        letters[index] = RESTYPES_WITH_X[residue]
    return replace(
        features,
        sequence="".join(letters),
        aatype=_changed(features.aatype, types),
        msa=_with_first_row(features.msa, row),
    )


def _with_first_row(msa: Int[np.ndarray, "n r"], row: Mapping[int, int]) -> Int[np.ndarray, "n r"]:
    changed = msa.copy()
    changed[0] = _changed(msa[0], row)
    return changed


def _changed(residues: Int[np.ndarray, "r"], types: Mapping[int, int]) -> Int[np.ndarray, "r"]:
    changed = residues.copy()
    for index, residue in types.items():
        changed[index] = residue
    return changed
