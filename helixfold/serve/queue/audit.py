"""The audit log: who did what to which job, from where, and when; lines are added and never changed."""

import sqlite3
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from helixfold.serve.queue.database import Database

_MOST_CHARACTERS = 500


@dataclass(frozen=True, kw_only=True)
class AuditRecord:
    """One line of the audit log; `time` is in seconds since 1970."""

    time: float
    user: str
    address: str
    action: str
    job: str | None = None
    detail: str | None = None

    def insert(self, connection: sqlite3.Connection) -> None:
        """Add the line in a transaction of the caller."""
        values = asdict(self)
        values["detail"] = self.detail and self.detail[:_MOST_CHARACTERS]
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO audit ({names}) VALUES ({marks})", tuple(values.values()))


@dataclass(frozen=True)
class AuditLog:
    """The audit log in the service's database."""

    database: Database
    clock: Callable[[], float] = time.time

    def add(self, user: str, address: str, action: str, job: str | None = None, detail: str | None = None) -> None:
        """Add a line."""
        record = AuditRecord(time=self.clock(), user=user, address=address, action=action, job=job, detail=detail)
        with self.database.transaction() as connection:
            record.insert(connection)

    def newest(self, limit: int = 100) -> list[AuditRecord]:
        """Return the last lines, the newest first."""
        rows = self.database.rows(
            "SELECT time, user, address, action, job, detail FROM audit ORDER BY number DESC LIMIT ?", (limit,)
        )
        return [AuditRecord(**dict(row)) for row in rows]
