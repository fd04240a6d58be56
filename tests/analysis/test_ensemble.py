"""Scores of many pairs at once are those of one after the other; conformations and fluctuations are found again."""

import numpy as np
import pytest

from helixfold.analysis.ensemble import (
    conformations,
    fluctuations,
    medoid,
    nearest,
    pair_scores,
    scores_to,
    tm_map,
)
from helixfold.analysis.metrics import rmsd, superposed_scores
from tests.analysis.walks import turned, walk


def hinged(points: np.ndarray, angle: float) -> np.ndarray:
    """The second half turned about the residue in the middle."""
    half = len(points) // 2
    moved = points.copy()
    cosine, sine = np.cos(angle), np.sin(angle)
    rotation = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])
    moved[half:] = (points[half:] - points[half]) @ rotation.T + points[half]
    return moved


@pytest.mark.parametrize("residues", [12, 24, 76, 150])
def test_scores_are_those_of_one_pair_after_the_other(residues: int) -> None:
    rng = np.random.default_rng(residues)
    true = walk(rng, residues)
    noise = np.geomspace(0.1, 8, 6)[:, None, None]
    changed = np.concatenate(
        [
            true + noise * rng.normal(size=(6, residues, 3)),
            [hinged(true, angle) for angle in (0.3, 1, 2)],
            [walk(rng, residues)],
        ]
    )
    changed = np.stack([turned(rng, each) for each in changed])
    found = scores_to(changed, true)
    exact = [superposed_scores(each, true) for each in changed]
    np.testing.assert_allclose(found.rmsd, [rmsd(each, true) for each in changed], rtol=1e-9)
    expected = np.array([each.tm_score for each in exact])
    # Of short chains, better superpositions are found.
    assert (found.tm_score - expected).min() > -0.03
    assert np.abs(found.tm_score - expected)[expected > 0.5].max() < (0.01 if residues >= 40 else 0.2)
    longer = scores_to(changed, true, length=2 * residues).tm_score
    expected = np.array([superposed_scores(each, true, length=2 * residues).tm_score for each in changed])
    assert (longer - expected).min() > -0.03


def test_a_map_has_the_score_of_each_pair_however_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    points = walk(rng, 30) + rng.normal(size=(7, 30, 3)) * np.arange(7)[:, None, None]
    whole = tm_map(points)
    monkeypatch.setattr("helixfold.analysis.ensemble._BATCH_ELEMENTS", 200)
    np.testing.assert_allclose(tm_map(points), whole)
    np.testing.assert_array_equal(whole, whole.T)
    np.testing.assert_array_equal(whole.diagonal(), 1)
    assert whole[2, 5] == pytest.approx(pair_scores(points[[2]], points[[5]]).tm_score[0])
    assert whole[0, 1] > whole[0, 3] > whole[0, 6]


def test_conformations_are_found_and_the_largest_is_first() -> None:
    rng = np.random.default_rng(1)
    states = [walk(rng, 60) for _ in range(3)]
    truth = np.array([1, 0, 0, 2, 0, 1, 0, 0])
    points = np.stack([turned(rng, states[state] + 0.3 * rng.normal(size=(60, 3))) for state in truth])
    scores = tm_map(points)
    labels, order = conformations(scores)
    np.testing.assert_array_equal(labels, truth)
    assert sorted(order) == list(range(8))
    np.testing.assert_array_equal(labels[order], np.sort(labels))
    found, like = nearest(points, np.stack([states[2], states[0], states[1]]))
    np.testing.assert_array_equal(found, np.array([1, 2, 0])[truth])
    assert like.min() > 0.9
    assert medoid(scores) in np.flatnonzero(truth == 0)
    np.testing.assert_array_equal(conformations(np.ones((1, 1)))[0], [0])


def test_fluctuations_are_about_the_mean_whatever_the_place() -> None:
    rng = np.random.default_rng(2)
    width = np.linspace(0.2, 2, 40)
    mean = walk(rng, 40) * 2
    points = np.stack([turned(rng, mean + width[:, None] * rng.normal(size=(40, 3))) for _ in range(300)])
    # Each of three coordinates has this width; superposing adds some to residues far from the middle that hardly move.
    found = fluctuations(points)
    np.testing.assert_allclose(found[10:], np.sqrt(3) * width[10:], rtol=0.12)
    assert found[:10].max() < found[15:].min()
    assert fluctuations(points[:1]).max() == pytest.approx(0, abs=1e-9)
