"""Run a server with its workers, from the binding of its address to a graceful end."""

import json
import logging
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn

from data_pipeline.errors import InputError
from data_pipeline.file_lock import acquire_lock
from data_pipeline.files import os_errors_as_input_errors
from helixfold.serve.local_workers import LocalWorkers
from helixfold.serve.maintenance import Maintenance
from helixfold.serve.service import Service
from helixfold.serve.settings import ServeSettings
from helixfold.serve.storage import SERVER_LOCK, make_private
from helixfold.serve.upload_check import prepare_checks
from helixfold.serve.web.app import create_app
from helixfold.serve.web.protocol import MAX_CONNECTIONS, TimedProtocol
from helixfold.serve.worker.options import WorkerOptions
from helixfold.serve.worker.run import WorkerCall


@contextmanager
def only_server(directory: Path) -> Iterator[None]:
    """Hold the lock of a data directory, which ends with this process. Raise `InputError` if another server has it."""
    make_private(directory)
    with os_errors_as_input_errors(directory, "cannot be written"):
        problem = "another server uses this directory; choose another --data directory"
        lock = acquire_lock(directory / SERVER_LOCK, problem, timeout=0, mode=0o600)
    with lock:
        yield


_LOGGER = logging.getLogger("helixfold.serve")
_IDLE_SECONDS: Final = 15  # after which a connection without a request is ended
_LAST_ANSWERS_SECONDS: Final = 5
_OPEN_FILES: Final = 2 * MAX_CONNECTIONS


@dataclass(frozen=True, kw_only=True)
class LocalWorkerOptions:
    """Workers that the server starts: how each predicts, and the environment of each one's process."""

    options: WorkerOptions = field(default_factory=WorkerOptions)
    environments: Sequence[Mapping[str, str]] = ()


def serve(settings: ServeSettings, workers: LocalWorkerOptions, say: Callable[[str], None] = print) -> None:
    """Serve until SIGTERM or Ctrl-C comes; unfinished jobs wait then for the next start.

    Raise `InputError` if the address cannot be used, or if the data directory is another server's.
    """
    _log_to_stderr()
    os.umask(0o077)  # whatever this process and its workers write is their owner's alone
    with only_server(settings.directory):
        service = Service.open(settings)
        try:
            if settings.needs_token and not service.tokens.all():
                say("no user has a token yet; create one with helixfold serve token create USER")
            prepare_checks()
            allow_connections()
            app = create_app(service)
            config = uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                http=TimedProtocol,
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=_LAST_ANSWERS_SECONDS,
            )
            socket = _bound(config)
            host, port = socket.getsockname()[:2]
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            token = app.state.local_workers.text()
            local = LocalWorkers(
                [
                    WorkerCall(
                        url=url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:"),
                        token=token,
                        options=workers.options,
                        name=f"worker-{number}",
                        environment=environment,
                        allow_http=True,  # to this machine, under whichever of its addresses
                    )
                    for number, environment in enumerate(workers.environments)
                ]
            )
            maintenance = Maintenance(service)
            server = _Server(config, local)
            maintenance.start()
            local.start()
            say(f"helixfold serves on {url}")
            sys.stdout.flush()
            try:
                server.run(sockets=[socket])
            finally:
                local.stop()
                maintenance.stop()
        finally:
            service.close()


class _Server(uvicorn.Server):
    """A server that lets its workers give back their jobs before it takes no more requests."""

    def __init__(self, config: uvicorn.Config, workers: LocalWorkers) -> None:
        super().__init__(config)
        self._workers, self._is_ending = workers, False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End after the workers; a second signal ends at once."""
        if self._is_ending:
            super().handle_exit(sig, frame)
            return
        self._is_ending = True

        def end() -> None:
            self._workers.stop()
            uvicorn.Server.handle_exit(self, sig, frame)

        threading.Thread(target=end, daemon=True).start()


def allow_connections() -> None:
    """Let this process have as many connections as are served, and files next to them, if its hard limit does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _OPEN_FILES:
        allowed = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _bound(config: uvicorn.Config) -> Any:
    try:
        return config.bind_socket()
    except SystemExit:
        address = f"{config.host}:{config.port}"
        raise InputError(f"cannot listen on {address}; choose another --port or --host") from None


def _log_to_stderr() -> None:
    """Write one JSON object with the time for each event of the service, and warnings of its libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines())
    for name in ("helixfold.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if name == "helixfold.serve" else logging.WARNING)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        content = json.loads(text) if text.startswith("{") else {"event": "message", "text": text}
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps({"time": round(record.created, 3), "level": record.levelname.lower(), **content})
