"""Workers, the server, or everything at once are killed at any moment: no job is lost, and none is done twice."""

import random
import socket
import time
from collections import defaultdict
from pathlib import Path

import pytest

from helixfold.serve.client import Client
from helixfold.serve.queue.schema import connect, integrity_problem
from tests.serve.processes import Processes
from tests.serve.submitters import submit_all


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run(
    directory: Path, *, clients: int, each: int, kills: dict[str, int], seconds: float, pause: float
) -> list[float]:
    """Submit, kill so many workers, servers, and everything at once; return the seconds of each submission."""
    processes = Processes(directory, free_port(), workers=2, seconds=seconds)
    processes.start()
    try:
        ids, times, threads = submit_all(processes.url, clients, each)
        rng = random.Random(0)
        victims = [victim for victim, count in kills.items() for _ in range(count)]
        rng.shuffle(victims)
        for victim in victims:
            time.sleep(rng.uniform(0.3, 1) * pause)
            if victim == "all":
                processes.kill(*processes.running)
                check = connect(directory / "data" / "service.sqlite")
                assert integrity_problem(check) is None
                check.close()
            else:
                processes.kill("server" if victim == "server" else f"worker-{rng.randrange(2)}")
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
        processes.stop()
    database = connect(directory / "data" / "service.sqlite")
    assert integrity_problem(database) is None
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


def test_nothing_is_lost_and_nothing_done_twice(tmp_path: Path) -> None:
    run(tmp_path, clients=4, each=5, kills={"worker": 1, "server": 1, "all": 1}, seconds=0.02, pause=0.7)


@pytest.mark.long
def test_a_thousand_jobs_of_twenty_clients_through_many_kills(tmp_path: Path) -> None:
    kills = {"worker": 50, "server": 10, "all": 10}
    run(tmp_path, clients=20, each=50, kills=kills, seconds=0.2, pause=2.0)
