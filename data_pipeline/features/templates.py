"""Compute template features: residues of known structures at the positions of the target."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from jaxtyping import Float32, Int, Int32

from data_pipeline.features.msa import LETTER_TYPES
from data_pipeline.residues import GAP
from data_pipeline.structure import Chain


class TemplateFeatures(TypedDict):
    """Template fields of `Features`, for `t` templates of a target of `r` residues; positions are in Å."""

    template_domain_names: tuple[str, ...]
    template_aatype: Int32[np.ndarray, "t r"]
    template_all_atom_positions: Float32[np.ndarray, "t r 37 3"]
    template_all_atom_masks: Float32[np.ndarray, "t r 37"]
    template_sum_probs: Float32[np.ndarray, "t 1"]


@dataclass(frozen=True, kw_only=True)
class AlignedTemplate:
    """A template aligned to the target; at positions without a residue, the type is a gap and all masks are 0.

    `name` is entry and chain, such as 1abc_A, and positions are in Å. `sum_probs` is hhsearch's sum of probabilities, 0
    for other searches.
    """

    name: str  # entry and chain, "1abc_A"
    sum_probs: float  # hhsearch's sum of probabilities, 0 for other searches
    aatype: Int32[np.ndarray, "r"]
    positions: Float32[np.ndarray, "r 37 3"]  # Å
    masks: Float32[np.ndarray, "r 37"]


def aligned_template(
    chain: Chain, residues: Int[np.ndarray, "r"], letters: str, *, name: str, sum_probs: float = 0.0
) -> AlignedTemplate:
    """Return a template from a chain and its alignment to the target.

    `residues` has the index in `chain` of each target residue's partner, or -1. `letters` has the template residue in
    the alignment at each target residue, or '-'. Residue types are from `letters`, and atoms from `chain`. AlphaFold 2,
    Suppl. Sec. 1.2.3 and Table 1.
    """
    r = len(residues)
    aligned = np.flatnonzero(residues >= 0)
    positions, masks = np.zeros((r, 37, 3), np.float32), np.zeros((r, 37), np.float32)
    positions[aligned] = chain.atom_positions[residues[aligned]]
    masks[aligned] = chain.atom_mask[residues[aligned]]
    types = LETTER_TYPES[np.frombuffer(letters.encode("ascii", "replace"), np.uint8)]
    aatype = np.where(residues >= 0, types, GAP).astype(np.int32)
    return AlignedTemplate(name=name, sum_probs=sum_probs, aatype=aatype, positions=positions, masks=masks)


def stack_templates(templates: Sequence[AlignedTemplate], length: int) -> TemplateFeatures:
    """Stack templates in order into the template features of a target of `length` residues."""
    return TemplateFeatures(
        template_domain_names=tuple(each.name for each in templates),
        template_aatype=np.array([each.aatype for each in templates], np.int32).reshape(-1, length),
        template_all_atom_positions=np.array([each.positions for each in templates], np.float32).reshape(
            -1, length, 37, 3
        ),
        template_all_atom_masks=np.array([each.masks for each in templates], np.float32).reshape(-1, length, 37),
        template_sum_probs=np.array([each.sum_probs for each in templates], np.float32).reshape(-1, 1),
    )


def no_templates(length: int) -> TemplateFeatures:
    """Return empty template features for a target of `length` residues."""
    return stack_templates([], length)
