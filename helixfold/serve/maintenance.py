"""Repeated tasks of a server: give back jobs of dead workers, remove what has expired, call webhooks."""

import json
import logging
import sqlite3
import threading
from collections.abc import Callable
from typing import Final

from helixfold.serve.service import Service
from helixfold.serve.webhooks import call_due_webhooks

_LOGGER = logging.getLogger("helixfold.serve")
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
