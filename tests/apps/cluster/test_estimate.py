"""A pool takes the targets that fit with every model of a run."""

from types import SimpleNamespace
from typing import Any

import pytest

from helixfold.apps.cluster import estimate
from helixfold.apps.cluster.site import Pool
from helixfold.model.presets import preset
from helixfold.planning.estimate import Prediction

POOL = Pool(name="fold", memory=2**32, cores=4)
PRESETS = [preset(name) for name in ("tiny", "tiny_multimer", "small")]
FITTING = (800, 600, 900)  # residues, by model


def test_the_longest_target_fits_with_every_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def longest(work: Prediction, _: object) -> int:
        return FITTING[[each.model for each in PRESETS].index(work.model)]

    def length(*models: int) -> int:
        options: Any = {"dtype": "float32", "ensemble": 1, "templates": True, "iterations": [1] * len(models)}
        return estimate.estimate_pool(POOL, [PRESETS[number] for number in models], **options).longest

    monkeypatch.setattr(estimate, "max_residues", longest)
    monkeypatch.setattr(estimate, "estimate", lambda *_: SimpleNamespace(seconds=1.0))
    assert [length(0), length(1), length(2)] == [800, 600, 900]
    assert length(0, 1, 2) == length(2, 1, 0) == 600
    assert length(2, 0) == 800


def test_seconds_of_a_target_are_those_of_its_models_and_grow_with_the_cube_of_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seconds(work: Prediction, _: object) -> SimpleNamespace:
        n = work.size.residues
        return SimpleNamespace(seconds=work.recycling_iterations * (0.5 + 2e-3 * n + 3e-5 * n**2 + 4e-8 * n**3))

    monkeypatch.setattr(estimate, "max_residues", lambda *_: 1000)
    monkeypatch.setattr(estimate, "estimate", seconds)
    pool = estimate.estimate_pool(POOL, PRESETS[:2], dtype="float32", ensemble=1, templates=True, iterations=[1, 4])
    for residues in (10, 300, 2500):
        # A second for the files of each target.
        expected = 1 + 5 * (0.5 + 2e-3 * residues + 3e-5 * residues**2 + 4e-8 * residues**3)
        assert pool.seconds(residues) == pytest.approx(expected, rel=1e-6)
