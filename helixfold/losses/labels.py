"""Labels of training examples, as tensors with a leading batch dimension."""

from dataclasses import dataclass, fields

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Training labels of a batch, with the names of `data_pipeline.features.ground_truth.GroundTruth`.

    Positions are in Angstrom. "atom_exists" is 1 for atoms that the residue's type has, "gt_exists" and "mask" for
    observed ones. "alt" fields have the ambiguous names of atoms exchanged. The last five are for the last recycling
    iteration or the whole example.
    """

    aatype: Int[Tensor, "b r"]
    all_atom_positions: Float[Tensor, "b r 37 3"]
    all_atom_mask: Float[Tensor, "b r 37"]
    atom37_atom_exists: Float[Tensor, "b r 37"]
    atom14_atom_exists: Float[Tensor, "b r 14"]
    atom14_gt_positions: Float[Tensor, "b r 14 3"]
    atom14_gt_exists: Float[Tensor, "b r 14"]
    atom14_alt_gt_positions: Float[Tensor, "b r 14 3"]
    atom14_alt_gt_exists: Float[Tensor, "b r 14"]
    atom14_atom_is_ambiguous: Float[Tensor, "b r 14"]
    pseudo_beta: Float[Tensor, "b r 3"]
    pseudo_beta_mask: Float[Tensor, "b r"]
    true_msa: Int[Tensor, "b s r"]  # the last iteration's MSA before BERT masking
    bert_mask: Float[Tensor, "b s r"]  # 1 where the masked-MSA loss counts
    use_clamped_fape: Float[Tensor, " b"]  # 1 if errors of the backbone FAPE are clamped, else 0
    resolution: Float[Tensor, " b"]  # Angstrom, 0 if unknown
    is_distillation: Float[Tensor, " b"]  # 1 if the truth is a predicted structure, else 0


@dataclass(frozen=True, kw_only=True)
class ComplexLabels(Labels):
    """Labels of complexes, which also have the true atoms of every equal chain.

    Dim `k` is the chains of the same sequence in the whole complex, in the order of `sym_id`. The mask is 0 for copies
    that a residue's chain does not have, and for copies that a crop omits because nothing was observed.
    """

    copies_positions: Float[Tensor, "b k r 37 3"]  # Angstrom
    copies_mask: Float[Tensor, "b k r 37"]  # 1 where observed

    def of_own_chains(self) -> Labels:
        """Return labels in which each chain is compared with the true chain of the same index."""
        return Labels(**{field.name: getattr(self, field.name) for field in fields(Labels)})
