"""Nodes of a cluster predict the jobs of a service; one that is lost, or told to stop, loses nothing."""

import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from helixfold.apps.serve.client import Client
from helixfold.apps.serve.worker import cluster
from helixfold.apps.serve.worker.options import WorkerOptions
from helixfold.apps.serve.worker.process import Outcome, Progress
from tests.apps.serve.running import running

pytest.importorskip("parsl")

from helixfold.apps.cluster.engine import PoolError
from helixfold.apps.serve.worker.cluster import NodeProcess, PoolOffers
from tests.apps.cluster.driver import ended, kill, started, until, workers


class Engine:
    """An engine whose only node does what the test says, with a job's directory."""

    def __init__(self, node: Callable[[Path, "Future[Any]"], object]) -> None:
        self.node, self.tasks = node, 0

    def submit(self, pool: str, function: object, kind: str, content: object, directory: Path, *_: object) -> Any:
        future: Future[Any] = Future()
        self.tasks += 1
        self.node(directory, future)
        return future

    def pool_error(self, pool: str, error: BaseException) -> PoolError | None:
        return error if isinstance(error, PoolError) else None


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_POLLING_SECONDS", 0.01)
    monkeypatch.setattr(cluster, "_SECONDS_TO_STOP", 0.01)


def done_by(node: Callable[[Path, "Future[Any]"], object]) -> NodeProcess:
    return NodeProcess(Engine(node), "small", WorkerOptions(), PoolOffers())


def test_a_lost_node_is_another_attempt_and_a_pool_without_nodes_is_an_error(tmp_path: Path) -> None:
    lost = done_by(lambda _, future: future.set_exception(RuntimeError("gone")))
    assert lost.do("prediction", {}, tmp_path, lambda _: True) == Outcome(
        error="its node was lost: gone", has_died=True
    )
    refused = done_by(lambda _, future: future.set_exception(PoolError("no such queue")))
    with pytest.raises(PoolError, match="no such queue"):
        refused.do("prediction", {}, tmp_path, lambda _: True)


def test_progress_of_a_node_is_told_and_it_learns_that_it_shall_stop(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []

    def should_continue(progress: Progress) -> bool:
        told.append(progress.to_dict())
        content = {"stages": [{"name": "features", "seconds": 1.0}], "lines": []}
        (tmp_path / "progress.json").write_text(json.dumps(content))
        return len(told) < 2

    silent = done_by(lambda *_: None)
    assert silent.do("prediction", {}, tmp_path, should_continue).error == "stopped"
    assert told[0]["lines"] == ["waiting for a node of pool 'small'"]
    assert told[1]["stages"] == [{"name": "features", "seconds": 1.0}]
    assert cluster.do_on_node("prediction", {}, tmp_path, WorkerOptions()) == Outcome(error="stopped")
    assert cluster.do_on_node("prediction", {}, tmp_path / "gone", WorkerOptions()) == Outcome(error="stopped")


def test_one_node_tells_what_all_workers_of_its_pool_offer(tmp_path: Path) -> None:
    answers = [Outcome(error="no weights"), Outcome(result={"models": ["tiny"]})]
    engine = Engine(lambda _, future: future.set_result(answers.pop(0)))
    offers = PoolOffers()
    found = [
        NodeProcess(engine, "small", WorkerOptions(), offers).do("offers", {}, tmp_path, lambda _: True)
        for _ in range(3)
    ]
    assert [each.error for each in found] == ["no weights", None, None]
    assert engine.tasks == 2


@pytest.mark.long
def test_nodes_predict_and_give_back_what_they_do_not_finish(tmp_path: Path) -> None:
    site, token, printed = tmp_path / "site.toml", tmp_path / "token", tmp_path / "printed.txt"
    site.write_text('[fold.small]\nmemory = "3GiB"\n')
    with running(tmp_path / "service", offers=None) as server, Client(server.url) as client:
        token.write_text(server.worker_token)
        words = ["serve", "worker", server.url, "--token-file", str(token), "--models", "tiny"]
        work = tmp_path / "work"
        worker = started([*words, "--cluster", str(site), "--work", str(work)], printed)
        job = client.submit("MKTAYIAKQRQISF", recycles=0)["id"]
        ended_job = client.wait(job, seconds=0.1)
        assert ended_job["state"] == "done", (ended_job, printed.read_text())
        assert "features" in {stage["name"] for stage in ended_job["progress"]["stages"]}
        assert "ranked_0.pdb" in {path.name for path in client.fetch(job, tmp_path / "out")}
        assert [offers.models for offers in server.service.workers.present().values()] == [("tiny",)]
        long = client.submit("MKTAYIAKQR" * 20, recycles=50)["id"]
        until(lambda: client.job(long)["progress"].get("stages"))
        kill(workers(worker.pid)[-1])
        until(lambda: client.job(long)["attempts"] == 2)
        client.cancel(long)
        until(lambda: not list(work.glob("helixfold-job-*")))
        other = client.submit("MKTAYIAKQR" * 20, recycles=50)["id"]
        until(lambda: client.job(other)["progress"].get("stages"))
        worker.terminate()
        assert ended(worker) == 0, printed.read_text()
        assert client.job(other)["state"] == "queued"
        assert not list(work.glob("helixfold-job-*"))
