"""The alignment of one recycling iteration as residue types and whole numbers, a fraction of its features' bytes."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int8, Integer

from data_pipeline.transforms import msa


@dataclass(frozen=True, kw_only=True)
class SampledAlignment:
    """The rows that are drawn from an alignment for one recycling iteration: clusters of rows, and extra rows.

    The integers of each array have the smallest type that holds them all. Members of a cluster are its rows beside its
    centre; if no cluster has any, as in a shallow alignment, what is counted of them is of no cluster (m = 0).
    """

    shown_msa: Int8[np.ndarray, "s r"]  # rows of the clusters' centres after masking
    true_msa: Int8[np.ndarray, "s r"]  # the same before masking
    hidden: Bool[np.ndarray, "s r"]  # where the masked-MSA head must predict the residue
    deletions: Integer[np.ndarray, "s r"]  # of the centres
    members: Integer[np.ndarray, "s"]  # number of members of each cluster
    member_counts: Integer[np.ndarray, "m r 23"]  # members that have each class in each column
    member_deletions: Integer[np.ndarray, "m r"]  # summed over members
    extra_msa: Int8[np.ndarray, "e r"]
    extra_deletions: Integer[np.ndarray, "e r"]
    extra_present: Bool[np.ndarray, "e r"]

    def features(self) -> dict[str, np.ndarray]:
        """Return the fields of `Sample` that belong to the alignment."""
        profile, deletion_mean = msa.cluster_means(
            self.shown_msa, self.deletions, self.member_counts, self.member_deletions, self.members
        )
        return {
            "msa_feat": msa.msa_feature(self.shown_msa, self.deletions, profile, deletion_mean),
            "msa_mask": np.ones(self.true_msa.shape, np.float32),
            "true_msa": self.true_msa.astype(np.int32),
            "bert_mask": self.hidden.astype(np.float32),
            "extra_msa": self.extra_msa.astype(np.int32),
            "extra_has_deletion": msa.has_deletion(self.extra_deletions),
            "extra_deletion_value": msa.deletion_value(self.extra_deletions),
            "extra_msa_mask": self.extra_present.astype(np.float32),
        }


# The leading axes of each field: r residues, s MSA rows, e extra rows.
ALIGNMENT_AXES: dict[str, str] = {
    **dict.fromkeys(("shown_msa", "true_msa", "hidden", "deletions", "member_counts", "member_deletions"), "sr"),
    "members": "s",
    **dict.fromkeys(("extra_msa", "extra_deletions", "extra_present"), "er"),
}


def smallest(numbers: Integer[np.ndarray, "..."]) -> Integer[np.ndarray, "..."]:
    """Return whole numbers from 0 on in the smallest type that holds the largest of them."""
    if numbers.dtype == np.uint8:
        return numbers
    most = int(numbers.max(initial=0))
    return numbers.astype(next(kind for kind in (np.uint8, np.int16, np.int32, np.int64) if most <= np.iinfo(kind).max))
