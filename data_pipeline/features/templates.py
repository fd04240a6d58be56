"""Template features, in the shape every target has: a target without templates has zero of them."""

from typing import TypedDict

import numpy as np
from jaxtyping import Float32, Int32


class TemplateFeatures(TypedDict):
    """The template fields of `Features`."""

    template_domain_names: tuple[str, ...]
    template_aatype: Int32[np.ndarray, "t r"]
    template_all_atom_positions: Float32[np.ndarray, "t r 37 3"]
    template_all_atom_masks: Float32[np.ndarray, "t r 37"]
    template_sum_probs: Float32[np.ndarray, "t 1"]


def no_templates(length: int) -> TemplateFeatures:
    """The template features of a target of `length` residues for which there are no templates."""
    return TemplateFeatures(
        template_domain_names=(),
        template_aatype=np.zeros((0, length), np.int32),
        template_all_atom_positions=np.zeros((0, length, 37, 3), np.float32),
        template_all_atom_masks=np.zeros((0, length, 37), np.float32),
        template_sum_probs=np.zeros((0, 1), np.float32),
    )
