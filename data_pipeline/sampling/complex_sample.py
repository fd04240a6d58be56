"""Sample one model input from the features of a complex.

DeepMind's code samples inside the network. Here, a generator makes the random choices first (`draw`), and the model
input is computed from them (`complex_sample`). AlphaFold-Multimer (Evans et al. 2022), with the features of AlphaFold
2.3.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Int8

from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.sample import Sample
from data_pipeline.residues import GAP, MASKED, UNKNOWN
from data_pipeline.sampling import msa, templates
from data_pipeline.sampling.sample import SamplingConfig

# Number of residues with one-hot rows in memory at a time.
_COLUMNS_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True)
class ComplexSample(Sample):
    """Input of the model for one recycling iteration of a complex: the fields of `Sample`, and the chain numbers.

    `target_feat` is the one-hot residue type. Template slots may be empty; the network averages over all of them. Chain
    numbers and `template_spans_chains` are the same as in `ComplexFeatures`.
    """

    target_feat: Float[np.ndarray, "r 21"]
    asym_id: Int[np.ndarray, "r"]
    entity_id: Int[np.ndarray, "r"]
    sym_id: Int[np.ndarray, "r"]
    template_spans_chains: tuple[bool, ...] = ()  # as in `ComplexFeatures`


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The random choices of a sample.

    `order` has the row indices of the MSA, the first of which become cluster centres; `masked` are the cluster centres
    after masking, and `hidden` the masked positions.
    """

    order: Int[np.ndarray, "n"]
    masked: Int8[np.ndarray, "s r"]
    hidden: Bool[np.ndarray, "s r"]


def draw(features: ComplexFeatures, config: SamplingConfig, rng: np.random.Generator) -> Draw:
    """Make the random choices of a sample; row 0, the complex itself, is always the first cluster centre."""
    order = np.concatenate([[0], 1 + rng.permutation(len(features.msa) - 1)])
    masked, hidden = msa.mask_msa(
        features.msa[order[: config.max_msa_clusters]],
        msa.msa_profile(features.msa),
        fraction=config.masked_msa_fraction,
        uniform_prob=config.uniform_prob,
        profile_prob=config.profile_prob,
        same_prob=config.same_prob,
        rng=rng,
    )
    return Draw(order=order, masked=masked, hidden=hidden)


def complex_sample(features: ComplexFeatures, config: SamplingConfig, drawn: Draw) -> ComplexSample:
    """Return the model's input for the random choices `drawn`.

    There is always at least one extra row: if the MSA has none, it is the row of the complex or a row with mask 0,
    depending on `config.target_as_extra`.
    """
    centres, rows = np.split(drawn.order, [len(drawn.masked)])
    deletions, row_deletions = features.deletion_matrix[centres], features.deletion_matrix[rows]
    profile, deletion_mean = summarize_clusters(drawn.masked, deletions, features.msa[rows], row_deletions)
    extra = rows[: config.max_extra_msa]
    extra_msa = features.msa[extra]
    # Without extra rows, the network gets a masked one.
    extra_mask = np.ones((max(1, len(extra)), len(features.aatype)), np.float32)
    if not len(extra):
        extra = centres[:1]
        # Use the masked row, because the unmasked one contains the residues to predict.
        extra_msa = drawn.masked[:1] if config.target_as_extra else features.msa[extra]
        extra_mask *= config.target_as_extra
    template_aatype, positions, masks = (
        features.template_aatype,
        features.template_all_atom_positions,
        features.template_all_atom_masks,
    )
    pseudo_beta, pseudo_beta_mask = templates.pseudo_beta(template_aatype, positions, masks)
    return ComplexSample(
        aatype=features.aatype.astype(np.int32),
        residue_index=features.residue_index.astype(np.int32),
        asym_id=features.asym_id,
        entity_id=features.entity_id,
        sym_id=features.sym_id,
        seq_mask=np.ones(len(features.aatype), np.float32),
        target_feat=np.eye(UNKNOWN + 1, dtype=np.float32)[features.aatype],
        msa_feat=msa.msa_feature(drawn.masked, deletions, profile, deletion_mean),
        msa_mask=np.ones(drawn.masked.shape, np.float32),
        true_msa=features.msa[centres].astype(np.int32),
        bert_mask=(drawn.hidden & features.bert_mask[centres]).astype(np.float32),
        extra_msa=extra_msa.astype(np.int32),
        extra_has_deletion=msa.has_deletion(features.deletion_matrix[extra]),
        extra_deletion_value=msa.deletion_value(features.deletion_matrix[extra]),
        extra_msa_mask=extra_mask,
        template_aatype=template_aatype.astype(np.int32),
        template_all_atom_positions=positions.astype(np.float32),
        template_all_atom_masks=masks.astype(np.float32),
        template_mask=np.asarray(masks.any(axis=(1, 2)), np.float32),
        template_pseudo_beta=pseudo_beta,
        template_pseudo_beta_mask=pseudo_beta_mask,
        template_spans_chains=features.template_spans_chains,
    )


def summarize_clusters(
    centres: Int8[np.ndarray, "s r"],
    centre_deletions: Int[np.ndarray, "s r"],
    rows: Int8[np.ndarray, "e r"],
    row_deletions: Int[np.ndarray, "e r"],
) -> tuple[Float32[np.ndarray, "s r 23"], Float32[np.ndarray, "s r"]]:
    """Return the residue profile and the mean deletion count of each cluster in each column.

    A row belongs to the centre with which it agrees in the most residues, in equal parts if there are several; gaps and
    masked positions do not count. As in DeepMind's code, a row counts as often as there are columns, and the centre
    once. The profile has fractions of 23 classes: 20 residue types, unknown, gap and masked.
    """
    r = centres.shape[1]
    weights = np.float32(r) * _cluster_weights(centres, rows)
    members = 1 + weights.sum(axis=1, keepdims=True)
    profile = np.empty((*centres.shape, msa.CLASSES), np.float32)
    for start in range(0, r, _COLUMNS_AT_ONCE):
        columns = slice(start, start + _COLUMNS_AT_ONCE)
        counts = np.tensordot(weights, _one_hot(rows[:, columns]), 1) + _one_hot(centres[:, columns])
        profile[:, columns] = counts / members[..., None]
    deletions = weights @ row_deletions.astype(np.float32) + centre_deletions
    return profile, (deletions / members).astype(np.float32)


def _cluster_weights(centres: Int8[np.ndarray, "s r"], rows: Int8[np.ndarray, "e r"]) -> Float32[np.ndarray, "s e"]:
    """Return the weight of each row in each cluster; gaps and masked positions never count as agreement."""
    agreement = np.zeros((len(centres), len(rows)), np.float32)
    for start in range(0, centres.shape[1], _COLUMNS_AT_ONCE):
        left, right = (_one_hot(each[:, start : start + _COLUMNS_AT_ONCE])[..., :GAP] for each in (centres, rows))
        agreement += np.tensordot(left, right, ((1, 2), (1, 2)))
    best = agreement == agreement.max(axis=0, initial=0)
    return best / np.maximum(best.sum(axis=0, dtype=np.float32), 1)


def _one_hot(letters: Int8[np.ndarray, "n r"]) -> Float32[np.ndarray, "n r 23"]:
    return (letters[..., None] == np.arange(MASKED + 1, dtype=np.int8)).astype(np.float32)
