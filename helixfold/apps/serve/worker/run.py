"""Run a worker in this process until it is told to stop."""

import os
import platform
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from data_pipeline.io.child_processes import end_with_parent, leave_interruptions_to_parent
from helixfold.apps.serve.http_client import HttpClient
from helixfold.apps.serve.settings import check_encrypted
from helixfold.apps.serve.worker.options import WorkerOptions
from helixfold.apps.serve.worker.process import JobProcess
from helixfold.apps.serve.worker.worker import Worker

_NICENESS = 5  # of the workers beside a server, which answers meanwhile


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


def run_worker(call: WorkerCall) -> None:
    """Work until SIGTERM or Ctrl-C comes, then give back what is not finished."""
    process = JobProcess(call.options.with_absolute_paths(), call.environment)
    worker = Worker(HttpClient(call.url, call.token), process, name=call.name or own_name())
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


def run_beside_server(call: WorkerCall) -> None:
    """Work as a process of a server on this machine, which ends with it and lets it have the processor first."""
    leave_interruptions_to_parent()
    end_with_parent()
    os.nice(_NICENESS)
    run_worker(call)
