"""A network is overfitted to one peptide: the loss falls, frames lie on the truth, and the same seed does the same."""

import math
from pathlib import Path

import numpy as np
import pytest

from helixfold.analysis import metrics
from helixfold.training.overfit_one import Frame, OverfitRun, settings

PEPTIDE = Path(__file__).parents[2] / "examples/structures/strand_helix.pdb"


def overfitted(steps: int, every: int, *changes: str) -> tuple[OverfitRun, list[Frame]]:
    overfit = OverfitRun(PEPTIDE, settings().with_settings(list(changes)))
    return overfit, list(overfit.train(steps, every))


@pytest.mark.long  # the notebook itself is run, too
def test_a_peptide_takes_shape_in_sixty_steps() -> None:
    overfit, frames = overfitted(60, 5)
    assert [frame.step for frame in frames] == list(range(0, 61, 5))
    assert math.isnan(frames[0].loss)
    assert frames[-1].loss < 0.8 * frames[1].loss
    assert frames[0].lddt < 0.1
    assert frames[-1].lddt > 0.2
    predicted, true = (protein.positions_of("CA") for protein in (frames[-1].prediction.protein, overfit.truth))
    laid = math.sqrt(np.square(predicted - true).sum(-1).mean())
    assert laid == pytest.approx(metrics.rmsd(predicted, true), rel=1e-3)
    assert "overfitted" in frames[-1].prediction.notes[0]


def test_the_seed_decides_everything_and_learning_goes_on_where_it_stopped() -> None:
    _, at_once = overfitted(4, 2, "example.max_passes=2")
    overfit, first = overfitted(2, 2, "example.max_passes=2")
    _, last = overfit.train(2, 2)
    assert last.step == 4
    assert (first[-1].loss, last.loss) == (at_once[1].loss, at_once[2].loss)
    assert (last.prediction.protein.atom_positions == at_once[-1].prediction.protein.atom_positions).all()
    _, other = overfitted(2, 2, "seed=1")
    assert other[-1].loss != first[-1].loss


def test_the_true_distances_are_those_of_the_file() -> None:
    overfit = OverfitRun(PEPTIDE)
    assert overfit.truth_distances.shape == (21, 21)
    assert overfit.features.sequence == "TVTVSVNGDSAEEAAKALAAG"
    assert np.nanmax(overfit.truth_distances) < 40
