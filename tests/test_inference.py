"""Recycling: fresh draws, early stop, and a result that depends on the seed alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data_pipeline.errors import InputError
from data_pipeline.pipeline import Target, prepare
from helixfold.batch import Batch
from helixfold.execution.slabs import Slabs
from helixfold.execution.stages import Stages
from helixfold.execution.whole import Whole
from helixfold.inference import FoldingOptions, distance_change, fold, predict, recycle
from helixfold.model import confidence
from helixfold.model.outputs import Folded, Recycled
from helixfold.prediction import Prediction
from helixfold.presets import tiny
from tests.networks import random_batch, tiny_model


def folded(seed: int = 0, name: str = "target", **options: object) -> Prediction:
    features = prepare(Target(name=name, sequence="MKTAYIAKQRQISFVKSHFS")).features
    return fold(
        tiny_model(), Slabs(), features, tiny(), FoldingOptions(seed=seed, num_recycles=1, **options), stages=Stages()
    )


def test_the_seed_decides_everything() -> None:
    assert (folded(1).protein.atom_positions == folded(1).protein.atom_positions).all()
    assert (folded(1).protein.atom_positions != folded(2).protein.atom_positions).any()


def test_logits_are_there_if_they_are_asked_for_and_give_the_same_confidences() -> None:
    assert folded().logits is None
    prediction = folded(logits=True)
    assert prediction.logits is not None
    errors = torch.from_numpy(prediction.logits["aligned_error"])[None]
    pae, _ = confidence.predicted_aligned_error(errors)
    np.testing.assert_allclose(prediction.pae, pae[0], rtol=1e-5)
    assert abs(float(confidence.predicted_tm_score(errors, torch.ones(1, 20))) - prediction.ptm) < 1e-6
    np.testing.assert_allclose(prediction.plddt, confidence.plddt(torch.from_numpy(prediction.logits["lddt"])[None])[0])
    assert prediction.logits["distogram"].shape == (20, 20, 64)
    distances = torch.from_numpy(prediction.logits["distogram"]).softmax(-1) @ confidence.distance_values(64)
    assert prediction.distances is not None
    np.testing.assert_allclose(prediction.distances.expected, distances[..., 0], rtol=1e-5)
    np.testing.assert_allclose(prediction.distances.contact, distances[..., 1], rtol=1e-4)


def test_an_ensemble_of_draws_is_not_one_draw() -> None:
    assert (folded(num_ensemble=2).plddt != folded().plddt).any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_are_finite_and_in_range(dtype: str) -> None:
    prediction = folded(dtype=dtype)
    assert np.isfinite(prediction.protein.atom_positions).all()
    assert ((prediction.plddt > 0) & (prediction.plddt < 100)).all()
    assert 0 <= prediction.ptm <= 1
    assert prediction.protein.residue_index[0] == 1


def test_every_pass_gets_its_own_draw_and_the_result_before() -> None:
    model, seen = tiny_model(), []

    def step(draws: Sequence[Batch], previous: Recycled | None) -> Folded:
        seen.append((draws, previous))
        return model.fold(Whole(), draws, previous)

    draws = [[random_batch(seed=seed)] for seed in range(3)]
    with torch.no_grad():
        result = recycle(step, lambda cycle: draws[cycle], 2)
    assert [given for given, _ in seen] == draws
    assert seen[0][1] is None
    assert seen[2][1].pair.shape == (1, 13, 13, 32)
    assert (result.num_recycles, result.converged) == (2, False)


def test_distance_change_does_not_see_motion_or_padding() -> None:
    positions, mask = torch.randn(1, 6, 37, 3), torch.tensor([[1.0, 1, 1, 1, 1, 0]])
    turned = positions.flip(-1) * torch.tensor([1.0, 1.0, -1.0]) + 5
    turned[:, 5] += 100
    assert distance_change(positions, turned, mask) < 1e-3
    assert distance_change(positions, 2 * positions, mask) > 0.1


@pytest.mark.parametrize("wrong", [{"num_recycles": -1}, {"num_ensemble": 0}, {"dtype": "int8"}, {"seed": -1}])
def test_impossible_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="must"):
        replace(FoldingOptions(), **wrong)


def test_one_call_predicts_with_the_models_that_there_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path)
    target = Target(name="target", sequence="MKTAYIAKQR")
    (prediction,) = predict(target, options=FoldingOptions(num_recycles=0))
    assert (prediction.model, len(prediction.plddt)) == ("small", 10)
    assert "DEMONSTRATION" in prediction.notes[0]
    (again,) = predict(target, ["small"], options=FoldingOptions(num_recycles=0))
    assert (again.protein.atom_positions == prediction.protein.atom_positions).all()
    (random,) = predict(target, ["tiny"], options=FoldingOptions(num_recycles=0))
    assert "UNTRAINED" in random.notes[0]
