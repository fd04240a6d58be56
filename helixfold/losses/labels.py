"""Labels of training examples, as tensors with a leading batch dimension."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Labels of a batch, under the names of `data_pipeline.features.ground_truth.GroundTruth`.

    The last five belong to the last recycling iteration or to the example as a whole.
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
    use_clamped_fape: Float[Tensor, " b"]  # 0 or 1
    resolution: Float[Tensor, " b"]  # Angstrom, 0 if unknown
    is_distillation: Float[Tensor, " b"]  # 0 or 1
