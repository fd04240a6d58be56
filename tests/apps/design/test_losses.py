"""Losses fall with what they are for; their numbers are ColabDesign's, see tests/parity."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from data_pipeline.io.errors import InputError
from helixfold.apps.design.losses import (
    LOSSES,
    ContactLoss,
    DesignPass,
    InterfaceContactLoss,
    KnownAtoms,
    WeightedLoss,
    distogram_loss,
    helix_loss,
    interface_pae_loss,
    total,
)
from helixfold.apps.design.options import SequenceMixture
from helixfold.apps.design.sequence import designed_sequence
from helixfold.apps.design.soft_sequence import fold_sequence, with_sequence
from helixfold.execution.whole import Whole
from helixfold.model.outputs import Outputs
from tests.support.networks import random_batch, tiny_model

R, BINS = 14, 64


@pytest.fixture(scope="module")
def made() -> DesignPass:
    """A pass on a target of eight residues and six that are designed."""
    batch = random_batch(residues=R, templates=0)
    numbers = torch.randn(1, R, 20, generator=torch.Generator().manual_seed(0))
    mixture = SequenceMixture(soft=1.0, hard=0.0, temperature=1.0)
    sequence = designed_sequence(numbers, torch.zeros(1, R, 20), mixture)
    with torch.no_grad():
        outputs = fold_sequence(tiny_model().eval(), Whole(), with_sequence(batch, sequence.mixed), num_recycles=0)
    chains = (torch.arange(R) >= 8).long()[None]
    return DesignPass(
        outputs=outputs,
        batch=batch,
        sequence=sequence,
        designed=chains.float(),
        target=1 - chains.float(),
        hotspots=torch.zeros(1, R),
        chain_index=chains,
    )


def with_distances(made: DesignPass, distances: np.ndarray, certainty: float = 20.0) -> DesignPass:
    """The pass with a distogram that is almost certain of these distances."""
    edges = np.linspace(2.3125, 21.6875, BINS - 1)
    logits = certainty * torch.nn.functional.one_hot(torch.from_numpy(np.searchsorted(edges, distances)), BINS).float()
    outputs: Outputs = replace(made.outputs, logits=replace(made.outputs.logits, distogram=logits[None]))
    return replace(made, outputs=outputs)


def test_contacts_count_within_and_between_chains(made: DesignPass) -> None:
    near = np.full((R, R), 20.0)
    near[9, 13] = near[13, 9] = 5.0
    within = ContactLoss(separation=3, contacts=1)
    few = with_distances(made, near)
    # Two of the designed residues have the one contact that counts.
    none, all_far = float(within(few)), float(within(with_distances(made, np.full((R, R), 20.0))))
    # 13 and 9 are 4 apart; residues 10 and 11 have 13 and 8 at a distance, whatever it is.
    assert none == pytest.approx(all_far * 4 / 6, rel=1e-3)
    between = np.full((R, R), 30.0)
    between[8:, 2] = 10.0
    assert float(InterfaceContactLoss()(with_distances(made, between))) < 1e-3
    far = float(InterfaceContactLoss()(with_distances(made, np.full((R, R), 30.0))))
    assert far > 10
    # A hotspot's own row counts, and one contact with the binder is enough.
    hot = replace(made, hotspots=torch.eye(R)[2][None])
    assert float(InterfaceContactLoss()(with_distances(hot, between))) > 10
    between[8:, 2], between[2, 9] = 30.0, 10.0
    assert float(InterfaceContactLoss()(with_distances(hot, between))) < 1e-3
    cold = replace(made, hotspots=torch.eye(R)[3][None])
    assert float(InterfaceContactLoss()(with_distances(cold, between))) > 10


def test_contacts_on_a_ring_are_apart_along_the_ring(made: DesignPass) -> None:
    numbers = torch.arange(R)
    ring = (numbers[:, None] - numbers + R // 2) % R - R // 2
    whole = replace(made, designed=torch.ones(1, R), chain_index=torch.zeros(1, R, dtype=torch.int64))
    ends = np.full((R, R), 20.0)
    ends[0, R - 1] = ends[R - 1, 0] = 5.0
    alone = ContactLoss(separation=3, contacts=1, residues=2)
    assert float(alone(with_distances(whole, ends))) < 1e-3
    closed = replace(whole, batch=replace(whole.batch, offsets=ring[None]))
    assert float(alone(with_distances(closed, ends))) > 10


def test_helices_have_residues_three_apart_within_six_angstrom(made: DesignPass) -> None:
    numbers = np.arange(R)
    helix = np.where(numbers[:, None] - numbers == 3, 5.0, 12.0)
    assert (
        float(helix_loss(with_distances(made, helix))) < 1e-3 < float(helix_loss(with_distances(made, 0 * helix + 12)))
    )


def test_distances_of_known_atoms_are_learnt(made: DesignPass) -> None:
    walk = np.cumsum(np.random.default_rng(0).normal(0, 2, (R, 3)), 0)
    positions = torch.from_numpy(np.repeat(walk[:, None], 37, 1)).float()[None]
    mask = torch.ones(1, R, 37)
    mask[:, 5] = 0
    known = replace(made, known=KnownAtoms(positions=positions, mask=mask))
    true = np.linalg.norm(walk[:, None] - walk, axis=-1)
    assert float(distogram_loss(with_distances(known, true))) < 1e-3
    wrong = true.copy()
    wrong[5], wrong[:, 5] = 21, 21  # an atom that is not known
    assert float(distogram_loss(with_distances(known, wrong))) < 1e-3
    wrong[4, 6] = 21
    assert float(distogram_loss(with_distances(known, wrong))) > 0.01
    with pytest.raises(InputError, match="the loss dgram needs atoms"):
        distogram_loss(made)


def test_ones_own_loss_counts_with_its_weight(made: DesignPass) -> None:
    losses = {
        "pae": WeightedLoss(loss=LOSSES["pae"], weight=0.0),
        "own": WeightedLoss(loss=lambda each: each.sequence.soft[..., 0].mean(-1), weight=3.0),
    }
    value, found = total(losses, made)
    assert float(value) == pytest.approx(3 * float(made.sequence.soft[..., 0].mean()))
    assert found.keys() == {"pae", "own"}


def test_errors_between_chains_are_of_both_directions(made: DesignPass) -> None:
    assert made.outputs.logits.aligned_error is not None
    forward = float(interface_pae_loss(made))
    swapped = replace(made, designed=made.target, target=made.designed)
    assert float(interface_pae_loss(swapped)) == pytest.approx(forward, rel=1e-5)
    without = replace(made.outputs, logits=replace(made.outputs.logits, aligned_error=None))
    with pytest.raises(InputError, match="predicts no aligned errors"):
        interface_pae_loss(replace(made, outputs=without))
