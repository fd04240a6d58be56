"""Tell others of the end of a job: hosts alone that whoever runs the service has named, without following them on."""

import http.client
import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

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
    parts = urlsplit(job.webhook or "")
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    if parts.hostname is None or f"{parts.hostname}:{port}" not in service.settings.webhook_hosts:
        return "its host is not named any more"
    connection = (
        http.client.HTTPSConnection(parts.hostname, port, timeout=_SECONDS, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.hostname, port, timeout=_SECONDS)
    )
    body = json.dumps({"id": job.id, "name": job.name, "state": job.state, "ended": job.ended}).encode()
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # The timeout of a connection is that of each piece; one who sends a letter now and then would never end.
    is_late = threading.Event()
    end = threading.Timer(_SECONDS, _shut_down, (connection, is_late))
    end.daemon = True
    end.start()
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json", "User-Agent": "helixfold"})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException, ValueError) as error:
        problem: str | None = str(error) or type(error).__name__
    else:
        problem = None if 200 <= status < 300 else f"status {status}"
    finally:
        end.cancel()
        connection.close()
    return f"no whole answer within {_SECONDS:g} s" if is_late.is_set() else problem


def _shut_down(connection: http.client.HTTPConnection, is_late: threading.Event) -> None:
    """End a connection on which another thread waits, and say beforehand why."""
    is_late.set()
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
