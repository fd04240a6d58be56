"""A training run that is killed before or after any change of a file goes on to the bits of an unbroken run."""

from pathlib import Path

import pytest
from jaxtyping import config

from helixfold.training.checkpoint_files import remove_leftovers
from tests.support.interruptions import Event, State, check_kills, count_changes, interrupted, temporary_files
from tests.training.command_runs import STEP, Run
from tests.training.ranks import train

pytestmark = pytest.mark.long

SHORT = {"steps": 4}


@pytest.fixture(autouse=True)
def shapes_checked_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "jaxtyping_disable", config.jaxtyping_disable)  # which the command changes


@pytest.fixture
def run(store: Path, tmp_path: Path) -> Run:
    return Run(store=store, directory=tmp_path / "run")


def result(run: Run) -> object:
    """What the run came to; no hidden file is left but the lock, and no checkpoint is set aside as damaged."""
    names = {path.name for path in run.checkpoints.iterdir()}
    assert names == {".lock", "step_00000002", "step_00000004"}, names
    return run.result()


def test_a_run_survives_a_kill_at_every_step(run: Run) -> None:
    count = check_kills(
        run.directory, lambda: train(run.arguments(**SHORT)), lambda _: result(run), work=STEP, limit=40
    )
    assert count > 8


# An object that is interrupted while it is made has nobody to close it; the process ends.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_ctrl_c_saves_the_steps_that_are_made(run: Run) -> None:
    changes = count_changes(run.directory, lambda: train(run.arguments(**SHORT)))
    expected = run.result()
    for index in range(1, changes + 1, max(1, changes // 8)):
        State(label="empty", content={}, times={}).restore(run.directory)
        with interrupted(run.directory, Event(index=index)):
            assert train(run.arguments(**SHORT)) in (0, 130), index
        assert train(run.arguments(**SHORT)) == 0, index
        assert run.result() == expected, index
        assert not temporary_files(run.directory), index


def test_leftovers_of_every_kind_are_removed_or_undone(tmp_path: Path) -> None:
    """Twice gives what once gives, so that a kill while leftovers are removed does no harm."""
    (tmp_path / ".step_00000002.0123abcd.replaced").mkdir()
    (tmp_path / ".step_00000002.0123abcd.replaced" / "manifest.json").write_text("{}")
    (tmp_path / ".step_00000004.0123abcd.partial").mkdir()
    (tmp_path / ".step_00000001.0123abcd.deleted").mkdir()
    for _ in range(2):
        remove_leftovers(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["step_00000002"]
