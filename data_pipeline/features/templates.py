"""Template features: residues of known structures at the target's positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from jaxtyping import Float32, Int, Int32

from data_pipeline.features.msa import LETTER_TYPES
from data_pipeline.residues import GAP
from data_pipeline.structure import Chain


class TemplateFeatures(TypedDict):
    """The template fields of `Features`."""

    template_domain_names: tuple[str, ...]
    template_aatype: Int32[np.ndarray, "t r"]
    template_all_atom_positions: Float32[np.ndarray, "t r 37 3"]
    template_all_atom_masks: Float32[np.ndarray, "t r 37"]
    template_sum_probs: Float32[np.ndarray, "t 1"]


@dataclass(frozen=True, kw_only=True)
class AlignedTemplate:
    """One template on the target: types are gaps, atoms absent (0) at positions where it has no residue."""

    name: str  # entry and chain, "1abc_A"
    sum_probs: float  # 0 where the search gives none
    aatype: Int32[np.ndarray, "r"]
    positions: Float32[np.ndarray, "r 37 3"]  # Angstrom
    masks: Float32[np.ndarray, "r 37"]


def aligned_template(
    chain: Chain, residues: Int[np.ndarray, "r"], letters: str, *, name: str, sum_probs: float = 0.0
) -> AlignedTemplate:
    """A template whose residue at each of the target's positions is `residues` of `chain`, -1 for none.

    `letters` has one character for each position, '-' where there is no residue: the residue as the alignment has it,
    which may know a residue that the file calls unknown. AlphaFold 2, Suppl. Sec. 1.2.3 and Table 1.
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
    """The features of a target of `length` residues with these templates, in this order."""
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
    """The template features of a target of `length` residues for which there are no templates."""
    return stack_templates([], length)
