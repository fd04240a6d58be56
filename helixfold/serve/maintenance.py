"""Repeated tasks of a server: give back jobs of dead workers, remove what has expired, call webhooks."""

import json
import logging
import sqlite3
import threading
from typing import Final

from helixfold.serve.service import Service
from helixfold.serve.webhooks import call_due_webhooks

_LOGGER = logging.getLogger("helixfold.serve")
_SECONDS_BETWEEN_LOOKS: Final = 2.0
_LOOKS_PER_EXPIRY: Final = 300


class Maintenance:
    """A thread that looks after the queue while the server runs."""

    def __init__(self, service: Service) -> None:
        self._service, self._stop = service, threading.Event()
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, after what is under way."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        looks = 0
        while not self._stop.wait(_SECONDS_BETWEEN_LOOKS):
            try:
                self._look(expire=looks % _LOOKS_PER_EXPIRY == 0)
            except (OSError, sqlite3.Error) as error:  # such as a full disk, which may have room again
                _LOGGER.error(json.dumps({"event": "maintenance failed", "error": str(error)}))
            looks += 1

    def _look(self, *, expire: bool) -> None:
        service = self._service
        for job in service.queue.recover():
            line = {"event": "lease ended", "job": job.id, "worker": job.worker, "state": job.state}
            _LOGGER.warning(json.dumps(line))
            service.waiting_jobs.changed()
        if expire:
            service.remove_files(service.queue.expire())
        call_due_webhooks(service)
