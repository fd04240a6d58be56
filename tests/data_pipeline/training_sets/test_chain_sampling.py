"""Chains are drawn with AlphaFold's probabilities, by nothing but seed, step, rank and place."""

from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.training_sets.chain_sampling import (
    ChainSampler,
    ChainSelection,
    StreamUse,
    acceptance,
    num_passes,
    random_stream,
)
from data_pipeline.training_sets.index import IndexEntry
from tests.data_pipeline.training_sets.memory_store import entry

MIXED = (
    entry("a", cluster="one", length=100),
    entry("b", cluster="one", length=400),
    entry("c", cluster="one", length=2000),
    entry("d", cluster="two", length=300),
    entry("p", cluster="one", length=256, distilled=True),
    entry("q", cluster="three", length=512, distilled=True),
)
# Weight: acceptance over cluster size. Predictions have clusters of their own kind.
EXPERIMENTAL = np.array([256 / 512 / 3, 400 / 512 / 3, 1 / 3, 300 / 512])
PREDICTED = np.array([0.5, 1.0])


def draws(sampler: ChainSampler, number: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.array([sampler.draw(rng) for _ in range(number)])


def probabilities(sampler: ChainSampler, count: int) -> np.ndarray:
    """The probability of each of `count` chains at a single draw, by the weights that draws use."""
    found = np.zeros(count)
    for share, lottery in sampler._lotteries:
        found[lottery.chains] = share * np.diff(lottery.cumulative, prepend=0) / lottery.cumulative[-1]
    return found


def test_lengths_are_accepted_with_the_published_probabilities() -> None:
    found = acceptance(np.array([1, 256, 257, 384, 512, 5000]))
    np.testing.assert_array_equal(found, [0.5, 0.5, 257 / 512, 0.75, 1, 1])


def test_probabilities_are_those_of_clusters_lengths_and_mixing() -> None:
    found = probabilities(ChainSampler(MIXED, ChainSelection()), len(MIXED))
    np.testing.assert_allclose(found[:4], 0.25 * EXPERIMENTAL / EXPERIMENTAL.sum())
    np.testing.assert_allclose(found[4:], 0.75 * PREDICTED / PREDICTED.sum())


def test_chains_are_drawn_as_often_as_their_probabilities_say() -> None:
    sampler, number = ChainSampler(MIXED, ChainSelection()), 20000
    counts = np.bincount(draws(sampler, number), minlength=6)
    expected = number * probabilities(sampler, 6)
    assert ((counts - expected) ** 2 / expected).sum() < 20.5  # chi-square, 5 degrees of freedom, p = 0.001


def test_without_predictions_all_examples_are_experiments() -> None:
    sampler = ChainSampler(MIXED[:4], ChainSelection())
    np.testing.assert_allclose(probabilities(sampler, 4), EXPERIMENTAL / EXPERIMENTAL.sum())
    assert set(draws(sampler, 300)) == {0, 1, 2, 3}


def test_chains_with_an_alignment_have_the_share_that_is_asked_for() -> None:
    aligned = [replace(each, msa_rows=16) if each.name in "bd" else each for each in MIXED]
    selection = ChainSelection(distillation_probability=0.5, aligned_probability=0.8)
    found = probabilities(ChainSampler(aligned, selection), len(aligned))
    np.testing.assert_allclose([found[[1, 3]].sum(), found[[0, 2]].sum(), found[4:].sum()], [0.4, 0.1, 0.5])
    # A cluster has its one chance among the chains of each kind.
    np.testing.assert_allclose(found[1] / found[3], 400 / 300)
    counts = np.bincount(draws(ChainSampler(aligned, selection), 2000), minlength=6)
    np.testing.assert_allclose(counts[[1, 3]].sum() / 2000, 0.4, atol=0.04)
    for all_alike in (MIXED, [replace(each, msa_rows=16) for each in MIXED]):
        same = probabilities(ChainSampler(all_alike, replace(selection, aligned_probability=None)), len(all_alike))
        np.testing.assert_array_equal(probabilities(ChainSampler(all_alike, selection), len(all_alike)), same)


@pytest.mark.parametrize(("probability", "kinds"), [(0.0, {0, 1, 2, 3}), (1.0, {4, 5})])
def test_one_kind_may_be_drawn_alone(probability: float, kinds: set[int]) -> None:
    sampler = ChainSampler(MIXED, ChainSelection(distillation_probability=probability))
    assert set(draws(sampler, 300)) == kinds
    assert probabilities(sampler, 6).sum() == pytest.approx(1)


def test_a_single_chain_is_always_drawn() -> None:
    assert set(draws(ChainSampler(MIXED[:1], ChainSelection()), 20)) == {0}


def test_limits_leave_chains_out_and_clusters_shrink_with_them() -> None:
    entries = (
        replace(MIXED[0], release_date=date(2018, 5, 1)),
        replace(MIXED[1], resolution=9.0),
        replace(MIXED[2], release_date=None),
        replace(MIXED[3], resolution=9.5),
        replace(MIXED[3], name="nmr", cluster="four", resolution=None),
        MIXED[4],
    )
    selection = ChainSelection(released_until=date(2018, 4, 30), max_resolution=9.0)
    found = probabilities(ChainSampler(entries, selection), len(entries))
    b, nmr = 400 / 512, 300 / 512
    np.testing.assert_allclose(found, [0, 0.25 * b / (b + nmr), 0, 0, 0.25 * nmr / (b + nmr), 0.75])


@pytest.mark.parametrize(
    ("entries", "selection", "message"),
    [
        ((), ChainSelection(), r"no experimental chains \(0 chains in total\)"),
        (
            MIXED[4:],
            ChainSelection(),
            r"no experimental chains \(2 chains in total\); add some, or set distillation_prob",
        ),
        (
            MIXED,
            ChainSelection(released_until=date(1990, 1, 1)),
            r"none of the 4 experimental chains meets the criteria \(released until 1990-01-01\); allow more",
        ),
        (MIXED, ChainSelection(max_resolution=1.0), r"none of the 4 .* \(resolution at most 1\.0\)"),
        (MIXED[:4], ChainSelection(distillation_probability=1.0), "no predicted chains"),
    ],
)
def test_sets_from_which_nothing_can_be_drawn_are_refused(
    entries: tuple[IndexEntry, ...], selection: ChainSelection, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ChainSampler(entries, selection)


@pytest.mark.parametrize("settings", [{"distillation_probability": 1.5}, {"max_resolution": 0.0}])
def test_impossible_selections_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        ChainSelection(**settings)


@given(entries=st.lists(st.tuples(st.integers(1, 900), st.integers(0, 5)), min_size=1, max_size=40))
def test_a_cluster_of_equal_chains_has_the_chance_of_one(entries: list[tuple[int, int]]) -> None:
    chains = tuple(entry(str(i), cluster=str(c), length=n) for i, (n, c) in enumerate(entries))
    equal = tuple(replace(chain, length=400) for chain in chains)
    found = probabilities(ChainSampler(equal, ChainSelection()), len(equal))
    clusters = {chain.cluster for chain in equal}
    for cluster in clusters:
        inside = [chain.cluster == cluster for chain in equal]
        assert found[inside].sum() == pytest.approx(1 / len(clusters))
    assert probabilities(ChainSampler(chains, ChainSelection()), len(chains)).sum() == pytest.approx(1)


def test_streams_are_a_function_of_what_they_are_for() -> None:
    keys = [
        (seed, use, step, rank, place)
        for seed in (0, 1, 2**40)
        for use in StreamUse
        for step in (0, 1, 2**31)
        for rank in (0, 1)
        for place in (0, 1)
    ]
    first = {key: random_stream(*key).integers(2**63) for key in keys}
    assert len(set(first.values())) == len(keys)
    assert {key: random_stream(*key).integers(2**63) for key in reversed(keys)} == dict(reversed(first.items()))


@pytest.mark.parametrize(("seed", "step"), [(-1, 0), (2**128, 0), (0, -1), (0, 2**32)])
def test_numbers_that_would_share_a_stream_are_refused(seed: int, step: int) -> None:
    with pytest.raises(ValueError, match="must be at least 0 and below"):
        random_stream(seed, StreamUse.CHOICE, step)


def test_passes_are_uniform_and_a_function_of_seed_and_step() -> None:
    passes = [num_passes(5, step, 4) for step in range(4000)]
    assert passes == [num_passes(5, step, 4) for step in range(4000)]
    counts = np.bincount(passes, minlength=5)
    assert counts[0] == 0
    assert ((counts[1:] - 1000) ** 2 / 1000).sum() < 16.3  # chi-square, 3 degrees of freedom, p = 0.001
    assert passes[:200] != [num_passes(6, step, 4) for step in range(200)]
    assert {num_passes(5, step, 1) for step in range(20)} == {1}
