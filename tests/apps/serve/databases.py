"""What tests read from a service's database."""

import sqlite3

from helixfold.apps.serve.queue.database import Database


def audit_lines(database: Database, limit: int = 100) -> list[sqlite3.Row]:
    """The last lines of the audit log, the newest first."""
    return database.rows("SELECT * FROM audit ORDER BY number DESC LIMIT ?", (limit,))


def is_intact(connection: sqlite3.Connection | Database) -> bool:
    """Whether SQLite's own check finds nothing wrong."""
    query = "PRAGMA integrity_check(1)"
    rows = connection.rows(query) if isinstance(connection, Database) else connection.execute(query).fetchall()
    return [row[0] for row in rows] == ["ok"]
