"""Random input features and labels of any size, for measuring time and memory of the network."""

from dataclasses import fields

import numpy as np
import torch
from jaxtyping import Bool, Int

from data_pipeline.features.ground_truth import GroundTruth, ground_truth
from data_pipeline.features.labels import ChainLabels
from data_pipeline.residues import ATOM37_MASK
from helixfold.execution.nested import with_tensors_changed
from helixfold.losses.labels import ComplexLabels, Labels
from helixfold.model.batch import Batch, MultimerBatch, batch_of_one
from helixfold.model.config import Method


def random_batch(
    residues: int,
    rows: int,
    extra_rows: int,
    templates: int,
    device: torch.device,
    *,
    method: Method = "monomer",
) -> Batch:
    """Return a batch of one random sample without masked positions, for a network of the method, on the device.

    `rows` is the number of MSA rows and `extra_rows` the number of extra-MSA rows. A complex has two equal chains.
    """
    aatype = _random_integers(20, 1, residues)
    atoms = 20 * torch.rand(1, templates, residues, 37, 3)
    batch = Batch(
        aatype=aatype,
        residue_index=torch.arange(residues)[None],
        seq_mask=torch.ones(1, residues),
        target_feat=torch.nn.functional.one_hot(aatype + 1, 22).float(),
        msa_feat=torch.rand(1, rows, residues, 49),
        msa_mask=torch.ones(1, rows, residues),
        extra_msa=_random_integers(22, 1, extra_rows, residues),
        extra_has_deletion=torch.zeros(1, extra_rows, residues),
        extra_deletion_value=torch.zeros(1, extra_rows, residues),
        extra_msa_mask=torch.ones(1, extra_rows, residues),
        template_aatype=_random_integers(20, 1, templates, residues),
        template_all_atom_positions=atoms,
        template_all_atom_masks=torch.ones(1, templates, residues, 37),
        template_mask=torch.ones(1, templates),
        template_pseudo_beta=atoms[..., 3, :],
        template_pseudo_beta_mask=torch.ones(1, templates, residues),
    )
    if method == "multimer":
        batch = _with_two_chains(batch)
    return with_tensors_changed(lambda tensor: tensor.to(device), batch)


def _with_two_chains(batch: Batch) -> MultimerBatch:
    """Return the batch of a complex of two equal chains, the halves of this batch's chain."""
    chain = (batch.residue_index >= batch.residue_index.shape[1] // 2).long() + 1
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    target = torch.nn.functional.one_hot(batch.aatype, 21).float()
    return MultimerBatch(
        **{**values, "target_feat": target}, asym_id=chain, entity_id=torch.ones_like(chain), sym_id=chain
    )


def _random_integers(count: int, *shape: int) -> torch.Tensor:
    """Return random integers from 0 to `count` - 1."""
    return (count * torch.rand(shape)).long()


def random_labels(batch: Batch) -> Labels:
    """Return labels for a batch of one sample, with a random walk as the true structure.

    For a complex, they also have the atoms of both copies of the chain, the halves of the walk.
    """
    device, residues = batch.aatype.device, batch.aatype.shape[1]
    random = np.random.default_rng(0)
    # On the meta device the batch has no sequence.
    aatype = np.zeros(residues, np.int64) if batch.aatype.is_meta else batch.aatype[0].cpu().numpy()
    steps = random.standard_normal((residues, 1, 3))
    walk = np.cumsum(3.8 * steps / np.linalg.norm(steps, axis=-1, keepdims=True), 0)
    mask = ATOM37_MASK[aatype].astype(np.float32)
    positions = (walk + random.standard_normal((residues, 37, 3))).astype(np.float32) * mask[..., None]
    truth = ground_truth(
        aatype,
        ChainLabels(
            all_atom_positions=positions,
            all_atom_mask=mask,
            confidence=np.ones(residues, np.float32),
            resolution=2.0,
            is_distillation=False,
        ),
    )
    rows = batch.msa_mask
    labels = Labels(
        **{field.name: batch_of_one(getattr(truth, field.name), device) for field in fields(GroundTruth)},
        true_msa=_random_integers(20, *rows.shape).to(device),
        bert_mask=(torch.rand(rows.shape, device=device) < 0.15).float(),
        use_clamped_fape=torch.ones(1, device=device),
        resolution=torch.full((1,), 2.0, device=device),
        is_distillation=torch.zeros(1, device=device),
    )
    if not isinstance(batch, MultimerBatch):
        return labels
    source, exists = _residues_of_both_chains(residues)
    return ComplexLabels(
        **{field.name: getattr(labels, field.name) for field in fields(Labels)},
        copies_positions=batch_of_one(positions[source], device),
        copies_mask=batch_of_one(mask[source] * exists[..., None], device),
    )


def _residues_of_both_chains(residues: int) -> tuple[Int[np.ndarray, "2 r"], Bool[np.ndarray, "2 r"]]:
    """Return, for each residue of two equal chains, its counterpart in either chain and whether it exists.

    If the number of residues is odd, the second chain has one more.
    """
    half = residues // 2
    starts, lengths = np.array([[0], [half]]), np.array([[half], [residues - half]])
    place = np.concatenate([np.arange(half), np.arange(residues - half)])
    return starts + np.minimum(place, lengths - 1), place < lengths
