"""Links that show one job to whoever has them, and ended sessions; the database holds only digests of both."""

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
        """Return the secret of a new link to a job, which is good for so long and shown only now.

        `token` is the id of the token with which its user makes the link; None where no token is needed.
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
        """Return the ids of the job that a link shows and of the token that made it.

        Return None for a link that was withdrawn, has ended, or never was.
        """
        query = "SELECT job, token FROM shares WHERE digest = ? AND expires >= ?"
        rows = self.database.rows(query, (_digest(secret), self.clock()))
        return (rows[0]["job"], rows[0]["token"]) if rows else None

    def withdraw(self, job: str) -> None:
        """End all links to a job."""
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM shares WHERE job = ?", (job,))

    def count(self, job: str) -> int:
        """Return how many links to a job are good now."""
        query = "SELECT count(*) AS count FROM shares WHERE job = ? AND expires >= ?"
        return int(self.database.rows(query, (job, self.clock()))[0]["count"])


class EndedSessions:
    """Sessions that were ended before their time; the server looks them up in memory."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock
        rows = database.rows("SELECT digest, expires FROM ended_sessions")
        self._expiry = {row["digest"]: row["expires"] for row in rows}

    def add(self, cookie: str, seconds: float) -> None:
        """End the session of a cookie, which would have been good for at most so many seconds."""
        now, digest = self._clock(), _digest(cookie)
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM ended_sessions WHERE expires < ?", (now,))
            connection.execute("INSERT OR REPLACE INTO ended_sessions VALUES (?, ?)", (digest, now + seconds))
        kept = {each: expires for each, expires in self._expiry.items() if expires >= now}
        self._expiry = {**kept, digest: now + seconds}

    def has(self, cookie: str) -> bool:
        """Return whether the session of a cookie was ended."""
        return _digest(cookie) in self._expiry


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
