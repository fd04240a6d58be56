"""Workers, the server, or everything at once are killed at numbered events: no job is lost, and none is done twice."""

import random
import socket
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

from helixfold.apps.serve.client import Client
from helixfold.apps.serve.queue.database import connect
from tests.apps.serve.databases import is_intact
from tests.apps.serve.processes import Processes
from tests.apps.serve.submitters import submit_all
from tests.support.interruptions import Event


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# What a server and a worker do as long as they run, also once all jobs are submitted or done. Every step in the life of
# a job is interrupted in test_interrupted_steps.py.
SERVER_CALLS = ("helixfold.apps.serve.queue.queue:JobQueue.claim",)
WORKER_CALLS = ("helixfold.apps.serve.worker.worker:Worker._request",)


def run(directory: Path, *, clients: int, each: int, kills: dict[str, int]) -> list[float]:
    """Submit, kill so many workers, servers, and everything at once; return the seconds of each submission."""
    processes = Processes(directory, free_port(), workers=2)
    processes.start()
    are_kills_over = threading.Event()
    try:
        ids, times, threads = submit_all(processes.url, clients, each, are_kills_over.is_set)
        rng = random.Random(0)
        victims = [victim for victim, count in kills.items() for _ in range(count)]
        rng.shuffle(victims)
        for victim in victims:
            name = f"worker-{rng.randrange(2)}" if victim == "worker" else "server"
            call = rng.choice(WORKER_CALLS if victim == "worker" else SERVER_CALLS)
            processes.arm(name, Event(index=rng.randint(1, 2), call=call, is_after=rng.random() < 0.5))
            processes.wait_for_kill(name, kills_all=victim == "all")
            if victim == "all":
                check = connect(directory / "data" / "service.sqlite")
                assert is_intact(check)
                check.close()
        processes.wait_for_server()
        are_kills_over.set()
        for thread in threads:
            thread.join()
        assert len(set(ids)) == clients * each
        with Client(processes.url) as client:
            until = time.monotonic() + 60 + 0.5 * len(ids)
            while (left := client.service())["queued"] + left["running"]:
                assert time.monotonic() < until, left
                time.sleep(0.3)
            for job in ids:
                assert client.job(job)["state"] == "done"
    finally:
        are_kills_over.set()
        processes.stop()
    database = connect(directory / "data" / "service.sqlite")
    assert is_intact(database)
    assert database.execute("SELECT count(*), count(DISTINCT id) FROM jobs").fetchone()[:] == (len(ids), len(ids))
    leases = defaultdict(set)
    for job, lease in processes.finished():
        leases[job].add(lease)
    assert {job: found for job, found in leases.items() if len(found) > 1} == {}
    results = database.execute("SELECT id, result, bytes FROM jobs").fetchall()
    for job, attempt, size in results:
        folder = directory / "data" / "jobs" / job / str(attempt)
        assert sorted(path.name for path in folder.iterdir()) == ["ranked_0.pdb", "report.html"]
        assert size == sum(path.stat().st_size for path in folder.iterdir())
    database.close()
    return times


@pytest.mark.integration
def test_nothing_is_lost_and_nothing_done_twice(tmp_path: Path) -> None:
    run(tmp_path, clients=4, each=5, kills={"worker": 1, "server": 1, "all": 1})


@pytest.mark.long
def test_a_thousand_jobs_of_twenty_clients_through_many_kills(tmp_path: Path) -> None:
    kills = {"worker": 50, "server": 10, "all": 10}
    run(tmp_path, clients=20, each=50, kills=kills)
