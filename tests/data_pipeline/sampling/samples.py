"""Features, labels and samples for tests: random ones of any size, and AlphaFold's own."""

from pathlib import Path

import numpy as np

from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.sample import Sample
from data_pipeline.features.schema import Features
from data_pipeline.residues import ATOM_ORDER, RESTYPES
from data_pipeline.sampling import msa as steps
from data_pipeline.sampling.templates import pseudo_beta

STORED = Path(__file__).parents[2] / "parity" / "data" / "pipeline_transforms.npz"


def random_features(n: int, r: int, t: int = 0) -> Features:
    rng = np.random.default_rng(n + r + t)
    aatype = rng.integers(0, 20, r, np.int32)
    msa = rng.integers(0, 22, (n, r), np.int8)
    msa[0] = aatype
    return Features(
        domain_name="random",
        sequence="".join(RESTYPES[residue] for residue in aatype),
        aatype=aatype,
        residue_index=np.arange(r, dtype=np.int32),
        msa=msa,
        deletion_matrix=np.where(np.arange(n)[:, None] > 0, rng.integers(0, 3, (n, r)), 0).astype(np.int32),
        template_domain_names=tuple(map(str, range(t))),
        template_aatype=rng.integers(0, 22, (t, r), np.int32),
        template_all_atom_positions=rng.random((t, r, 37, 3), np.float32),
        template_all_atom_masks=np.ones((t, r, 37), np.float32),
        template_sum_probs=np.ones((t, 1), np.float32),
    )


def random_labels(r: int, *, is_distillation: bool = False) -> ChainLabels:
    rng = np.random.default_rng(r)
    mask = (rng.random((r, 37)) < 0.8).astype(np.float32)
    mask[:, ATOM_ORDER["CA"]] = 1
    return ChainLabels(
        all_atom_positions=rng.random((r, 37, 3), np.float32) * 30 * mask[..., None],
        all_atom_mask=mask,
        confidence=rng.random(r, np.float32) if is_distillation else np.ones(r, np.float32),
        resolution=0.0 if is_distillation else 2.5,
        is_distillation=is_distillation,
    )


def alphafold_sample() -> tuple[Sample, dict[str, np.ndarray]]:
    """A sample made by our steps from the rows and masks AlphaFold drew, and AlphaFold's, padded to 80 residues."""
    with np.load(STORED) as arrays:
        drawn = dict(arrays)
    masked, deletions = drawn["masked_msa"], drawn["sampled_deletion_matrix"]
    rows, row_deletions = drawn["sampled_extra_msa"], drawn["sampled_extra_deletion_matrix"]
    assignment = steps.nearest_clusters(masked, rows)
    extra, extra_deletions = drawn["cropped_extra_msa"], drawn["cropped_extra_deletion_matrix"]
    template_aatype = drawn["template_aatype"][:4].astype(np.int32)
    positions, masks = drawn["raw_template_all_atom_positions"], drawn["raw_template_all_atom_masks"]
    beta, beta_mask = pseudo_beta(template_aatype, positions, masks)
    sample = Sample(
        aatype=drawn["aatype"].astype(np.int32),
        residue_index=np.arange(len(drawn["aatype"]), dtype=np.int32),
        seq_mask=np.ones(len(drawn["aatype"]), np.float32),
        target_feat=steps.target_feature(drawn["aatype"]),
        msa_feat=steps.msa_feature(
            masked,
            deletions,
            *steps.cluster_means(masked, deletions, *steps.count_members(rows, row_deletions, assignment, len(masked))),
        ),
        msa_mask=np.ones(masked.shape, np.float32),
        true_msa=drawn["sampled_msa"].astype(np.int32),
        bert_mask=drawn["bert_mask"].astype(np.float32),
        extra_msa=extra.astype(np.int32),
        extra_has_deletion=steps.has_deletion(extra_deletions),
        extra_deletion_value=steps.deletion_value(extra_deletions),
        extra_msa_mask=np.ones(extra.shape, np.float32),
        template_aatype=template_aatype,
        template_all_atom_positions=positions,
        template_all_atom_masks=masks,
        template_mask=np.ones(len(template_aatype), np.float32),
        template_pseudo_beta=beta,
        template_pseudo_beta_mask=beta_mask,
    )
    return sample, {name.removeprefix("final_"): value for name, value in drawn.items() if name.startswith("final_")}
