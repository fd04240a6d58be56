"""Run a worker in this process until a signal stops it."""

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
    """Settings of a worker: the address of its server, its token and its options.

    `environment` has additional variables for the predicting process. `allow_http` permits sending the token
    unencrypted to a server on another machine.
    """

    url: str
    token: str
    options: WorkerOptions
    name: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    allow_http: bool = False

    def __post_init__(self) -> None:
        check_encrypted(self.url, allow_http=self.allow_http)


def create_worker(call: WorkerCall, niceness: int = 0) -> Worker:
    """Return a worker with its own predicting process of this niceness."""
    process = JobProcess(call.options.with_absolute_paths(), call.environment, niceness)
    return Worker(HttpClient(call.url, call.token), process, name=call.name or default_name())


def run_worker(call: WorkerCall) -> None:
    """Run a worker until SIGTERM or Ctrl-C, then release its job."""
    worker = create_worker(call)
    with stopped_by_signals(worker.stop.set):
        worker.run()


def default_name() -> str:
    """Return the default name of a worker: the host name and the id of this process."""
    return f"{platform.node()}-{os.getpid()}"


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` at SIGTERM or Ctrl-C within the context, except for a signal that is already ignored."""
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        for each, handler in handlers.items():
            if handler is not signal.SIG_IGN:
                signal.signal(each, lambda *_: stop())
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
