"""The audit log: who did what to which job, from where, and when; lines are added and never changed."""

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

from helixfold.serve.queue.database import Database

_MOST_CHARACTERS = 500


def add_line(  # noqa: PLR0917
    connection: sqlite3.Connection,
    now: float,
    user: str,
    address: str,
    action: str,
    job: str | None = None,
    detail: str | None = None,
) -> None:
    """Add a line in a transaction of the caller; `now` is in seconds since 1970."""
    connection.execute(
        "INSERT INTO audit (time, user, address, action, job, detail) VALUES (?, ?, ?, ?, ?, ?)",
        (now, user, address, action, job, detail and detail[:_MOST_CHARACTERS]),
    )


@dataclass(frozen=True)
class AuditLog:
    """The audit log in the service's database."""

    database: Database
    clock: Callable[[], float] = time.time

    def add(self, user: str, address: str, action: str, job: str | None = None, detail: str | None = None) -> None:
        """Add a line."""
        with self.database.transaction() as connection:
            add_line(connection, self.clock(), user, address, action, job, detail)
