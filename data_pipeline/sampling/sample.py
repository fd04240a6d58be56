"""Draw one random model input from a target's features."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int, Int8, Integer

from data_pipeline.features.sample import Sample
from data_pipeline.features.schema import Features
from data_pipeline.io.config import Config, ConfigError
from data_pipeline.io.errors import check_at_least, check_at_most, check_fractions
from data_pipeline.sampling import msa, templates


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


MAX_ROWS, MAX_TEMPLATES = 1_000_000, 1000


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Config):
    """Settings of one recycling iteration's input: numbers of MSA rows and templates, and masking of the MSA.

    The defaults are those of AlphaFold 2, Suppl. Sec. 1.2.7 and Table 5. Where templates are used, the caller must
    subtract `max_templates` from `max_msa_clusters` itself.
    """

    max_msa_clusters: int = 512
    max_extra_msa: int = 1024
    max_templates: int = 4
    masked_msa_fraction: float = 0.15
    # A masked position becomes a random residue, a draw from its column's profile, itself, or else the mask token.
    uniform_prob: float = 0.1
    profile_prob: float = 0.1
    same_prob: float = 0.1
    unknown_fraction: float = 0.0  # of residues, replaced by X before anything else
    # If the MSA has no extra rows, use the target's row, masked as among the clusters, instead of a row with mask 0.
    # AlphaFold's outer product mean divides by the number of rows + 0.001, so without a row it is a thousand times its
    # bias. The published models expect that, but training from random weights fails with it.
    target_as_extra: bool = False

    def __post_init__(self) -> None:
        check_at_least(self, ConfigError, max_msa_clusters=1, max_extra_msa=1, max_templates=0)
        check_at_most(self, ConfigError, max_msa_clusters=MAX_ROWS, max_extra_msa=MAX_ROWS, max_templates=MAX_TEMPLATES)
        shares = ("masked_msa_fraction", "uniform_prob", "profile_prob", "same_prob", "unknown_fraction")
        check_fractions(self, *shares, error=ConfigError)
        if self.uniform_prob + self.profile_prob + self.same_prob > 1 + 1e-9:
            raise ConfigError("uniform_prob, profile_prob and same_prob must not exceed 1 together")

    def depends_on_chance(self, rows: int) -> bool:
        """Return whether samples of an MSA of this many rows differ in more than the order of their rows."""
        return self.masked_msa_fraction > 0 or self.unknown_fraction > 0 or rows > self.max_msa_clusters


@dataclass(frozen=True, kw_only=True)
class DrawnSample:
    """One recycling iteration's input, with its alignment in whole numbers; `sample` has the features of both."""

    alignment: SampledAlignment
    others: Mapping[str, np.ndarray]  # the fields of `Sample` that do not belong to the alignment

    def sample(self) -> Sample:
        """Return the model's input."""
        return Sample(**self.others, **self.alignment.features())


def draw_sample(features: Features, config: SamplingConfig, rng: np.random.Generator) -> Sample:
    """Draw the model's input for one recycling iteration from all residues, as `draw` does."""
    return draw(features, config, rng).sample()


def draw(
    features: Features,
    config: SamplingConfig,
    rng: np.random.Generator,
    *,
    crop: Int[np.ndarray, "c"] | None = None,
    profile: Float32[np.ndarray, "r 22"] | None = None,
) -> DrawnSample:
    """Draw one recycling iteration's input, with a new choice of MSA rows and a new masking on each call.

    Axes are as long as the features and the config's maxima allow. There is always at least one extra row: if the MSA
    is too shallow, it is the target's row or a row with mask 0, depending on `config.target_as_extra`.

    Training passes `crop`, the sorted indices of the residues to show. As in AlphaFold, rows are assigned to clusters
    by the whole chain; everything else is computed for the crop only. Masked positions are
    replaced by draws from `profile`, by default that of the features' MSA.
    """
    full_msa, aatype = features.msa, features.aatype
    if config.unknown_fraction > 0:
        full_msa, aatype = msa.replace_with_unknown(full_msa, aatype, config.unknown_fraction, rng)

    chosen, rest = msa.sample_rows(len(full_msa), config.max_msa_clusters, rng)
    centres, centre_deletions = full_msa[chosen], features.deletion_matrix[chosen]
    rows = full_msa[rest]

    masked, hidden = msa.mask_msa(
        centres,
        msa.msa_profile(full_msa) if profile is None else profile,
        fraction=config.masked_msa_fraction,
        uniform_prob=config.uniform_prob,
        profile_prob=config.profile_prob,
        same_prob=config.same_prob,
        rng=rng,
    )
    assignment = msa.nearest_clusters(masked, rows)
    shown = _columns(crop, len(aatype))
    aatype, masked, hidden, centres, rows = aatype[shown], *(a[:, shown] for a in (masked, hidden, centres, rows))
    centre_deletions = centre_deletions[:, shown]
    row_deletions = features.deletion_matrix[:, shown][rest]
    counts, member_deletions, members = msa.count_members(rows, row_deletions, assignment, len(masked))

    kept = msa.crop_extra_rows(len(rows), config.max_extra_msa, rng)
    extra, extra_deletions, has_extra = rows[kept], row_deletions[kept], True
    if not len(extra) and config.target_as_extra:
        # Take the masked row, or it would give away the residues to predict.
        extra, extra_deletions = masked[:1], centre_deletions[:1]
    elif not len(extra):
        extra, extra_deletions = np.zeros((1, len(aatype)), np.int8), np.zeros((1, len(aatype)), np.int32)
        has_extra = False

    slots = slice(config.max_templates)
    template_aatype = features.template_aatype[slots, shown]
    positions = features.template_all_atom_positions[slots, shown]
    masks = features.template_all_atom_masks[slots, shown]
    pseudo_beta, pseudo_beta_mask = templates.pseudo_beta(template_aatype, positions, masks)
    return DrawnSample(
        alignment=SampledAlignment(
            shown_msa=masked,
            true_msa=centres,
            hidden=hidden,
            deletions=smallest(centre_deletions),
            members=smallest(members),
            member_counts=smallest(counts),
            member_deletions=smallest(member_deletions),
            extra_msa=extra,
            extra_deletions=smallest(extra_deletions),
            extra_present=np.full(extra.shape, has_extra),
        ),
        others={
            "aatype": aatype.astype(np.int32),
            "residue_index": features.residue_index[shown].astype(np.int32),
            "seq_mask": np.ones(len(aatype), np.float32),
            "target_feat": msa.target_feature(aatype),
            "template_aatype": template_aatype.astype(np.int32),
            "template_all_atom_positions": positions.astype(np.float32),
            "template_all_atom_masks": masks.astype(np.float32),
            "template_mask": np.ones(len(template_aatype), np.float32),
            "template_pseudo_beta": pseudo_beta,
            "template_pseudo_beta_mask": pseudo_beta_mask,
        },
    )


def _columns(crop: Int[np.ndarray, "c"] | None, length: int) -> slice | Int[np.ndarray, "c"]:
    """Return an index for the residues of a crop: a slice, which copies nothing, if they are neighbours."""
    if crop is None:
        return slice(length)
    return slice(int(crop[0]), int(crop[-1]) + 1) if crop[-1] - crop[0] == len(crop) - 1 else crop
