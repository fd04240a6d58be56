"""Features of an alignment, computed where the network is from the whole numbers that the loader sends."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from data_pipeline.sampling.msa import CLASSES


def alignment_features(numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the features of `Batch` that belong to an alignment, from the fields of `SampledAlignment`.

    All have a leading batch dimension and padding of zeros, whose features are zeros, too. The numbers are those of
    `SampledAlignment.features`, but for the last digit of quotients and deletion values (AlphaFold 2, Suppl. Table 1).
    """
    # `shown_msa` counts from 1, and padding is 0.
    shown, is_row = numbers["shown_msa"].long() - 1, (numbers["shown_msa"] > 0).float()
    divisor = (1e-6 + 1 + numbers["members"].double()).float()[..., None]  # AlphaFold's guard against empty clusters
    deletions, extra_deletions = numbers["deletions"], numbers["extra_deletions"]
    features = is_row.new_zeros(*shown.shape, 2 * CLASSES + 3)
    features.scatter_(-1, shown.clamp(min=0)[..., None], is_row[..., None])
    features[..., CLASSES] = deletions > 0
    features[..., CLASSES + 1] = deletion_value(deletions)
    counts, summed = features[..., :CLASSES], deletions.float()
    if numbers["member_counts"].shape[1]:
        counts, summed = counts + numbers["member_counts"], summed + numbers["member_deletions"]
    torch.div(counts, divisor[..., None], out=features[..., CLASSES + 2 : -1])
    features[..., -1] = deletion_value(summed / divisor)
    return {
        "msa_feat": features,
        "msa_mask": is_row,
        "extra_msa": numbers["extra_msa"].long(),
        "extra_has_deletion": (extra_deletions > 0).float(),
        "extra_deletion_value": deletion_value(extra_deletions),
        "extra_msa_mask": numbers["extra_present"].float(),
    }


def deletion_value(deletions: Integer[Tensor, "*shape"] | Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Map deletion counts d to the range 0..1 as 2 / pi * arctan(d / 3) (AlphaFold 2, Suppl. Table 1)."""
    return (deletions.float() / 3).atan() * (2 / math.pi)
