"""What becomes of targets whose tasks fail, with an engine that answers at once."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import pytest

pytest.importorskip("parsl")

from helixfold.cli.main import main
from helixfold.cluster.schedule import PoolForecast
from helixfold.cluster.site import Pool
from helixfold.cluster.worker import Outcome
from tests.cluster.driver import TWO_POOLS, peptides

Answer = Callable[[str, list[str]], Outcome | Exception]
PREDICT = ("predict", "batch.fasta", "--output", "out", "--models", "tiny")


class Engine:
    """An engine whose tasks are done when they are submitted, as `answer` says of a pool and names of targets."""

    answer: Answer
    tasks: list[tuple[str, list[str]]]

    def __init__(self, *_: object) -> None:
        type(self).tasks = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, pool: str, _: object, here: Path, targets: Sequence[Any], *__: object) -> "Future[Any]":
        names = [target.name for target in targets]
        self.tasks.append((pool, names))
        found = type(self).answer(pool, names)
        future: Future[Any] = Future()
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(found)
        return future

    def refusal(self, pool: str, error: BaseException) -> None:
        return None

    def nodes(self) -> dict[str, tuple[int, int]]:
        return {}


@pytest.fixture
def predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The exit code of a batch of so many targets with such an engine, in ./out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("helixfold.cluster.driver.Engine", Engine)
    monkeypatch.setattr("helixfold.cluster.driver._SECONDS_BETWEEN_LOOKS", 0.0)
    Path("site.toml").write_text(TWO_POOLS.format(minutes=20))

    def forecast(pool: Pool, *_: object, **__: object) -> PoolForecast:
        longest = {"small": 300, "large": 900}[pool.name]
        return PoolForecast(
            name=pool.name, slots=pool.slots, longest=longest, seconds=float, task_seconds=60 * pool.task_minutes
        )

    # Memory is counted in the tests of the planner.
    monkeypatch.setattr("helixfold.cluster.batch.forecast_of_pool", forecast)

    def run(count: int, answer: Answer, *options: str) -> int:
        Engine.answer, Engine.tasks = staticmethod(answer), []  # type: ignore[assignment]
        peptides(Path("batch.fasta"), count)
        return main([*PREDICT, "--cluster", "site.toml", *options])

    return run


def finish(*names: str) -> None:
    for name in names:
        Path("out", name).mkdir(parents=True, exist_ok=True)
        Path("out", name, "ranking_debug.json").write_text("{}")


def test_what_runs_out_of_memory_is_tried_in_the_larger_pool_and_fails_alone(
    predicted: Callable[..., int],
) -> None:
    def answer(pool: str, names: list[str]) -> Outcome:
        finish(*(name for name in names if name not in ("t0000", "t0001")))
        failures = {"t0000": "OutOfMemoryError: CUDA", "t0001": "RuntimeError: the chain is broken"}
        return Outcome(failures={name: why for name, why in failures.items() if name in names}, seconds=1.0)

    assert predicted(3, answer) == 1
    assert json.loads(Path("out/failures.json").read_text()) == {
        "t0000": "OutOfMemoryError: CUDA (tried 3 times)",
        "t0001": "RuntimeError: the chain is broken",
    }
    assert [task for task in Engine.tasks if task[1] == ["t0000"]][-2:] == [("large", ["t0000"])] * 2


def test_tasks_that_are_lost_before_they_begin_are_given_again(predicted: Callable[..., int]) -> None:
    lost: list[str] = []

    def answer(pool: str, names: list[str]) -> Outcome | Exception:
        if len(lost) < 4:
            lost.append(pool)
            return RuntimeError("the node is gone")
        finish(*names)
        return Outcome(seconds=1.0)

    # Marked as finished, but not told by what: such targets are not predicted again by anybody.
    assert predicted(4, answer) == 0
    assert len(lost) == 4


def test_invalid_targets_are_left_out_and_count_as_failed(
    predicted: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.fasta").write_text(">tr/Q8\nMK1\n>\nMKT\n")

    def answer(pool: str, names: list[str]) -> Outcome:
        finish(*names)
        return Outcome(seconds=1.0)

    for options, code in (((), 2), (("--skip-invalid", "--dry-run"), 1), (("--skip-invalid",), 1)):
        assert predicted(2, answer, "bad.fasta", *options) == code
        assert capsys.readouterr().err.count("bad.fasta, line") == 2
        assert bool(Engine.tasks) == (options == ("--skip-invalid",))
    assert {name for _, names in Engine.tasks for name in names} == {"t0000", "t0001"}
    assert set(json.loads(Path("out/failures.json").read_text())) == {"tr_Q8", "invalid input 2"}
    status = json.loads(Path("out/.cluster/status.json").read_text())
    assert (status["targets"], status["finished"], status["failed"]) == (4, 2, 2)


def test_a_pool_whose_tasks_all_end_with_a_problem_ends_the_batch(
    predicted: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert predicted(8, lambda *_: Outcome(problem="there are no weights here")) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "3 tasks in a row did nothing: there are no weights here" in said
    assert json.loads(Path("out/.cluster/status.json").read_text())["state"] == "interrupted"


@pytest.mark.integration
def test_a_finished_target_is_folded_again_for_the_clusters_of_its_alignment(predicted: Callable[..., int]) -> None:
    peptides(Path("batch.fasta"), 2)
    assert main([*PREDICT, "--num-recycles", "0", "--device", "cpu", "--slim"]) == 0
    assert predicted(2, lambda *_: Outcome(seconds=1.0), "--num-recycles", "0") == 0
    assert Engine.tasks == []
    # How many predictions of clusters there will be is not known before.
    predicted(2, lambda *_: Outcome(problem="not here"), "--num-recycles", "0", "--cluster-msa", "--keep-existing")
    assert {name for pool, names in Engine.tasks if pool != "search" for name in names} == {"t0000", "t0001"}
