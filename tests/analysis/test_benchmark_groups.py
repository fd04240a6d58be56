"""Means of a benchmark by length and alignment depth, with intervals over targets."""

from dataclasses import replace

import numpy as np
import pytest

from helixfold.analysis.benchmark_groups import TargetSize, grouped
from helixfold.analysis.complexes import ComplexComparison
from helixfold.analysis.evaluation import Evaluated
from helixfold.analysis.intervals import mean
from helixfold.analysis.scores import ResidueScores, Scores


def evaluated(target: str, reference: str, score: float, rank: int = 0) -> Evaluated:
    none = np.zeros(0, np.int64)
    scores = Scores(
        predicted_chain="A",
        reference_chain="A",
        residues=50,
        compared=50,
        identity=1.0,
        lddt=score,
        lddt_ca=score,
        tm_score=score,
        gdt_ts=score,
        gdt_ha=score,
        rmsd=1.0,
        plddt=None,
    )
    residues = ResidueScores(
        number=none,
        letters="",
        present=none.astype(bool),
        predicted_number=none,
        lddt=none.astype(float),
        lddt_ca=none.astype(float),
        plddt=None,
    )
    return Evaluated(target=target, rank=rank, reference=reference, by_sequence=False, scores=scores, residues=residues)


def complex_of(dockq: float | None) -> ComplexComparison:
    return ComplexComparison(
        chains=(("A", "A"), ("B", "B")),
        reference_chains=2,
        residues=20,
        compared=20,
        dockq=dockq,
        interface_lddt=dockq,
        tm_score=0.7,
        rmsd=1.0,
        interfaces=(),
    )


def test_targets_are_in_the_classes_of_their_length_and_depth() -> None:
    results = [evaluated("a", "a", 0.2), evaluated("b", "b", 0.4), evaluated("c", "c-1", 0.6), evaluated("c", "c-2", 1)]
    sizes = {
        "a": TargetSize(residues=100, rows=1),
        "b": TargetSize(residues=101, rows=30),
        "c": TargetSize(residues=401, rows=1001),
    }
    groups = {(group.by, group.label): group for group in grouped(results, sizes)}
    assert list(groups) == [
        ("all", "all"),
        ("residues", "1 to 100"),
        ("residues", "101 to 200"),
        ("residues", "over 400"),
        ("alignment rows", "1"),
        ("alignment rows", "2 to 30"),
        ("alignment rows", "over 1,000"),
    ]
    assert (groups["all", "all"].targets, groups["all", "all"].structures) == (3, 4)
    assert groups["all", "all"].means["tm_score"].value == pytest.approx(0.55)
    assert groups["residues", "over 400"].means["lddt"].value == pytest.approx(0.8)


def test_complexes_have_means_of_their_own_by_number_of_chains() -> None:
    dimers = [
        replace(evaluated(name, name, 0.2), complex=complex_of(0.2 + score)) for name, score in (("b", 0), ("c", 0.4))
    ]
    results = [evaluated("a", "a", 0.9), *dimers, replace(evaluated("d", "d", 0.5), complex=complex_of(None))]
    sizes = {
        name: TargetSize(residues=50, rows=1, chains=count) for name, count in zip("abcd", (1, 2, 2, 5), strict=True)
    }
    groups = {(group.by, group.label): group for group in grouped(results, sizes)}
    assert [label for by, label in groups if by == "chains"] == ["1", "2", "over 3"]
    assert groups["chains", "1"].complex_means == {}
    assert groups["chains", "2"].complex_means["dockq"].value == pytest.approx(0.4)
    # A complex without an interface has no DockQ, but a TM-score.
    assert list(groups["chains", "over 3"].complex_means) == ["tm_score"]
    assert groups["all", "all"].complex_means["dockq"].value == pytest.approx(0.4)


def test_only_the_best_prediction_of_a_target_counts() -> None:
    results = [evaluated("a", "a", 0.9, rank=1), evaluated("a", "a", 0.3)]
    (everything, *_) = grouped(results, {"a": TargetSize(residues=10, rows=5)})
    assert everything.means["gdt_ts"].value == pytest.approx(0.3)


def test_domains_of_one_target_are_drawn_together() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0.5, 0.1, 30)
    alone = mean(values.tolist())
    # Three equal domains of each target say no more than one.
    together = mean(np.repeat(values, 3).tolist(), np.repeat(np.arange(30), 3).tolist())
    assert (together.value, together.low, together.high) == pytest.approx(
        (alone.value, alone.low, alone.high), abs=0.004
    )
    as_if_independent = mean(np.repeat(values, 3).tolist())
    assert as_if_independent.high - as_if_independent.low < 0.7 * (alone.high - alone.low)


def test_targets_with_many_values_count_as_often_in_resamples_as_in_the_mean() -> None:
    # One target of 100 domains and 20 of one: the mean of targets' means would lie near 0.
    values, targets = [1.0] * 100 + [0.0] * 20, [0] * 100 + list(range(1, 21))
    found = mean(values, targets)
    assert found.value == pytest.approx(100 / 120)
    # Without the large target a resample's mean is 0; with one, two or five copies of it, as follows.
    possible = [100 * copies / (100 * copies + 21 - copies) for copies in range(8)]
    for end in (found.low, found.high):
        assert min(abs(end - each) for each in possible) < 1e-9
    assert found.high > found.value


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(100):
        effects = np.repeat(rng.normal(0.5, 0.1, 40), 2)
        found = mean((effects + rng.normal(0, 0.02, 80)).tolist(), np.repeat(np.arange(40), 2).tolist())
        covered += found.low <= 0.5 <= found.high
    assert 88 <= covered <= 99
