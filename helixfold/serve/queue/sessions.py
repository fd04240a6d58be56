"""Sessions that their users have ended by logging out; the database holds only digests of their cookies."""

import hashlib
import time
from collections.abc import Callable

from helixfold.serve.queue.database import Database


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


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()
