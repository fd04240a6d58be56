"""Scores of chains and interfaces in training are what a loop over pairs counts, and say which part is wrong."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from data_pipeline.residues import ATOM_ORDER, RESTYPES
from helixfold.losses.chain_metrics import METRICS, chain_metrics
from helixfold.losses.config import LossConfig
from helixfold.losses.labels import Labels
from helixfold.losses.total import total_loss
from helixfold.model.batch import MultimerBatch
from helixfold.model.outputs import PredictedStructure
from tests.losses.complexes import a_complex, labels_of_complex, outputs_of, random_truth

CA, CB = ATOM_ORDER["CA"], ATOM_ORDER["CB"]


def predicted(batch: MultimerBatch, positions: Tensor) -> PredictedStructure:
    return replace(outputs_of(batch).structure, positions=positions)


def by_loops(positions: Tensor, labels: Labels, batch: MultimerBatch) -> dict[str, float]:
    """The same, pair by pair."""
    found, true = positions[0].double().numpy(), labels.all_atom_positions[0].double().numpy()
    mask, chain = labels.all_atom_mask[0].numpy(), batch.asym_id[0].numpy()
    beta = [CA if int(each) == RESTYPES.index("G") else CB for each in batch.aatype[0]]
    within, between, contacts = [], [], []
    for i, j in itertools.permutations(range(len(chain)), 2):
        if mask[i, CA] and mask[j, CA] and (distance := np.linalg.norm(true[i, CA] - true[j, CA])) < 15:
            error = abs(np.linalg.norm(found[i, CA] - found[j, CA]) - distance)
            (within if chain[i] == chain[j] else between).append(np.mean([error < x for x in (0.5, 1, 2, 4)]))
        touching = mask[i, beta[i]] and mask[j, beta[j]] and np.linalg.norm(true[i, beta[i]] - true[j, beta[j]]) <= 8
        if touching and chain[i] != chain[j]:
            contacts.append(np.linalg.norm(found[i, beta[i]] - found[j, beta[j]]) <= 8)
    return dict(zip(METRICS, (float(np.mean(each)) for each in (within, between, contacts)), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_they_are_what_a_loop_counts(seed: int) -> None:
    batch = a_complex("ABA", residues=24)
    positions, mask = random_truth(batch, seed)
    # Chains near enough to touch.
    positions = 0.3 * positions
    labels = labels_of_complex(batch, positions, mask).of_own_chains()
    noise = torch.randn(positions.shape, generator=torch.Generator().manual_seed(seed))
    found = chain_metrics(predicted(batch, positions + noise), labels, batch.asym_id)
    expected = by_loops(positions + noise, labels, batch)
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected, abs=1e-5)
    assert all(0.05 < value < 0.95 for value in expected.values())


def test_they_tell_chains_folded_wrong_from_chains_put_together_wrong() -> None:
    batch = a_complex("AB", residues=24)
    positions, mask = random_truth(batch)
    positions = 0.3 * positions
    labels = labels_of_complex(batch, positions, mask).of_own_chains()
    moved = positions + 20 * (batch.asym_id == 2)[..., None, None]
    apart = chain_metrics(predicted(batch, moved), labels, batch.asym_id)
    assert apart["chain_lddt_ca"] == 1
    assert apart["interface_lddt_ca"] < 0.1
    assert apart["native_contacts"] < 0.1
    right = chain_metrics(predicted(batch, positions), labels, batch.asym_id)
    assert {float(value) for value in right.values()} == {1.0}


def test_what_a_sample_has_not_is_no_number() -> None:
    batch = a_complex("A", residues=12)
    positions, mask = random_truth(batch)
    labels = labels_of_complex(batch, positions, mask).of_own_chains()
    found = chain_metrics(predicted(batch, positions), labels, batch.asym_id)
    assert found["chain_lddt_ca"] == 1
    assert found["interface_lddt_ca"].isnan()
    assert found["native_contacts"].isnan()


def test_equal_chains_may_be_exchanged() -> None:
    """The metrics that come with the losses are of the truth that was permuted to fit."""
    batch = a_complex("AAB", residues=24)
    positions, mask = random_truth(batch, observed=1.0)
    positions = 0.3 * positions
    exchanged = positions.clone()
    one, other = (batch.asym_id[0] == number for number in (1, 2))
    exchanged[:, one], exchanged[:, other] = positions[:, other], positions[:, one]
    outputs = outputs_of(batch)
    for atoms in (positions, exchanged):
        structure = replace(outputs.structure, positions=positions)
        labels = labels_of_complex(batch, atoms, mask)
        metrics = total_loss(replace(outputs, structure=structure), batch, labels, LossConfig()).metrics
        assert {name: float(value) for name, value in metrics.items()} == dict.fromkeys(METRICS, 1.0)
