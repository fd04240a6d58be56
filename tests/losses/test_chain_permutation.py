"""Equal chains of the truth are interchangeable: the best assignment counts, whatever their order."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.features.assembly import ChainNumbers
from helixfold.losses import chain_permutation
from helixfold.losses.chain_permutation import best_copies, permuted_labels
from helixfold.losses.config import complexes, finetuning
from helixfold.losses.total import total_loss
from tests.losses.complexes import a_complex, labels_of_complex, outputs_of, random_truth

LENGTHS = {"A": 5, "B": 7, "C": 4}


def numbers_of(chains: str) -> ChainNumbers:
    return ChainNumbers.of([letter * LENGTHS[letter] for letter in chains])


def copies_of(chains: str, points: np.ndarray, observed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The true C-alphas of every copy of each residue's chain, and which of them were observed."""
    numbers = numbers_of(chains)
    truth = np.zeros((max(map(chains.count, chains)), len(points), 3))
    seen = np.zeros(truth.shape[:2], bool)
    for letter in set(chains):
        same = [np.flatnonzero(numbers.asym_id == 1 + place) for place, each in enumerate(chains) if each == letter]
        for here in same:
            for copy, there in enumerate(same):
                truth[copy, here], seen[copy, here] = points[there], observed[there]
    return truth, seen


def deviation(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Mean squared deviation after superposition (Kabsch 1976), from its definition."""
    ours, true = predicted - predicted.mean(0), truth - truth.mean(0)
    u, _, vt = np.linalg.svd(true.T @ ours)
    rotation = u @ np.diag([1, 1, np.sign(np.linalg.det(u @ vt))]) @ vt
    return float(np.square(ours @ rotation.T - true).sum(-1).mean())


def by_brute_force(chains: str, predicted: np.ndarray, truth: np.ndarray, observed: np.ndarray) -> float:
    """The least deviation of all assignments of equal chains."""
    numbers = numbers_of(chains)
    found = []
    for order in permutations(range(len(chains))):
        if any(chains[place] != letter for place, letter in zip(order, chains, strict=True)):
            continue
        copies = numbers.sym_id - 1
        for chain, place in enumerate(order):
            copies[numbers.asym_id == 1 + chain] = chains[:place].count(chains[place])
        counted = observed[copies, np.arange(len(copies))]
        if counted.sum() >= 3:
            found.append(deviation(predicted[counted], truth[copies, np.arange(len(copies))][counted]))
    return min(found)


@settings(max_examples=40, deadline=None)
@given(
    chains=st.sampled_from(["AA", "AAB", "ABAB", "AAAB", "AAAA", "ABBA", "ABC", "AAAAB", "BABABABA"]),
    noise=st.sampled_from([0.5, 5.0, 30.0]),
    missing=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_assignment_is_that_of_all_permutations(chains: str, noise: float, missing: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers = numbers_of(chains)
    r = len(numbers.asym_id)
    points = 15 * random.normal(size=(len(chains), 3))[numbers.asym_id - 1] + 3 * random.normal(size=(r, 3))
    predicted = points @ np.linalg.qr(random.normal(size=(3, 3)))[0] + noise * random.normal(size=(r, 3)) + 50
    truth, observed = copies_of(chains, points, random.random(r) >= missing)
    copies = best_copies(predicted, truth, observed, numbers)
    for letter in set(chains):
        taken = [int(copies[numbers.asym_id == 1 + place][0]) for place, each in enumerate(chains) if each == letter]
        assert sorted(taken) == list(range(len(taken)))
    counted = observed[copies, np.arange(r)]
    found = deviation(predicted[counted], truth[copies, np.arange(r)][counted])
    if chains.count("A") <= 4:
        expected = by_brute_force(chains, predicted, truth, observed) if len(chains) < 8 else found
        assert found <= expected * (1 + 1e-5) + 1e-5


def test_many_equal_chains_are_found_by_superposing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies of a ring are told apart by where the others are."""
    random = np.random.default_rng(0)
    chains = "A" * 9 + "B"
    numbers = numbers_of(chains)
    places = 30 * random.normal(size=(len(chains), 3))
    points = places[numbers.asym_id - 1] + 3 * random.normal(size=(len(numbers.asym_id), 3))
    order = [*random.permutation(9), 9]
    shuffled = np.concatenate([points[numbers.asym_id == 1 + place] for place in order])
    predicted = shuffled @ np.linalg.qr(random.normal(size=(3, 3)))[0] * [1, 1, 1]
    if np.linalg.det(np.linalg.lstsq(shuffled, predicted, rcond=None)[0]) < 0:
        predicted = -predicted
    truth, observed = copies_of(chains, points, np.ones(len(points), bool))
    monkeypatch.setattr(chain_permutation, "_all_assignments", None)
    copies = best_copies(predicted + 0.3 * random.normal(size=predicted.shape), truth, observed, numbers)
    assert [int(copies[numbers.asym_id == 1 + chain][0]) for chain in range(9)] == order[:9]


def test_a_copy_with_few_observed_atoms_does_not_win() -> None:
    points = np.random.default_rng(0).normal(size=(10, 3)) * 10
    truth, observed = copies_of("AA", points, np.ones(10, bool))
    observed[1, :4] = False
    observed[0, 6:] = False
    predicted = points + np.random.default_rng(1).normal(size=(10, 3))
    assert best_copies(predicted, truth, observed, numbers_of("AA")).tolist() == [0] * 5 + [1] * 5


def test_swapping_equal_chains_of_the_truth_changes_no_loss() -> None:
    batch = a_complex("ABAA", 24)
    outputs, config = outputs_of(batch), complexes(finetuning())
    positions, mask = random_truth(batch)
    expected = total_loss(outputs, batch, labels_of_complex(batch, positions, mask), config).terms()
    chains = [batch.asym_id[0] == number for number in (1, 3, 4)]
    without: list[float] = []
    for order in permutations(range(3)):
        swapped, swapped_mask = positions.clone(), mask.clone()
        for place, source in enumerate(order):
            swapped[0, chains[place]] = positions[0, chains[source]]
            swapped_mask[0, chains[place]] = mask[0, chains[source]]
        labels = labels_of_complex(batch, swapped, swapped_mask)
        found = total_loss(outputs, batch, labels, config).terms()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
        without.append(float(total_loss(outputs, batch, labels.of_own_chains(), config).weighted))
    assert len({round(loss, 3) for loss in without}) == 6


def test_all_labels_are_those_of_the_chosen_chains() -> None:
    batch = a_complex("AA", 40)
    positions, mask = random_truth(batch, observed=0.8)
    swapped, swapped_mask = (each.roll(20, 1) for each in (positions, mask))
    outputs = outputs_of(batch)
    found = permuted_labels(outputs.structure, batch, labels_of_complex(batch, positions, mask))
    again = permuted_labels(outputs.structure, batch, labels_of_complex(batch, swapped, swapped_mask))
    either = [
        labels_of_complex(batch, *given).of_own_chains() for given in ((positions, mask), (swapped, swapped_mask))
    ]
    is_swapped = not torch.equal(found.all_atom_positions, either[0].all_atom_positions)
    for name in type(found).__dataclass_fields__:
        expected = getattr(either[is_swapped], name)
        torch.testing.assert_close(getattr(found, name), expected, rtol=0, atol=0, msg=name)
        torch.testing.assert_close(getattr(again, name), expected, rtol=0, atol=0, msg=name)


def test_padding_is_of_no_chain_and_a_copy_with_few_atoms_does_not_win() -> None:
    random = np.random.default_rng(0)
    predicted = random.normal(size=(5, 3))
    asym_id = np.array([1, 1, 1, 1, 0])
    numbers = ChainNumbers(asym_id=asym_id, entity_id=asym_id, sym_id=asym_id)
    truth, observed = np.stack([predicted + random.normal(size=(5, 3)), predicted]), np.ones((2, 5), bool)
    observed[:, 4] = False
    # The second copy fits best, unless a single one of its atoms was observed, which fits anything.
    assert best_copies(predicted, truth, observed, numbers).tolist() == [1, 1, 1, 1, 0]
    observed[1, 1:] = False
    assert best_copies(predicted, truth, observed, numbers).tolist() == [0] * 5
