"""Input of the model for one recycling iteration, sampled from the features of a target.

`SAMPLE_AXES` has the named axes of each field of a `Sample`, such as "sr", without axes of fixed size.
"""

from dataclasses import dataclass
from typing import get_type_hints

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Input of the model for one recycling iteration, without a batch axis; names are AlphaFold's (Suppl. Table 1).

    Axes: `r` residues, `s` MSA rows (cluster centres), `e` extra MSA rows, `t` templates, which may be 0. Residue types
    in `true_msa` (before BERT masking) and `extra_msa` are 0..20, 21 for gaps and 22 for masked residues. `bert_mask`
    is 1 where the masked-MSA head must predict the residue. `target_feat` and `msa_feat` are the network's input
    channels of the target and of the MSA rows. Other masks are 1 where there is a residue, row or template.
    `extra_deletion_value` is the deletion count mapped to 0..1. Template positions are in Å, and `template_pseudo_beta`
    is C-beta, or C-alpha for glycine.
    """

    aatype: Int[np.ndarray, "r"]
    residue_index: Int[np.ndarray, "r"]
    seq_mask: Float[np.ndarray, "r"]
    target_feat: Float[np.ndarray, "r 22"]
    msa_feat: Float[np.ndarray, "s r 49"]
    msa_mask: Float[np.ndarray, "s r"]
    true_msa: Int[np.ndarray, "s r"]  # before BERT masking
    bert_mask: Float[np.ndarray, "s r"]  # 1 where the masked-MSA head must predict the residue
    extra_msa: Int[np.ndarray, "e r"]
    extra_has_deletion: Float[np.ndarray, "e r"]
    extra_deletion_value: Float[np.ndarray, "e r"]
    extra_msa_mask: Float[np.ndarray, "e r"]
    template_aatype: Int[np.ndarray, "t r"]
    template_all_atom_positions: Float[np.ndarray, "t r 37 3"]  # Å
    template_all_atom_masks: Float[np.ndarray, "t r 37"]
    template_mask: Float[np.ndarray, "t"]
    template_pseudo_beta: Float[np.ndarray, "t r 3"]  # Å; C-beta, or C-alpha for glycine
    template_pseudo_beta_mask: Float[np.ndarray, "t r"]


# Leading axes of each field of a sample: r residues, s MSA rows, e extra rows, t templates.
SAMPLE_AXES: dict[str, str] = {
    name: "".join(axis for axis in kind.dim_str.split() if axis in "rset")
    for name, kind in get_type_hints(Sample).items()
}
