"""Shared links to jobs, and sessions that users ended. The database holds only digests of both."""

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from helixfold.apps.serve.queue.database import Database


@dataclass(frozen=True)
class Shares:
    """The shared links of the service."""

    database: Database
    clock: Callable[[], float] = time.time

    def create(self, job: str, seconds: float, token: str | None = None) -> str:
        """Create a link to a job that is valid for `seconds`, and return its secret, of which only a digest is stored.

        `job` is an id. `token` is the id of the user's token; None if the service does not require tokens.
        """
        secret, now = secrets.token_urlsafe(24), self.clock()
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM shares WHERE expires < ?", (now,))
            connection.execute(
                "INSERT INTO shares (digest, job, created, expires, token) VALUES (?, ?, ?, ?, ?)",
                (_digest(secret), job, now, now + seconds, token),
            )
        return secret

    def find(self, secret: str) -> tuple[str, str | None] | None:
        """Return the ids of the job and of the token that belong to a link; None for an invalid or expired link."""
        query = "SELECT job, token FROM shares WHERE digest = ? AND expires >= ?"
        rows = self.database.rows(query, (_digest(secret), self.clock()))
        return (rows[0]["job"], rows[0]["token"]) if rows else None

    def withdraw(self, job: str) -> None:
        """Revoke all links to a job."""
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM shares WHERE job = ?", (job,))

    def count(self, job: str) -> int:
        """Return how many links to a job are valid."""
        query = "SELECT count(*) AS count FROM shares WHERE job = ? AND expires >= ?"
        return int(self.database.rows(query, (job, self.clock()))[0]["count"])


class EndedSessions:
    """Sessions that users ended before they expired: digests of their cookies, in the database and in memory."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock
        rows = database.rows("SELECT digest, expires FROM ended_sessions")
        self._expiry = {row["digest"]: row["expires"] for row in rows}

    def add(self, cookie: str, seconds: float) -> None:
        """End the session of a cookie, which would expire within `seconds`."""
        now, digest = self._clock(), _digest(cookie)
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM ended_sessions WHERE expires < ?", (now,))
            connection.execute("INSERT OR REPLACE INTO ended_sessions VALUES (?, ?)", (digest, now + seconds))
        unexpired = {each: expires for each, expires in self._expiry.items() if expires >= now}
        self._expiry = {**unexpired, digest: now + seconds}

    def has(self, cookie: str) -> bool:
        """Return whether the session of a cookie was ended by its user."""
        return _digest(cookie) in self._expiry


def _digest(secret: str) -> str:
    """Return the SHA-256 of a link's secret or of a cookie, in hexadecimal digits."""
    return hashlib.sha256(secret.encode()).hexdigest()
