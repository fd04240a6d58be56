"""The picture of an evaluation has every target's scores, read back from the axes."""

import numpy as np
import pytest

from helixfold.report.evaluation_plot import evaluation_plot
from tests.support.evaluated import evaluated
from tests.support.figures import figure_of


def test_targets_stand_at_their_confidence_and_in_the_order_of_their_scores() -> None:
    results = [evaluated("b", 0.3, plddt=40), evaluated("a", 0.7, plddt=90), evaluated("c", 0.5, plddt=60)]
    results.insert(0, evaluated("c", 0.9, rank=1))  # another rank, which is not drawn
    confidence, spread = figure_of(lambda: evaluation_plot(results)).axes
    (points,) = confidence.collections
    assert sorted(points.get_offsets().tolist()) == [pytest.approx(pair) for pair in ([40, 30], [60, 50], [90, 70])]
    assert confidence.get_title().startswith("Each target, Pearson's r = 0.99")
    assert (confidence.get_xlabel(), confidence.get_ylabel()) == ("pLDDT", "lDDT-CA x 100")
    for line, more, name in zip(spread.lines, (0, 0.02, 0.03), ("lDDT-CA", "TM-score", "GDT-TS"), strict=True):
        assert list(line.get_xdata()) == [1, 2, 3]
        np.testing.assert_allclose(line.get_ydata(), [0.7 + more, 0.5 + more, 0.3 + more])
        assert line.get_label() == f"{name} (mean {0.5 + more:.2f})"
    assert [label.get_text() for label in spread.get_xticklabels()] == ["a_ref", "c_ref", "b_ref"]


def test_of_two_targets_the_residues_are_drawn() -> None:
    results = [evaluated("a", 0.8, plddt=90), evaluated("b", 0.4, plddt=60), evaluated("x", 0.1, plddt=None)]
    confidence, _ = figure_of(lambda: evaluation_plot(results)).axes
    # Residues that a prediction lacks have no place.
    offsets = np.ma.filled(confidence.collections[0].get_offsets(), np.nan)
    expected = [[90, 50], [np.nan] * 2, [45, 40], [60, 50], [np.nan] * 2, [30, 20]]
    np.testing.assert_allclose(offsets, expected)
    assert confidence.get_title().startswith("Each residue")


def test_many_targets_are_sorted_score_by_score() -> None:
    scores = np.random.default_rng(0).permutation(30) / 40
    _, spread = figure_of(lambda: evaluation_plot([evaluated(f"t{s}", float(s)) for s in scores])).axes
    np.testing.assert_allclose(spread.lines[0].get_ydata(), sorted(scores, reverse=True))
    assert spread.get_xlabel() == "Targets, from the best to the worst"
