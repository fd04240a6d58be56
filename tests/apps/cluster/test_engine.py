"""All processes of a node of this machine end with its run, or with the process that leads them."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_pipeline.io.errors import InputError
from helixfold.apps.cluster.site import Pool, Site
from tests.apps.cluster.driver import until
from tests.support.interruptions import living_processes

engine = pytest.importorskip("helixfold.apps.cluster.engine")
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


@pytest.mark.parametrize(
    ("address", "name", "whose"),
    [
        ("127.0.0.1", "192.0.2.7", "address is 127.0.0.1"),
        ("localhost", "192.0.2.7", "address is localhost"),
        ("::1", "192.0.2.7", "address is ::1"),
        (None, "127.0.1.1", "the name of this machine is 127.0.1.1"),
        ("192.0.2.7", "127.0.1.1", None),
        (None, "192.0.2.7", None),
        ("a-name-that-only-nodes-know.invalid", "127.0.1.1", None),
    ],
)
def test_nodes_elsewhere_are_not_given_an_address_that_means_themselves(
    address: str | None, name: str, whose: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "address_by_hostname", lambda: name)
    site = Site(path=Path("site.toml"), search=None, folding=(), training=None, address=address)
    if whose is None:
        assert engine._address_for("gpu", site) == (address or name)
    else:
        with pytest.raises(
            InputError, match=f"{whose}, a loopback address; set address = '...' to the address at which .* 'gpu'"
        ):
            engine._address_for("gpu", site)


class Slow:
    """A kernel of Parsl whose exchange of messages does not answer."""

    def __init__(self, canceled: list[object]) -> None:
        self.executors = {"gpu": SimpleExecutor(canceled)}
        self._task_launch_pool = ThreadPoolExecutor()

    def cleanup(self) -> None:
        threading.Event().wait()


class SimpleExecutor(engine.HighThroughputExecutor):  # type: ignore[misc]
    """An executor with a job that runs and one that waits."""

    def __init__(self, canceled: list[object]) -> None:
        self.blocks_to_job_id = {"0": "17", "1": "18"}
        self._provider = SimpleNamespace(cancel=canceled.append)
        self.interchange_proc = SimpleNamespace(kill=lambda: canceled.append("killed"))
        self._result_queue_thread_exit = threading.Event()


def test_jobs_are_cancelled_if_parsl_does_not_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    canceled: list[object] = []
    pool = Pool(name="small")
    monkeypatch.setattr(engine, "_SECONDS_TO_END", 0.1)
    monkeypatch.setattr(engine, "DataFlowKernel", lambda _: Slow(canceled))
    site = Site(path=Path("site.toml"), search=None, folding=(pool,), training=None)
    with pytest.raises(SystemExit), engine.Engine(site, [pool], tmp_path):
        raise SystemExit(143)
    assert ["17", "18"] in canceled
    assert "killed" in canceled


def test_the_executor_encrypts_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}
    monkeypatch.setattr(engine, "HighThroughputExecutor", lambda **given: options.update(given))
    pool = Pool(name="small")
    engine._executor(pool, SimpleNamespace(), "127.0.0.1")
    assert options["encrypted"] is True
