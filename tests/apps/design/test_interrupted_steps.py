"""Designs that are interrupted before or after any change of a file go on to those of an unbroken run."""

from collections.abc import Callable
from pathlib import Path

import pytest
from jaxtyping import config

from helixfold.apps.design import run as design_run
from helixfold.cli.main import main
from helixfold.model.presets import tiny
from helixfold.weights.alphafold import from_state_dict
from helixfold.weights.npz import write_npz
from helixfold.weights.untrained import untrained_model
from tests.support.interruptions import State, check_interruptions, check_kills
from tests.support.run_values import values

pytestmark = pytest.mark.long

ADVANCE = "helixfold.apps.design.designer:Designer.advance"


@pytest.fixture(autouse=True)
def saved_after_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a design is saved after each step, not after some time; shapes are checked elsewhere."""
    monkeypatch.setattr(design_run, "_SAVE_EVERY", -1.0)
    monkeypatch.setattr(config, "jaxtyping_disable", True)


@pytest.fixture
def design(tmp_path: Path) -> Callable[..., Callable[[], int]]:
    other = tmp_path / "params_tiny.npz"
    write_npz(other, from_state_dict(untrained_model(tiny().model, seed=9).state_dict(), tiny().model))
    steps = ["--models", "tiny", "--logits-steps", "2", "--soft-steps", "0", "--hard-steps", "1"]
    checks = ["--check-models", "tiny", "--check-weights", str(other)]
    words = ["design", "hallucination", "--length", "6", "--designs", "2", *steps, *checks]
    return lambda *options: lambda: main([*words, *options, "--output", str(tmp_path / "out")])


def test_designs_survive_a_kill_at_every_step(design: Callable[..., Callable[[], int]], tmp_path: Path) -> None:
    assert check_kills(tmp_path / "out", design(), values, work=ADVANCE) > 8


def test_ctrl_c_at_every_step_leaves_no_temporary_file(
    design: Callable[..., Callable[[], int]], tmp_path: Path
) -> None:
    check_interruptions(tmp_path / "out", design(), values, limit=30)


def test_designs_of_other_settings_are_never_taken_for_those_of_a_killed_run(
    design: Callable[..., Callable[[], int]], tmp_path: Path
) -> None:
    assert design("--seed", "3")() == 0
    other = State.of(tmp_path / "out", "other")
    State(label="empty", content={}, times={}).restore(tmp_path / "out")
    assert design()() == 0
    fresh = values(tmp_path / "out")
    other.restore(tmp_path / "out")
    check_kills(tmp_path / "out", design("--overwrite"), values)
    assert values(tmp_path / "out") == fresh
