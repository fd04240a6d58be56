"""Transactions and reads of the service's database for the threads of a server."""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helixfold.serve.queue.schema import connect, integrity_problem, open_database


class Database:
    """One connection that writes, one transaction at a time, and one that reads and never waits for a commit."""

    def __init__(self, path: Path) -> None:
        self._writer = open_database(path)
        self._reader = connect(path)
        self._writing, self._reading = threading.Lock(), threading.Lock()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction, which is on the disk when the context ends, or undone by an error."""
        with self._writing:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
            except BaseException:
                self._writer.execute("ROLLBACK")
                raise
            self._writer.execute("COMMIT")

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Return the rows that a query finds."""
        with self._reading:
            return self._reader.execute(query, values).fetchall()

    def empty_log(self) -> None:
        """Copy the write-ahead log into the database and empty it: it may hold what was deleted."""
        with self._writing, self._reading:
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def integrity_problem(self) -> str | None:
        """Return what SQLite's own check finds wrong with the database, or None."""
        with self._reading:
            return integrity_problem(self._reader)

    def close(self) -> None:
        """Close the connections."""
        with self._writing, self._reading:
            self._writer.close()
            self._reader.close()
