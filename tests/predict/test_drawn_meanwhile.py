"""While the plots of a target are drawn, the next one is folded, if that takes a moment; the order stays the same."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helixfold.cli.main import main
from helixfold.predict import runner, target

pytestmark = pytest.mark.usefixtures("quick")
SEQUENCES = {"a": "MKTAYIAKQR", "b": "GSHMKTAYIA", "c": "KQRQISFVKS", "d": "HFSRQLEERL"}


class Here:
    """Plots are drawn by this process when they are wanted."""

    def draw(self, plot: Callable[..., bytes], *arguments: Any) -> Callable[[], bytes]:
        return partial(plot, *arguments)


@contextmanager
def drawing(**_: object) -> Iterator[Here]:
    yield Here()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to which target, in order."""
    seen: list[str] = []
    fold, finish = runner.fold_target, target.finish

    def folded(job: Any, *rest: Any, **named: Any) -> Any:
        under_way = fold(job, *rest, **named)
        seen.append(f"{job.name} folded")
        return under_way

    def finished(one: target.PredictedTarget, order: Any) -> None:
        seen.append(f"{one.directory.name} finished")
        finish(one, order)

    monkeypatch.setattr(runner, "fold_target", folded)
    monkeypatch.setattr(target, "finish", finished)
    monkeypatch.setattr("helixfold.report.drawing.drawing_processes", drawing)
    return seen


def predict(tmp_path: Path, *more: str) -> int:
    fasta = tmp_path / "all.fasta"
    fasta.write_text("".join(f">{name}\n{sequence}\n" for name, sequence in SEQUENCES.items()))
    options = ["--models", "tiny", "--num-recycles", "0", "--device", "cpu", "--output", str(tmp_path / "out")]
    return main(["predict", str(fasta), *options, *more])


def test_the_next_target_is_folded_before_the_last_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "_QUICK", 1000.0)
    assert predict(tmp_path) == 0
    # How long a target takes is known after the first.
    first = ["a folded", "a finished", "b folded"]
    assert events == [*first, "c folded", "b finished", "d folded", "c finished", "d finished"]
    said = [line for line in capsys.readouterr().out.splitlines() if "mean pLDDT" in line]
    assert [line[:2] for line in said] == ["a:", "b:", "c:", "d:"]
    assert all((tmp_path / "out" / name / "ranking_debug.json").is_file() for name in SEQUENCES)


def test_nobody_waits_for_a_slow_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[str]) -> None:
    monkeypatch.setattr(runner, "_QUICK", 0.0)
    assert predict(tmp_path) == 0
    assert events == [f"{name} {what}" for name in SEQUENCES for what in ("folded", "finished")]


def test_a_run_that_shares_its_directory_finishes_each_target_before_it_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[str]
) -> None:
    """It would otherwise hold the last one while it waits for those of other runs."""
    monkeypatch.setattr(runner, "_QUICK", 1000.0)
    claimed = runner.SharedTasks.claimed

    def watched(self: Any, lots: Any) -> Iterator[list[int]]:
        for lot in claimed(self, lots):
            yield lot
            events.append("asked for more")

    monkeypatch.setattr(runner.SharedTasks, "claimed", watched)
    assert predict(tmp_path, "--shared") == 0
    each = ("folded", "finished")
    assert events == [event for name in SEQUENCES for event in (*(f"{name} {what}" for what in each), "asked for more")]


def test_what_fails_at_its_end_fails_under_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "_QUICK", 1000.0)
    finish = target.finish

    def failing(one: target.PredictedTarget, order: Any) -> None:
        if one.directory.name == "b":
            raise ValueError("no ink")
        finish(one, order)

    monkeypatch.setattr(target, "finish", failing)
    assert predict(tmp_path) == 1
    assert "b: failed: ValueError: no ink" in capsys.readouterr().err
    assert (tmp_path / "out" / "failures.json").read_text().count("no ink") == 1
    assert [name for name in SEQUENCES if (tmp_path / "out" / name / "ranking_debug.json").is_file()] == ["a", "c", "d"]
    # The same command does what is left.
    monkeypatch.setattr(target, "finish", finish)
    events.clear()
    assert predict(tmp_path) == 0
    assert events == ["b folded", "b finished"]
