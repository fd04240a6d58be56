"""A server and quick workers as processes of their own, to be killed at any moment.

    python -m tests.serve.processes server DIRECTORY PORT TOKEN
    python -m tests.serve.processes worker URL TOKEN NAME LOG SECONDS

A quick worker does as a worker does but predicts nothing: after some time it sends two small files. Each result that
the server took is a line of LOG: the job and its lease.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import helixfold.serve.worker.worker as worker_module
from helixfold.serve.client import Client
from helixfold.serve.http_client import HttpClient
from helixfold.serve.queue.limits import QueueOptions
from helixfold.serve.run import LocalWorkerOptions, serve
from helixfold.serve.settings import ServeSettings
from helixfold.serve.web.local_tokens import LocalTokens
from helixfold.serve.worker.options import WorkerOptions
from helixfold.serve.worker.process import Outcome, Progress
from helixfold.serve.worker.worker import Worker
from tests.sources import ROOT


class QuickProcess:
    """In place of the process that predicts: waits, and writes two files."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def do(self, kind: str, content: Mapping[str, Any], directory: Path, keep_on: Any) -> Outcome:
        if kind == "offers":
            return Outcome(result={"device": "none", "models": ["quick"], "alignments": False})
        until = time.monotonic() + random.uniform(0, 2 * self.seconds)
        progress = Progress()
        while time.monotonic() < until:
            progress.read(b'{"target": "a", "stage": "features", "seconds": 0.1}\n')
            if not keep_on(progress):
                return Outcome(error="stopped")
            time.sleep(0.01)
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


def work(url: str, token: str, name: str, log: Path, seconds: float) -> None:
    worker_module.JobProcess = lambda *_: QuickProcess(seconds)  # type: ignore[assignment, misc]
    worker = QuickWorker(HttpClient(url, token), WorkerOptions(), name=name, say=lambda _: None).log_to(log)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop.set())
    worker.run()


def run_server(directory: Path, port: int, token: str) -> None:
    known = LocalTokens.__init__

    def with_token(self: LocalTokens) -> None:
        known(self)
        self._secret = token

    LocalTokens.__init__ = with_token  # type: ignore[method-assign]
    queue = QueueOptions(max_active_jobs=100_000, max_active_residues=10**9, max_attempts=50, lease_seconds=3)
    settings = ServeSettings(directory=directory, port=port, requests_per_minute=10**6, queue=queue)
    serve(settings, LocalWorkerOptions())


@dataclass
class Processes:
    """A server and its workers, each of which is started again after it was killed."""

    directory: Path
    port: int
    workers: int
    seconds: float  # that a job takes on average
    token: str = "t" * 43
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
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
        with Client(self.url) as client:
            client.service()

    def start_one(self, name: str) -> None:
        words = ["server", str(self.directory / "data"), str(self.port), self.token]
        if name != "server":
            words = ["worker", self.url, self.token, name, str(self.log), str(self.seconds)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self.lock, (self.directory / f"{name}.txt").open("ab") as printed:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.serve.processes", *words],
                stdout=printed,
                stderr=printed,
                env=environment,
                cwd=ROOT,
                start_new_session=True,
            )

    def kill(self, *names: str) -> None:
        """Kill processes, with whatever they have started, at once; then start them again."""
        for name in names:
            os.killpg(self.running[name].pid, signal.SIGKILL)
        for name in names:
            self.running[name].wait()
        for name in names:
            self.start_one(name)

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def finished(self) -> list[tuple[str, str]]:
        """The jobs whose results were taken, each with the lease."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(line.split()[0], line.split()[1]) for line in lines]


if __name__ == "__main__":
    if sys.argv[1] == "server":
        run_server(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        work(sys.argv[2], sys.argv[3], sys.argv[4], Path(sys.argv[5]), float(sys.argv[6]))
