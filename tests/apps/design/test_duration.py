"""The estimate of a trajectory counts its steps, mutants and predictions."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from helixfold.apps.design import duration
from helixfold.apps.design.options import DesignOptions


def test_steps_mutants_and_predictions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    options = DesignOptions(logits_steps=75, soft_steps=45, hard_steps=5, greedy_steps=15, greedy_share=0.01)
    task = SimpleNamespace(chains=[SimpleNamespace(placeholder="GG")])

    def designer(step: float, prediction: float) -> Any:
        own = SimpleNamespace(is_free=torch.ones(1, 120, dtype=torch.bool))
        return SimpleNamespace(
            options=options,
            inputs=[own],
            task=task,
            begin=lambda number: None,
            advance=lambda trajectory, number: step,
            evaluated=lambda letters, trajectory, number: prediction,
        )

    monkeypatch.setattr(duration, "_seconds", lambda action, designer: cast("float", action()))
    complexes, alone = [designer(0, 2.0), designer(0, 3.0)], [designer(0, 0.5), designer(0, 0.5)]
    found = duration.estimated(designer(10.0, 4.0), complexes, alone, 20)
    # 125 steps with gradients; each greedy step predicts the sequence and two mutants of its 120 residues.
    assert found.design == pytest.approx(125 * 10 + (15 * 3 + 1) * 4)
    assert found.checks == pytest.approx(20 * (2 + 3 + 0.5 + 0.5))


def test_a_call_that_prepares_kernels_or_is_delayed_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([9.0, 2.0, 5.0])
    monkeypatch.setattr(duration, "mean_seconds", lambda action, device: next(seconds))
    assert duration._seconds(lambda: None, cast("Any", SimpleNamespace(device="cpu"))) == 2.0
