"""A database of an earlier version is brought up to date with all its jobs; what is none is refused."""

import sqlite3
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from helixfold.apps.serve.queue.database import VERSION, Database, connect, migrate
from helixfold.apps.serve.queue.jobs import QueueOptions
from helixfold.apps.serve.queue.queue import JobQueue, QueueViews
from tests.apps.serve.databases import is_intact


def test_an_upgrade_keeps_the_jobs_of_every_earlier_version(tmp_path: Path) -> None:
    for version in range(1, VERSION):
        path = tmp_path / f"{version}.sqlite"
        earlier = connect(path)
        migrate(earlier, path, up_to=version)
        for number, state in enumerate(("queued", "running", "done")):
            earlier.execute(
                "INSERT INTO jobs (id, user, kind, name, request, request_digest, residues, state, created, lease, "
                "lease_until) VALUES (?, 'anna', 'prediction', 'p', '{\"sequence\": \"MK\"}', 'd', 2, ?, 0, ?, 0)",
                (str(number) * 32, state, "lease" if state == "running" else None),
            )
        earlier.close()
        database = Database(path)
        assert [job.state for job in QueueViews(database).history("anna")] == ["done", "running", "queued"]
        queue = JobQueue(database, QueueOptions())
        assert [job.id for job in queue.recover()] == ["1" * 32]
        claimed = queue.claim("worker", ["prediction"])
        assert claimed is not None
        assert claimed.request == {"sequence": "MK"}
        assert is_intact(database)
        database.close()


def test_a_database_of_a_later_version_and_another_file_are_refused(tmp_path: Path) -> None:
    later = connect(tmp_path / "later.sqlite")
    later.execute(f"PRAGMA user_version = {VERSION + 1}")
    later.close()
    with pytest.raises(InputError, match="update helixfold"):
        Database(tmp_path / "later.sqlite")
    (tmp_path / "text.sqlite").write_text("this is no database, but a text that is long enough to be read as one" * 20)
    with pytest.raises(InputError, match="not a usable database"):
        Database(tmp_path / "text.sqlite")


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "service.sqlite"
    connection = connect(path)
    monkeypatch.setattr("helixfold.apps.serve.queue.database.MIGRATIONS", (("CREATE TABLE a (x)", "nonsense"),))
    with pytest.raises(sqlite3.Error):
        migrate(connection, path, up_to=1)
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    connection.close()
