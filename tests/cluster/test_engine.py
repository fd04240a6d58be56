"""All processes of a node of this machine end with its run, or with the process that leads them."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helixfold.cluster.site import Pool, Site
from tests.cluster.driver import until
from tests.support.interruptions import living_processes

engine = pytest.importorskip("helixfold.cluster.engine")
# Hundredths of the seconds that a node waits.
WATCHED = engine.WATCHED_NODE.replace("sleep 2", "sleep 0.02")


@pytest.fixture
def run() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("victim", ["run", "node"])
def test_nothing_of_a_node_stays(run: subprocess.Popen[bytes], victim: str) -> None:
    # A node that never ends has started a process that never ends and says when it has begun.
    words = ["sh", "-c", WATCHED, str(run.pid), "sh", "-c", 'sh -c "echo begun; exec sleep 600" & exec sleep 600']
    with subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == "begun\n"
        killed = {"run": run, "node": node}[victim]
        killed.kill()
        killed.wait()
        assert node.wait(30) == -signal.SIGKILL
        until(lambda: not living_processes(node.pid), 30)


def test_the_executor_encrypts_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}
    monkeypatch.setattr(engine, "HighThroughputExecutor", lambda **given: options.update(given))
    pool = Pool(name="small")
    engine._executor(pool, Site(path=Path("site.toml"), search=None, folding=(pool,), training=None), "127.0.0.1")
    assert options["encrypted"] is True
