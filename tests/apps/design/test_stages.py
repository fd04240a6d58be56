"""Greedy steps never raise the loss that they select by, and designs end early for BindCraft's reasons."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from helixfold.apps.design import task
from helixfold.apps.design.designer import ENDED, Designer
from helixfold.apps.design.losses import WeightedLoss
from helixfold.apps.design.options import DesignOptions
from helixfold.apps.design.trajectory import Trajectory
from tests.apps.design.test_designer import LETTERS, ready

STAGES = DesignOptions(logits_steps=3, screen_steps=2, soft_steps=1, hard_steps=1, greedy_steps=2)


def test_screening_is_a_stage_of_its_own() -> None:
    steps = list(STAGES.schedule())
    assert [step.stage for step in steps] == ["screen", "screen", "logits", "soft", "hard", "greedy", "greedy"]
    assert [step.mixture.soft for step in steps[:3]] == [0.45, 0.9, 1.0]
    assert not steps[-1].dropout
    # Fewer steps than the screening has are all screened.
    assert [step.stage for step in replace(STAGES, logits_steps=1).schedule()][:2] == ["screen", "soft"]


@pytest.mark.integration
def test_greedy_steps_never_raise_the_loss_that_they_select_by() -> None:
    options = DesignOptions(
        logits_steps=0, soft_steps=0, hard_steps=1, greedy_steps=6, greedy_share=0.5, excluded="C", dropout=False
    )
    designer = Designer(task.hallucination(6), [ready()], options)
    trajectory = designer.advance(designer.begin(0), 0)
    judged = [designer.evaluated(str(trajectory.best_sequence), trajectory, 0).loss]
    changed = set()
    while not designer.is_finished(trajectory):
        before = str(trajectory.best_sequence)
        trajectory = designer.advance(trajectory, 0)
        after = str(trajectory.best_sequence)
        # A mutant differs by one residue.
        assert sum(a != b for a, b in zip(before, after, strict=True)) <= 1
        changed.add(after)
        judged.append(trajectory.losses[-1]["loss"])
        assert designer.evaluated(after, trajectory, 0).loss == pytest.approx(judged[-1], rel=1e-5)
    assert all(later <= earlier + 1e-6 for earlier, later in pairwise(judged))
    assert len(changed) > 1
    assert "C" not in "".join(changed)


def test_mutations_go_to_residues_of_low_plddt(monkeypatch: pytest.MonkeyPatch) -> None:
    options = DesignOptions(logits_steps=0, soft_steps=0, hard_steps=0, greedy_steps=1, greedy_share=1.0)
    tried: list[str] = []

    def loss(made: object) -> torch.Tensor:
        tried.append("".join(LETTERS[kind] for kind in made.sequence.hard[0].argmax(-1).tolist()))  # type: ignore[attr-defined]
        return torch.zeros(1)

    own = {"own": WeightedLoss(loss=loss, weight=1.0)}
    designer = Designer(replace(task.hallucination(8), losses=own), [ready()], options)
    sure = torch.full((1, 8), 100.0)
    sure[0, 3] = 20.0
    monkeypatch.setattr("helixfold.apps.design.designer.confidence.plddt", lambda logits: sure)
    designer.advance(designer.begin(0), 0)
    first, *mutants = tried
    assert len(mutants) == 8
    places = [index for mutant in mutants for index in range(8) if mutant[index] != first[index]]
    assert places == [3] * 8


def history(plddt: list[float], losses: list[float], sheet: float = 0.0) -> Trajectory:
    steps = tuple({"loss": loss, "plddt": 1 - sure, "sheet": sheet} for sure, loss in zip(plddt, losses, strict=True))
    nothing = np.zeros((5, 20))
    return Trajectory(numbers=nothing, mean=nothing, square=nothing, step=len(steps), losses=steps)


@pytest.mark.parametrize(
    ("plddt", "losses", "ended"),
    [
        ([0.9], [1.0], None),  # in the middle of a stage
        ([0.9, 0.6], [1.0, 2.0], None),  # the best step counts, not the last
        ([0.9, 0.6], [2.0, 1.0], "screen"),
        ([0.9, 0.9, 0.1], [1.0, 1.0, 1.0], None),  # the rest of the logits is not judged
        ([0.9, 0.9, 0.9, 0.65], [1.0] * 4, "soft"),
        ([0.9, 0.9, 0.9, 0.9, 0.5], [1.0] * 5, "hard"),
        ([0.9, 0.9, 0.9, 0.9, 0.9, 0.1], [1.0] * 6, None),
    ],
)
def test_a_stage_of_low_plddt_ends_a_design(plddt: list[float], losses: list[float], ended: str | None) -> None:
    designer = Designer(task.hallucination(5), [ready()], STAGES)
    trajectory = history(plddt, losses)
    assert designer.ended(trajectory) == (ENDED[ended] if ended else None)  # type: ignore[index]
    assert designer.is_finished(trajectory) == (ended is not None)
    assert Designer(task.hallucination(5), [ready()], replace(STAGES, screen_steps=0)).ended(trajectory) is None


def test_sheets_have_more_steps_and_iterations() -> None:
    options = replace(STAGES, sheet_recycles=3, sheet_logits_steps=1, sheet_soft_steps=2)
    designer = Designer(task.hallucination(5), [ready()], options)
    flat, sheet = (history([0.9, 0.9], [1.0, 2.0], sheet=share) for share in (15.0, 15.1))
    assert [len(designer.steps_of(each)) for each in (flat, sheet)] == [7, 10]
    assert [designer._recycles(each) for each in (flat, sheet)] == [0, 3]
    # Before the last screening step, too, the best step counts.
    assert [step.stage for step in designer.steps_of(sheet)].count("soft") == 3


@pytest.mark.integration
def test_screening_steps_record_the_share_of_strands() -> None:
    designer = Designer(task.hallucination(6), [ready()], replace(STAGES, sheet_recycles=0))
    trajectory = designer.advance(designer.begin(0), 0)
    assert 0 <= trajectory.losses[0]["sheet"] <= 100
    plain = Designer(task.hallucination(6), [ready()], STAGES)
    assert "sheet" not in plain.advance(plain.begin(0), 0).losses[0]
