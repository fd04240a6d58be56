"""Repeated tasks of a server: give back jobs of dead workers, remove what has expired, call webhooks."""

import json
import logging
import sqlite3
import threading
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from data_pipeline.errors import RequestError
from data_pipeline.io.http import send
from helixfold.serve.queue.jobs import Job
from helixfold.serve.service import Service

_LOGGER = logging.getLogger("helixfold.serve")
_SECONDS: Final = 10.0  # for one call, whatever the other side does
_MOST_AT_ONCE: Final = 20
_PAUSES: Final = (10.0, 60.0, 600.0, 3600.0)  # seconds between the attempts


def call_due_webhooks(service: Service, is_ending: Callable[[], bool] = lambda: False) -> None:
    """Call the webhooks that are due, until the service ends, and put off those that could not be called."""
    query = "SELECT * FROM jobs WHERE webhook_next IS NOT NULL AND webhook_next <= ? ORDER BY webhook_next LIMIT ?"
    for row in service.database.rows(query, (service.clock(), _MOST_AT_ONCE)):
        if is_ending():
            return
        attempt, problem = row["webhook_attempts"], _call(service, Job.of(row))
        if problem is not None:
            _LOGGER.warning(json.dumps({"event": "webhook failed", "job": row["id"], "error": problem}))
        is_over = problem is None or attempt >= len(_PAUSES)
        later = None if is_over else service.clock() + _PAUSES[attempt]
        with service.database.transaction() as connection:
            connection.execute(
                "UPDATE jobs SET webhook_next = ?, webhook_attempts = webhook_attempts + 1 "
                "WHERE id = ? AND webhook_next = ?",  # of the end that was told, and not of a later one
                (later, row["id"], row["webhook_next"]),
            )


def _call(service: Service, job: Job) -> str | None:
    """Post the end of a job to its webhook, and return the problem if it is not taken."""
    url = job.webhook or ""
    parts = urlsplit(url)
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    if parts.hostname is None or f"{parts.hostname}:{port}" not in service.settings.webhook_hosts:
        return "its host is not named any more"
    body = json.dumps({"id": job.id, "name": job.name, "state": job.state, "ended": job.ended}).encode()
    headers = {"Content-Type": "application/json"}
    try:
        with send("POST", url, timeout=_SECONDS, max_bytes=0, headers=headers, body=body) as response:
            status = response.status
    except RequestError as error:
        return str(error)
    return None if 200 <= status < 300 else f"status {status}"


_SECONDS_BETWEEN_LOOKS: Final = 2.0
_LOOKS_PER_EXPIRY: Final = 300


class Maintenance:
    """Threads that look after the queue, and call webhooks, while the server runs.

    No lease waits for a webhook, whose other side may take its time.
    """

    def __init__(self, service: Service) -> None:
        self._service, self._stop, self._looks = service, threading.Event(), 0
        tasks = {"maintenance": self._look, "webhooks": self._call_webhooks}
        self._threads = [
            threading.Thread(target=self._repeat, args=(task,), name=name, daemon=True) for name, task in tasks.items()
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, after what is under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, task: Callable[[], None]) -> None:
        while not self._stop.wait(_SECONDS_BETWEEN_LOOKS):
            try:
                task()
            except (OSError, sqlite3.Error) as error:  # such as a full disk, which may have room again
                _LOGGER.error(json.dumps({"event": "maintenance failed", "error": str(error)}))

    def _look(self) -> None:
        service = self._service
        for job in service.queue.recover():
            line = {"event": "lease ended", "job": job.id, "worker": job.worker, "state": job.state}
            _LOGGER.warning(json.dumps(line))
            service.waiting_jobs.changed()
        if self._looks % _LOOKS_PER_EXPIRY == 0:
            service.remove_files(service.queue.expire())
            service.drafts.remove_old()
        self._looks += 1

    def _call_webhooks(self) -> None:
        call_due_webhooks(self._service, self._stop.is_set)
