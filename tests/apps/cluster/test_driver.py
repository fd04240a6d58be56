"""What becomes of targets whose tasks fail, with an engine that answers at once."""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import pytest

pytest.importorskip("parsl")

from data_pipeline.io.claims import Claims
from data_pipeline.io.errors import InputError
from helixfold.apps.cluster import worker
from helixfold.apps.cluster.progress import status_lines
from helixfold.apps.cluster.schedule import PoolEstimate
from helixfold.apps.cluster.site import Pool
from helixfold.apps.cluster.worker import Work
from helixfold.cli.main import main
from tests.apps.cluster.driver import TWO_POOLS, peptides

# Why which of these targets fail, or how their worker ends, by the pool that a worker is of.
Answer = Callable[[str, list[str]], Mapping[str, str] | Exception]
PREDICT = ("predict", "batch.fasta", "--output", "out", "--models", "tiny")


class Engine:
    """An engine whose workers claim targets at once, and do with them what `answer` says of a pool and names."""

    answer: Answer
    tasks: list[tuple[str, list[str]]]
    nodes = staticmethod(dict)

    def __init__(self, *_: object) -> None:
        type(self).tasks = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, pool: str, function: Callable[[Work], str | None], given: Work) -> "Future[Any]":
        def do(_: Work, targets: Sequence[Any], claims: Claims) -> None:
            names = [target.name for target in targets]
            self.tasks.append((pool, names))
            found = type(self).answer(pool, names)
            if isinstance(found, Exception):
                raise found
            for name in names:
                if (failure := found.get(name)) is None:
                    finish(name)
                claims.end(name, "finished" if failure is None else "failed", failure)

        future: Future[Any] = Future()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(worker, "_do", do)
            patched.setattr(worker.signal, "signal", lambda *_: None)
            try:
                future.set_result(function(given))
            except LostWorkerError as error:
                future.set_exception(error)
        return future

    def pool_error(self, pool: str, error: BaseException) -> None:
        return None


class LostWorkerError(BaseException):
    """Error of a worker that ends in the middle of a task."""


@pytest.fixture
def predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The exit code of a batch of so many targets with such an engine, in ./out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("helixfold.apps.cluster.driver.Engine", Engine)
    monkeypatch.setattr("helixfold.apps.cluster.driver._SECONDS_BETWEEN_CLAIMS", 0.01)
    Path("site.toml").write_text(TWO_POOLS.format(minutes=20))

    def forecast(pool: Pool, *_: object, **__: object) -> PoolEstimate:
        longest = {"small": 300, "large": 900}[pool.name]
        return PoolEstimate(
            name=pool.name, slots=pool.slots, longest=longest, seconds=float, task_seconds=60 * pool.task_minutes
        )

    # Memory is counted in the tests of the planner.
    monkeypatch.setattr("helixfold.apps.cluster.batch.estimate_pool", forecast)

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
    def answer(pool: str, names: list[str]) -> dict[str, str]:
        failures = {"t0000": "OutOfMemoryError: CUDA", "t0001": "RuntimeError: the chain is broken"}
        return {name: why for name, why in failures.items() if name in names}

    assert predicted(3, answer) == 1
    assert json.loads(Path("out/failures.json").read_text()) == {
        "t0000": "OutOfMemoryError: CUDA (tried 3 times)",
        "t0001": "RuntimeError: the chain is broken",
    }
    assert [task for task in Engine.tasks if task[1] == ["t0000"]][-2:] == [("large", ["t0000"])] * 2


def test_the_driver_says_once_that_models_are_untrained_and_at_the_end_how_many_targets_are_done(
    predicted: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert predicted(3, lambda *_: {"t0001": "RuntimeError: the chain is broken"}) == 1
    printed = capsys.readouterr()
    assert printed.err.count("UNTRAINED: made by the 'tiny' preset with random parameters (seed 0)") == 1
    assert "2 of 3 targets done" in printed.out.splitlines()
    assert predicted(3, lambda *_: {}, "--dry-run") == 0
    assert "UNTRAINED" in capsys.readouterr().err


def test_a_batch_has_a_status_before_the_engine_has_started(
    predicted: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_start: list[list[str]] = []

    def enter(engine: Engine) -> Engine:
        at_start.append(list(status_lines(Path("out"))))
        return engine

    monkeypatch.setattr(Engine, "__enter__", enter)
    assert predicted(3, lambda *_: {}) == 0
    ((total, cluster, *_),) = at_start
    assert total == "0 of 3 targets done, 0 with features, 0 failed"
    assert cluster.startswith("cluster: running, ")


def test_targets_whose_workers_are_lost_are_tried_again_and_one_that_kills_them_fails(
    predicted: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker that is killed leaves its claims; here, this process seems to have ended for whoever reads them.
    monkeypatch.setattr(Claims, "close", lambda _: None)
    monkeypatch.setattr(Claims, "is_dead", lambda *_: True)
    lost: list[list[str]] = []

    def answer(pool: str, names: list[str]) -> dict[str, str] | Exception:
        if "t0002" in names:
            lost.append(names)
            raise LostWorkerError("the node is gone")
        return {}

    assert predicted(6, answer) == 1
    assert json.loads(Path("out/failures.json").read_text()) == {"t0002": "its worker was lost (tried 3 times)"}
    assert len(lost[0]) > 1
    assert lost[1:] == [["t0002"]] * 2


def test_a_pool_that_loses_one_worker_after_the_other_before_it_begins_ends_the_batch(
    predicted: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object) -> None:
        raise LostWorkerError("gone")

    monkeypatch.setattr(worker, "claim_lot", lose)
    assert predicted(2, lambda *_: {}) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "10 tasks in a row did nothing: its worker was lost: gone" in said


def test_invalid_targets_are_left_out_and_count_as_failed(
    predicted: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.fasta").write_text(">tr/Q8\nMK1\n>\nMKT\n")

    for options, code in (((), 2), (("--skip-invalid", "--dry-run"), 1), (("--skip-invalid",), 1)):
        assert predicted(2, lambda *_: {}, "bad.fasta", *options) == code
        said = capsys.readouterr().err
        assert said.count("bad.fasta, line") == 2
        assert said.count("or pass --skip-invalid") == (code == 2)
        assert bool(Engine.tasks) == (options == ("--skip-invalid",))
    assert {name for _, names in Engine.tasks for name in names} == {"t0000", "t0001"}
    assert set(json.loads(Path("out/failures.json").read_text())) == {"tr_Q8", "invalid input 2"}
    status = json.loads(Path("out/.cluster/status.json").read_text())
    assert (status["targets"], status["finished"], status["failed"]) == (4, 2, 2)


def test_a_pool_whose_tasks_all_end_with_a_problem_ends_the_batch(
    predicted: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert predicted(8, lambda *_: InputError("there are no weights here")) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "3 tasks in a row did nothing: there are no weights here" in said
    assert json.loads(Path("out/.cluster/status.json").read_text())["state"] == "interrupted"


@pytest.mark.integration
def test_a_finished_target_is_folded_again_for_the_clusters_of_its_alignment(predicted: Callable[..., int]) -> None:
    peptides(Path("batch.fasta"), 2)
    assert main([*PREDICT, "--num-recycles", "0", "--device", "cpu", "--slim"]) == 0
    assert predicted(2, lambda *_: {}, "--num-recycles", "0") == 0
    assert Engine.tasks == []
    # How many predictions of clusters there will be is not known before.
    predicted(2, lambda *_: InputError("not here"), "--num-recycles", "0", "--cluster-msa", "--keep-existing")
    assert {name for pool, names in Engine.tasks if pool != "search" for name in names} == {"t0000", "t0001"}
