"""Run a server with its workers, from binding its address to shutting down."""

import json
import logging
import os
import resource
import shlex
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final
from urllib.parse import urlsplit

import uvicorn

from data_pipeline.io.errors import InputError, RequestError
from data_pipeline.io.file_lock import acquire_lock
from data_pipeline.io.files import os_errors_as_input_errors
from data_pipeline.io.http import send
from helixfold.apps.serve.queue.jobs import Job
from helixfold.apps.serve.service import Service
from helixfold.apps.serve.settings import DATA, ServeSettings
from helixfold.apps.serve.storage import SERVER_LOCK, make_private
from helixfold.apps.serve.upload_check import prepare_checks
from helixfold.apps.serve.web.app import create_app
from helixfold.apps.serve.web.protocol import MAX_CONNECTIONS, TimedProtocol
from helixfold.apps.serve.worker.options import WorkerOptions
from helixfold.apps.serve.worker.run import WorkerCall, create_worker
from helixfold.apps.serve.worker.worker import Worker

_LOGGER = logging.getLogger("helixfold.apps.serve")
_IDLE_CONNECTION_SECONDS: Final = 15  # after which a connection without a request is closed
_SHUTDOWN_SECONDS: Final = 5  # to finish answers
_MIN_OPEN_FILES: Final = 2 * MAX_CONNECTIONS

_SECONDS_BETWEEN_ROUNDS: Final = 2.0
_ROUNDS_PER_EXPIRY: Final = 300  # rounds of maintenance between two removals of old results
_WEBHOOK_TIMEOUT: Final = 10.0  # time limit of one call
_WEBHOOKS_PER_ROUND: Final = 20
_WEBHOOK_PAUSES: Final = (10.0, 60.0, 600.0, 3600.0)  # seconds between the attempts

_NICENESS: Final = 5  # of the predicting processes, so that the server answers quickly
_MAX_RESTART_PAUSE: Final = 60.0
_QUICK_EXIT_SECONDS: Final = 30.0  # seconds; after a shorter run, the pause before the next start doubles
_MAX_STOP_SECONDS: Final = 15.0  # until all workers have ended; then their processes are stopped


@contextmanager
def only_server(directory: Path) -> Iterator[None]:
    """Create a private data directory if necessary, and hold its lock within the context.

    Raise `InputError` if another server holds it. The system releases the lock when this process ends.
    """
    make_private(directory)
    with os_errors_as_input_errors(directory, "cannot be written"):
        problem = "another server uses this directory; choose another --data directory"
        lock = acquire_lock(directory / SERVER_LOCK, problem, timeout=0, mode=0o600)
    with lock:
        yield


def serve(
    settings: ServeSettings,
    options: WorkerOptions,
    environments: Sequence[Mapping[str, str]] = (),
) -> None:
    """Run the server until SIGTERM or Ctrl-C. Unfinished jobs stay queued for the next start.

    A worker with these `options` is started for each of `environments`, the additional environment variables of its
    predicting process. Events are logged to stderr as JSON lines. Raise `InputError` if the address cannot be used, or
    if another server uses the data directory.
    """
    _log_to_stderr()
    os.umask(0o077)  # only the owner can read what this process and its workers write
    with only_server(settings.data):
        service = Service.open(settings)
        try:
            if settings.needs_token and not service.tokens.all():
                is_default = settings.data.absolute() == DATA.absolute()
                data = "" if is_default else f" --data {shlex.quote(str(settings.data))}"
                print(f"no user has a token yet; create one with helixfold serve token create USER{data}")
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
                timeout_keep_alive=_IDLE_CONNECTION_SECONDS,
                timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            )
            socket = _bound(config)
            host, port = socket.getsockname()[:2]
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            local_workers = LocalWorkers(
                [
                    WorkerCall(
                        url=url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:"),
                        token=app.state.worker_token,
                        options=options,
                        name=f"worker-{index}",
                        environment=environment,
                        allow_http=True,  # the address is one of this machine's
                    )
                    for index, environment in enumerate(environments)
                ]
            )
            maintenance = Maintenance(service)
            server = _Server(config, local_workers)
            maintenance.start()
            local_workers.start()
            print(f"helixfold serves on {url}")
            sys.stdout.flush()
            try:
                server.run(sockets=[socket])
            finally:
                local_workers.stop()
                maintenance.stop()
        finally:
            service.close()


class _Server(uvicorn.Server):
    """A uvicorn server that lets its workers release their jobs before it stops accepting requests."""

    def __init__(self, config: uvicorn.Config, workers: "LocalWorkers") -> None:
        super().__init__(config)
        self._workers, self._is_ending = workers, False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop the workers in a thread, then the server. A second signal stops the server without waiting for them."""
        if self._is_ending:
            super().handle_exit(sig, frame)
            return
        self._is_ending = True

        def end() -> None:
            """Let the workers release their jobs, then stop the server."""
            self._workers.stop()
            uvicorn.Server.handle_exit(self, sig, frame)

        threading.Thread(target=end, daemon=True).start()


def allow_connections() -> None:
    """Raise this process's soft limit of open files to twice the maximum number of connections.

    A lower hard limit is used instead. A limit that is already high enough does not change.
    """
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit < _MIN_OPEN_FILES:
        new_limit = _MIN_OPEN_FILES if hard_limit == resource.RLIM_INFINITY else min(_MIN_OPEN_FILES, hard_limit)
        resource.setrlimit(resource.RLIMIT_NOFILE, (new_limit, hard_limit))


def _bound(config: uvicorn.Config) -> Any:
    """Return a socket that listens on the address of the settings. Raise `InputError` if it cannot be used."""
    try:
        return config.bind_socket()
    except SystemExit:
        address = f"{config.host}:{config.port}"
        raise InputError(f"cannot listen on {address}; choose another --port or --host") from None


def _log_to_stderr() -> None:
    """Log each event of the service, and warnings of its libraries, to stderr as one JSON object with the time."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines())
    for name in ("helixfold.apps.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if name == "helixfold.apps.serve" else logging.WARNING)


class _JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON with the time and the level."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON; a message that is itself a JSON object is merged into it."""
        text = record.getMessage()
        content = json.loads(text) if text.startswith("{") else {"event": "message", "text": text}
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps({"time": round(record.created, 3), "level": record.levelname.lower(), **content})


class Maintenance:
    """Two threads that maintain the queue and call webhooks every two seconds while the server runs.

    Maintenance queues jobs of lost workers again or marks them as failed, and removes old results.
    Webhooks have their own thread because their hosts may answer slowly, which must not delay ended leases.
    """

    def __init__(self, service: Service) -> None:
        self._service, self._stop, self._rounds = service, threading.Event(), 0
        tasks = {"maintenance": self._maintain_queue, "webhooks": lambda: call_due_webhooks(service, self._stop.is_set)}
        self._threads = [
            threading.Thread(target=self._repeat, args=(task,), name=name, daemon=True) for name, task in tasks.items()
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads, and wait until they have finished their current task."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, task: Callable[[], None]) -> None:
        """Call a task every two seconds until `stop` is called; log errors of files and of the database."""
        while not self._stop.wait(_SECONDS_BETWEEN_ROUNDS):
            try:
                task()
            except (OSError, sqlite3.Error) as error:  # may be temporary, such as a full disk
                _LOGGER.error(json.dumps({"event": "maintenance failed", "error": str(error)}))

    def _maintain_queue(self) -> None:
        """Queue jobs whose leases have ended again, and sometimes remove the files of old jobs."""
        service = self._service
        for job in service.queue.recover():
            line = {"event": "lease ended", "job": job.id, "worker": job.worker, "state": job.state}
            _LOGGER.warning(json.dumps(line))
            service.waiting_jobs.notify()
        if self._rounds % _ROUNDS_PER_EXPIRY == 0:
            service.remove_files(service.queue.expire())
        self._rounds += 1


def call_due_webhooks(service: Service, is_ending: Callable[[], bool] = lambda: False) -> None:
    """Call at most 20 of the webhooks that are due, until `is_ending` returns true.

    A failed call becomes due again after a growing pause, at most four times.
    """
    query = "SELECT * FROM jobs WHERE webhook_next IS NOT NULL AND webhook_next <= ? ORDER BY webhook_next LIMIT ?"
    for row in service.database.rows(query, (service.clock(), _WEBHOOKS_PER_ROUND)):
        if is_ending():
            return
        attempt, problem = row["webhook_attempts"], _post_end(service, Job.of(row))
        if problem is not None:
            _LOGGER.warning(json.dumps({"event": "webhook failed", "job": row["id"], "error": problem}))
        is_over = problem is None or attempt >= len(_WEBHOOK_PAUSES)
        next_call = None if is_over else service.clock() + _WEBHOOK_PAUSES[attempt]
        with service.database.transaction() as connection:
            connection.execute(
                "UPDATE jobs SET webhook_next = ?, webhook_attempts = webhook_attempts + 1 "
                "WHERE id = ? AND webhook_next = ?",  # unless the job has ended once more in the meantime
                (next_call, row["id"], row["webhook_next"]),
            )


def _post_end(service: Service, job: Job) -> str | None:
    """Post the state of an ended job to its webhook. Return the problem if the call fails, else None."""
    url = job.webhook or ""
    parts = urlsplit(url)
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    if parts.hostname is None or f"{parts.hostname}:{port}" not in service.settings.webhook_host:
        return "its host is no longer in --webhook-host"
    body = json.dumps({"id": job.id, "name": job.name, "state": job.state, "ended": job.ended}).encode()
    headers = {"Content-Type": "application/json"}
    try:
        with send("POST", url, timeout=_WEBHOOK_TIMEOUT, max_bytes=0, headers=headers, body=body) as response:
            status = response.status
    except RequestError as error:
        return str(error)
    return None if 200 <= status < 300 else f"status {status}"


class LocalWorkers:
    """Workers on this machine, each in a thread that restarts it if it ends."""

    def __init__(self, calls: Sequence[WorkerCall]) -> None:
        self._workers = [create_worker(call, niceness=_NICENESS) for call in calls]
        self._threads = [
            threading.Thread(target=_keep_working, args=(worker,), name=worker.name, daemon=True)
            for worker in self._workers
        ]

    def start(self) -> None:
        """Start the threads of all workers."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let all workers release their jobs and end. End the predicting processes of workers that take too long."""
        for worker in self._workers:
            worker.stop.set()
        until = time.monotonic() + _MAX_STOP_SECONDS
        for worker, thread in zip(self._workers, self._threads, strict=True):
            thread.join(max(0.1, until - time.monotonic()))
            if thread.is_alive():
                worker.process.stop()


def _keep_working(worker: Worker) -> None:
    """Run a worker until it is stopped; restart it after a pause if it ends before."""
    pause = 1.0
    while not worker.stop.is_set():
        started = time.monotonic()
        try:
            worker.run()
        except Exception:
            _LOGGER.warning(json.dumps({"event": "worker ended", "worker": worker.name}), exc_info=True)
        pause = min(2 * pause, _MAX_RESTART_PAUSE) if time.monotonic() - started < _QUICK_EXIT_SECONDS else 1.0
        worker.stop.wait(pause)
