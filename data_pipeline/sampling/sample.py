"""Sample one model input from the features of a target.

`ALIGNMENT_AXES` has the leading axes of each field of a `SampledAlignment`: `r` residues, `s` MSA rows, `e` extra rows.
`MAX_ROWS` and `MAX_TEMPLATES` are the largest values of settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float32, Int, Int8, Integer

from data_pipeline.features.sample import Sample
from data_pipeline.features.schema import Features
from data_pipeline.io.config import FRACTION, Config, ConfigError, at_least, at_most
from data_pipeline.sampling import msa, templates


@dataclass(frozen=True, kw_only=True)
class SampledAlignment:
    """The rows of an alignment sampled for one recycling iteration: clusters of rows, and extra rows.

    Integer arrays have the smallest possible type. Members of a cluster are its rows without the centre. The member
    arrays have a row for each cluster (m = s), or none if no cluster has members, as in a shallow alignment (m = 0).

    `shown_msa` and `true_msa` are the centres after and before masking, and `deletions` their deletion counts. `hidden`
    is where the masked-MSA head must predict the residue. `members` is the number of members, `member_counts` the
    number with each class in each column, and `member_deletions` their summed deletion counts. `extra_present` is the
    mask of the extra rows.
    """

    shown_msa: Int8[np.ndarray, "s r"]  # cluster centres after masking
    true_msa: Int8[np.ndarray, "s r"]  # cluster centres before masking
    hidden: Bool[np.ndarray, "s r"]  # where the masked-MSA head must predict the residue
    deletions: Integer[np.ndarray, "s r"]  # of the centres
    members: Integer[np.ndarray, "s"]  # number of members of each cluster
    member_counts: Integer[np.ndarray, "m r 23"]  # members with each class in each column
    member_deletions: Integer[np.ndarray, "m r"]  # summed over members
    extra_msa: Int8[np.ndarray, "e r"]
    extra_deletions: Integer[np.ndarray, "e r"]
    extra_present: Bool[np.ndarray, "e r"]

    def features(self) -> dict[str, np.ndarray]:
        """Return the fields of `Sample` that depend on the alignment, by name."""
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


# Leading axes of each field: r residues, s MSA rows, e extra rows.
ALIGNMENT_AXES: dict[str, str] = {
    **dict.fromkeys(("shown_msa", "true_msa", "hidden", "deletions", "member_counts", "member_deletions"), "sr"),
    "members": "s",
    **dict.fromkeys(("extra_msa", "extra_deletions", "extra_present"), "er"),
}


def smallest(numbers: Integer[np.ndarray, "..."]) -> Integer[np.ndarray, "..."]:
    """Return non-negative integers in the smallest of uint8, int16, int32 and int64 that holds their maximum."""
    if numbers.dtype == np.uint8:
        return numbers
    maximum = int(numbers.max(initial=0))
    return numbers.astype(
        next(kind for kind in (np.uint8, np.int16, np.int32, np.int64) if maximum <= np.iinfo(kind).max)
    )


MAX_ROWS, MAX_TEMPLATES = 1_000_000, 1000


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Config):
    """Settings of the input for one recycling iteration: numbers of MSA rows and templates, and masking of the MSA.

    The defaults are AlphaFold 2's, Suppl. Sec. 1.2.7 and Table 5. `max_msa_clusters` does not count template rows: with
    templates, the caller must subtract `max_templates` from it. `masked_msa_fraction` of the MSA positions are masked.
    Such a position becomes a random residue with `uniform_prob`, a sample from the profile of its column with
    `profile_prob`, itself with `same_prob`, and else the mask token. `unknown_fraction` of all residues become X first.
    With `target_as_extra`, an MSA without extra rows gets the masked target row instead of a row with mask 0.
    """

    max_msa_clusters: Annotated[int, at_least(1), at_most(MAX_ROWS)] = 512  # max MSA rows, without template rows
    max_extra_msa: Annotated[int, at_least(1), at_most(MAX_ROWS)] = 1024  # max extra rows
    max_templates: Annotated[int, at_least(0), at_most(MAX_TEMPLATES)] = 4  # max templates
    masked_msa_fraction: Annotated[float, FRACTION] = 0.15  # part of the MSA positions, which the network must restore
    # A masked position becomes a random residue, a sample from the profile of its column, itself, or the mask token.
    uniform_prob: Annotated[float, FRACTION] = 0.1
    profile_prob: Annotated[float, FRACTION] = 0.1
    same_prob: Annotated[float, FRACTION] = 0.1
    unknown_fraction: Annotated[float, FRACTION] = 0.0  # of residues, replaced by X at the start
    # If the MSA has no extra rows, use the masked target row instead of a row with mask 0. AlphaFold's outer product
    # mean divides by the number of rows + 0.001, so without a row it is a thousand times its bias. The published models
    # expect this, but training from random weights fails with it.
    target_as_extra: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uniform_prob + self.profile_prob + self.same_prob > 1 + 1e-9:
            raise ConfigError("the sum of uniform_prob, profile_prob and same_prob must be at most 1")

    def depends_on_chance(self, rows: int) -> bool:
        """Return whether samples of an MSA of `rows` rows differ in more than the order of the rows."""
        return self.masked_msa_fraction > 0 or self.unknown_fraction > 0 or rows > self.max_msa_clusters


@dataclass(frozen=True, kw_only=True)
class DrawnSample:
    """Compact input of one recycling iteration, with the alignment as integers; `sample` returns the model's input.

    `others` has the fields of `Sample` that do not depend on the alignment.
    """

    alignment: SampledAlignment
    others: Mapping[str, np.ndarray]  # the fields of `Sample` that do not depend on the alignment

    def sample(self) -> Sample:
        """Return the model's input."""
        return Sample(**self.others, **self.alignment.features())


def draw_sample(features: Features, config: SamplingConfig, rng: np.random.Generator) -> Sample:
    """Sample the model's input for one recycling iteration with all residues; see `draw`."""
    return draw(features, config, rng).sample()


def draw(
    features: Features,
    config: SamplingConfig,
    rng: np.random.Generator,
    *,
    crop: Int[np.ndarray, "c"] | None = None,
    profile: Float32[np.ndarray, "r 22"] | None = None,
) -> DrawnSample:
    """Sample the input of one recycling iteration; each call selects new MSA rows and a new masking.

    Axes have the sizes of the features, up to the maxima of the config. There is always at least one extra row: if the
    MSA is too shallow, it is the target row or a row with mask 0, depending on `config.target_as_extra`.

    The first `config.max_templates` templates are used. Training passes `crop`, the sorted indices of the residues to
    use. As in AlphaFold, rows are assigned to clusters by the whole chain; everything else is computed for the crop
    only. Masked positions are replaced by samples from `profile` (default: the profile of the features' MSA).
    """
    full_msa, aatype = features.msa, features.aatype
    if config.unknown_fraction > 0:
        full_msa, aatype = msa.replace_with_unknown(full_msa, aatype, config.unknown_fraction, rng)

    centre_rows, rest = msa.sample_rows(len(full_msa), config.max_msa_clusters, rng)
    centres, centre_deletions = full_msa[centre_rows], features.deletion_matrix[centre_rows]
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
    columns = _columns(crop, len(aatype))
    aatype, masked, hidden, centres, rows = aatype[columns], *(a[:, columns] for a in (masked, hidden, centres, rows))
    centre_deletions = centre_deletions[:, columns]
    row_deletions = features.deletion_matrix[:, columns][rest]
    counts, member_deletions, members = msa.count_members(rows, row_deletions, assignment, len(masked))

    extra_rows = msa.crop_extra_rows(len(rows), config.max_extra_msa, rng)
    extra, extra_deletions, has_extra = rows[extra_rows], row_deletions[extra_rows], True
    if not len(extra) and config.target_as_extra:
        # Use the masked row, because the unmasked one contains the residues to predict.
        extra, extra_deletions = masked[:1], centre_deletions[:1]
    elif not len(extra):
        extra, extra_deletions = np.zeros((1, len(aatype)), np.int8), np.zeros((1, len(aatype)), np.int32)
        has_extra = False

    slots = slice(config.max_templates)
    template_aatype = features.template_aatype[slots, columns]
    positions = features.template_all_atom_positions[slots, columns]
    masks = features.template_all_atom_masks[slots, columns]
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
            "residue_index": features.residue_index[columns].astype(np.int32),
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
    """Return an index for the residues of a crop: a slice, which needs no copy, if they are neighbours."""
    if crop is None:
        return slice(length)
    return slice(int(crop[0]), int(crop[-1]) + 1) if crop[-1] - crop[0] == len(crop) - 1 else crop
