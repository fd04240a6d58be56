"""Compute the MSA features of a batch on the network's device, from the integer arrays that the loader sends."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from data_pipeline.sampling.msa import CLASSES


def alignment_features(alignment: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the MSA features of `Batch`, by field name, from the integer fields of `SampledAlignment`.

    All tensors have a leading batch dimension. Zeros that pad the input become zeros in the features. The values equal
    `SampledAlignment.features`, except for rounding of quotients and deletion values (AlphaFold 2, Suppl. Table 1).
    """
    # Residue types in `shown_msa` count from 1, and padding is 0.
    shown, is_row = alignment["shown_msa"].long() - 1, (alignment["shown_msa"] > 0).float()
    divisor = (1e-6 + 1 + alignment["members"].double()).float()[..., None]  # AlphaFold's guard against empty clusters
    deletions, extra_deletions = alignment["deletions"], alignment["extra_deletions"]
    features = is_row.new_zeros(*shown.shape, 2 * CLASSES + 3)
    features.scatter_(-1, shown.clamp(min=0)[..., None], is_row[..., None])
    features[..., CLASSES] = deletions > 0
    features[..., CLASSES + 1] = deletion_value(deletions)
    counts, summed = features[..., :CLASSES], deletions.float()
    if alignment["member_counts"].shape[1]:
        counts, summed = counts + alignment["member_counts"], summed + alignment["member_deletions"]
    torch.div(counts, divisor[..., None], out=features[..., CLASSES + 2 : -1])
    features[..., -1] = deletion_value(summed / divisor)
    return {
        "msa_feat": features,
        "msa_mask": is_row,
        "extra_msa": alignment["extra_msa"].long(),
        "extra_has_deletion": (extra_deletions > 0).float(),
        "extra_deletion_value": deletion_value(extra_deletions),
        "extra_msa_mask": alignment["extra_present"].float(),
    }


def deletion_value(deletions: Integer[Tensor, "*shape"] | Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Map deletion counts d to the range 0..1 as 2 / pi * arctan(d / 3) (AlphaFold 2, Suppl. Table 1)."""
    return (deletions.float() / 3).atan() * (2 / math.pi)
