"""Links that show one job to whoever has them; the database holds only digests of their secrets."""

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from helixfold.serve.queue.database import Database


@dataclass(frozen=True)
class Shares:
    """The shared links of the service."""

    database: Database
    clock: Callable[[], float] = time.time

    def create(self, job: str, seconds: float) -> str:
        """Return the secret of a new link to a job, which is good for so long and shown only now."""
        secret, now = secrets.token_urlsafe(24), self.clock()
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM shares WHERE expires < ?", (now,))
            connection.execute("INSERT INTO shares VALUES (?, ?, ?, ?)", (_digest(secret), job, now, now + seconds))
        return secret

    def job(self, secret: str) -> str | None:
        """Return the id of the job that a link shows; None for one that was withdrawn, has ended, or never was."""
        query = "SELECT job FROM shares WHERE digest = ? AND expires >= ?"
        rows = self.database.rows(query, (_digest(secret), self.clock()))
        return rows[0]["job"] if rows else None

    def withdraw(self, job: str) -> None:
        """End all links to a job."""
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM shares WHERE job = ?", (job,))

    def count(self, job: str) -> int:
        """Return how many links to a job are good now."""
        query = "SELECT count(*) AS count FROM shares WHERE job = ? AND expires >= ?"
        return int(self.database.rows(query, (job, self.clock()))[0]["count"])


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
