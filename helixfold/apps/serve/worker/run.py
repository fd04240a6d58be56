"""Run a worker in this process until it is told to stop."""

import os
import platform
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from helixfold.apps.serve.http_client import HttpClient
from helixfold.apps.serve.settings import check_encrypted
from helixfold.apps.serve.worker.options import WorkerOptions
from helixfold.apps.serve.worker.process import JobProcess
from helixfold.apps.serve.worker.worker import Worker


@dataclass(frozen=True, kw_only=True)
class WorkerCall:
    """Settings of a worker: its server, its token, and with what it predicts.

    `allow_http` lets the token travel unencrypted to a server on another machine.
    """

    url: str
    token: str
    options: WorkerOptions
    name: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    allow_http: bool = False

    def __post_init__(self) -> None:
        check_encrypted(self.url, allow_http=self.allow_http)


def worker_of(call: WorkerCall, niceness: int = 0) -> Worker:
    """Return a worker with a process of its own, of this niceness."""
    process = JobProcess(call.options.with_absolute_paths(), call.environment, niceness)
    return Worker(HttpClient(call.url, call.token), process, name=call.name or own_name())


def run_worker(call: WorkerCall) -> None:
    """Work until SIGTERM or Ctrl-C comes, then give back what is not finished."""
    worker = worker_of(call)
    with stopped_by_signals(worker.stop.set):
        worker.run()


def own_name() -> str:
    """Return the name of a worker that was given none: this machine's, and the number of this process."""
    return f"{platform.node()}-{os.getpid()}"


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call a function at SIGTERM or Ctrl-C within the context, but for signals that are ignored already."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, lambda *_: stop())
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
