"""A server and quick workers as processes of their own, which are killed at numbered events and started again.

A quick worker does as a worker does but predicts nothing: it reports progress and sends two small files. Each result
that the server took is a line of LOG: the job and its lease.
"""

import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from helixfold.apps.serve.client import Client, ServerUnreachableError
from helixfold.apps.serve.http_client import HttpClient
from helixfold.apps.serve.queue.jobs import QueueOptions
from helixfold.apps.serve.run import serve
from helixfold.apps.serve.settings import ServeSettings
from helixfold.apps.serve.web import app
from helixfold.apps.serve.worker.options import WorkerOptions
from helixfold.apps.serve.worker.process import Outcome, Progress
from helixfold.apps.serve.worker.worker import Worker
from tests.support.interruptions import Event, Kill, redirect
from tests.training.ranks import SERVER


class QuickProcess:
    """In place of the process that predicts: reports progress, and writes two files."""

    def do(self, kind: str, content: Mapping[str, Any], directory: Path, should_continue: Any) -> Outcome:
        if kind == "offers":
            return Outcome(result={"device": "none", "models": ["quick"], "alignments": False, "forecasts": {}})
        progress = Progress()
        progress.read(b'{"target": "a", "stage": "features", "seconds": 0.1}\n')
        if not should_continue(progress):
            return Outcome(error="stopped")
        folder = directory / "predictions"
        folder.mkdir()
        (folder / "ranked_0.pdb").write_text(str(content["sequence"]))
        (folder / "report.html").write_text("<p>report</p>")
        return Outcome(result={"folder": folder, "summary": {"plddt": 50.0}})

    def stop(self) -> None:
        pass


class QuickWorker(Worker):
    """A worker with a `QuickProcess`, which keeps a log of the results that the server took."""

    def log_to(self, path: Path) -> "QuickWorker":
        self.log = path
        return self

    def _request(self, method: str, path: str, content: Any, headers: Mapping[str, str] | None = None) -> Any:
        answer = super()._request(method, path, content, headers)
        if path.endswith("/finish"):
            with self.log.open("a") as file:
                file.write(f"{path.split('/')[2]} {(headers or {})['X-Lease']}\n")
        return answer


def work(url: str, token: str, name: str, log: Path) -> None:
    worker = QuickWorker(HttpClient(url, token), QuickProcess(), name=name, print_line=lambda _: None).log_to(log)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop.set())
    worker.run()


def run_server(directory: Path, port: int, token: str) -> None:
    app.secrets = SimpleNamespace(token_urlsafe=lambda _: token)  # type: ignore[assignment]
    queue = QueueOptions(max_active_jobs=100_000, max_active_residues=10**9, max_attempts=50, lease_seconds=3)
    settings = ServeSettings(data=directory, port=port, max_requests=10**6, queue=queue)
    serve(settings, WorkerOptions())


@dataclass
class Processes:
    """A server and its workers, each of which is started again after it was killed."""

    directory: Path
    port: int
    workers: int
    token: str = "t" * 43
    running: dict[str, BaseProcess] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.directory / "finished.log"

    def start(self) -> None:
        for name in ("server", *(f"worker-{number}" for number in range(self.workers))):
            self.start_one(name)

        while not (self.directory / "data" / "service.sqlite").exists():
            time.sleep(0.05)
        self.wait_for_server()

    def wait_for_server(self) -> None:
        """Wait until the server, which may still be starting, answers. Fail if its process ends before."""
        until = time.monotonic() + 120
        with Client(self.url) as client:
            while True:
                try:
                    client.service()
                except ServerUnreachableError:
                    assert self.running["server"].is_alive()
                    assert time.monotonic() < until
                else:
                    return

    def start_one(self, name: str, kill: Kill | None = None) -> None:
        """Start a process that kills itself at an event; changes are those of files of the service."""
        data = self.directory / "data"
        call: tuple[Any, ...] = (run_server, data, self.port, self.token)
        if name != "server":
            call = (work, self.url, self.token, name, self.log)
        with self.lock:
            process = SERVER.Process(target=_begin, args=(self.directory / f"{name}.txt", data, kill, *call))
            process.start()
            self.running[name] = process

    def arm(self, name: str, event: Event) -> None:
        """Start a process again that kills itself at an event, in place of the one that runs."""
        _kill(self.running[name])
        self.start_one(name, Kill(signal.SIGKILL, event))

    def wait_for_kill(self, name: str, *, kills_all: bool = False) -> None:
        """Wait until a process has killed itself; start it again, or all after all are killed."""
        assert multiprocessing.connection.wait([self.running[name].sentinel], 120), f"{name} met no event"
        names = list(self.running) if kills_all else [name]
        for each in names:
            _kill(self.running[each])
        for each in names:
            self.start_one(each)

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.join(20)
            if process.is_alive():
                _kill(process)

    def finished(self) -> list[tuple[str, str]]:
        """The jobs whose results were taken, each with the lease."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(line.split()[0], line.split()[1]) for line in lines]


def _begin(printed: Path, data: Path, kill: Kill | None, function: Callable[..., None], *arguments: Any) -> None:
    """Do something in a session of its own, whose output goes to a file."""
    os.setsid()
    redirect(printed)
    with nullcontext() if kill is None else kill.applied(data):
        function(*arguments)


def _kill(process: BaseProcess) -> None:
    assert process.pid is not None
    with suppress(ProcessLookupError):  # it may have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
