"""The service's database: its tables, migrations from earlier versions, transactions and the audit log.

The audit log records who did what to which job, from which address, and when. Its lines are never changed.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from data_pipeline.io.errors import InputError

_LOCK_TIMEOUT_SECONDS: Final = 30.0  # to wait for another program that locks the database
# The statements that migrate each version to the next. Statements of released versions are never changed.
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        """CREATE TABLE jobs (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            user TEXT NOT NULL,
            kind TEXT NOT NULL,
            name TEXT NOT NULL,
            request TEXT NOT NULL,
            request_digest TEXT NOT NULL,
            idempotency_key TEXT,
            residues INTEGER NOT NULL,
            state TEXT NOT NULL
                CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled', 'expired')),
            created REAL NOT NULL,
            started REAL,
            ended REAL,
            attempts INTEGER NOT NULL DEFAULT 0,
            lease TEXT,
            lease_until REAL,
            worker TEXT,
            progress TEXT,
            error TEXT,
            result INTEGER,
            bytes INTEGER NOT NULL DEFAULT 0
        ) STRICT""",
        "CREATE UNIQUE INDEX jobs_by_key ON jobs (user, idempotency_key) WHERE idempotency_key IS NOT NULL",
        "CREATE INDEX jobs_by_state ON jobs (state, number)",
        "CREATE INDEX jobs_by_user ON jobs (user, number)",
        """CREATE TABLE audit (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            time REAL NOT NULL,
            user TEXT NOT NULL,
            address TEXT NOT NULL,
            action TEXT NOT NULL,
            job TEXT,
            detail TEXT
        ) STRICT""",
    ),
    (
        "ALTER TABLE jobs ADD COLUMN summary TEXT",
        "ALTER TABLE jobs ADD COLUMN webhook TEXT",
        "ALTER TABLE jobs ADD COLUMN webhook_attempts INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE jobs ADD COLUMN webhook_next REAL",
        "ALTER TABLE jobs ADD COLUMN losses INTEGER NOT NULL DEFAULT 0",
        # A covering index for the limits of a user, so that the rows need not be read.
        "CREATE INDEX usage_by_user ON jobs (user, state, residues, bytes)",
        "CREATE INDEX jobs_by_webhook ON jobs (webhook_next) WHERE webhook_next IS NOT NULL",
        """CREATE TABLE shares (
            digest TEXT PRIMARY KEY,
            job TEXT NOT NULL,
            created REAL NOT NULL,
            expires REAL NOT NULL
        ) STRICT""",
        """CREATE TABLE workers (
            name TEXT PRIMARY KEY,
            offers TEXT NOT NULL,
            seen REAL NOT NULL
        ) STRICT""",
    ),
    (
        """CREATE TABLE ended_sessions (
            digest TEXT PRIMARY KEY,
            expires REAL NOT NULL
        ) STRICT""",
        # The token with which a link was created. The link is valid only as long as the token.
        "ALTER TABLE shares ADD COLUMN token TEXT",
        # Earlier versions kept the requests of expired jobs.
        "UPDATE jobs SET request = '{}', request_digest = '', idempotency_key = NULL, progress = NULL, error = NULL "
        "WHERE state = 'expired'",
        "DELETE FROM jobs WHERE kind = 'alignment' AND state = 'expired'",
    ),
)
VERSION: Final = len(MIGRATIONS)  # of the tables after all migrations


def open_database(path: Path) -> sqlite3.Connection:
    """Open the service's database, create it if it does not exist, and migrate an earlier version.

    Commits are flushed to the disk. Raise `InputError` for a file that is not a database of this service, is damaged,
    or was written by a later version of helixfold.
    """
    connection = connect(path)
    try:
        # A commit survives a power cut only if the write-ahead log is flushed with it.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")  # deleted content is overwritten
        migrate(connection, path)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise InputError.at(
            path, f"is not a usable database of this service ({error}); restore it from a backup"
        ) from error
    except BaseException:
        connection.close()
        raise
    return connection


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection to a SQLite file, without automatic transactions and with columns by name.

    Threads that share it must use a lock.
    """
    connection = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    return connection


def migrate(connection: sqlite3.Connection, path: Path, *, up_to: int = VERSION) -> None:
    """Apply the migrations that a database needs to reach the version `up_to`, each in its own transaction.

    `path` is only named in the error: raise `InputError` if the database is of a version later than `VERSION`.
    """
    current = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if current > VERSION:
        problem = f"has version {current}, but this helixfold supports up to {VERSION}; update helixfold"
        raise InputError.at(path, problem)
    for version in range(current, up_to):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in MIGRATIONS[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


class Database:
    """The service's database: a connection for transactions, and one for queries, which never wait for a commit."""

    def __init__(self, path: Path) -> None:
        self._writer = open_database(path)
        self._reader = connect(path)
        self._writer_lock, self._reader_lock = threading.Lock(), threading.Lock()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction, which is committed when the context ends, or rolled back by an error."""
        with self._writer_lock:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
            except BaseException:
                self._writer.execute("ROLLBACK")
                raise
            self._writer.execute("COMMIT")

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Return the rows of a query, with `values` for its question marks."""
        with self._reader_lock:
            return self._reader.execute(query, values).fetchall()

    def empty_log(self) -> None:
        """Copy the write-ahead log into the database and empty it, because it may contain deleted content."""
        with self._writer_lock, self._reader_lock:
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close the connections."""
        with self._writer_lock, self._reader_lock:
            self._writer.close()
            self._reader.close()


_MAX_DETAIL = 500  # characters


def add_line(  # noqa: PLR0917
    connection: sqlite3.Connection,
    now: float,
    user: str,
    address: str,
    action: str,
    job: str | None = None,
    detail: str | None = None,
) -> None:
    """Add a line to the audit log in a transaction of the caller. `now` is in seconds since 1970.

    `address` is the client's IP address, `job` an id. A `detail` is truncated to 500 characters.
    """
    connection.execute(
        "INSERT INTO audit (time, user, address, action, job, detail) VALUES (?, ?, ?, ?, ?, ?)",
        (now, user, address, action, job, detail and detail[:_MAX_DETAIL]),
    )


@dataclass(frozen=True)
class AuditLog:
    """The audit log in the service's database."""

    database: Database
    clock: Callable[[], float] = time.time

    def add(self, user: str, address: str, action: str, job: str | None = None, detail: str | None = None) -> None:
        """Record an action of a user, from an address, on a job if the action concerns one."""
        with self.database.transaction() as connection:
            add_line(connection, self.clock(), user, address, action, job, detail)
