"""The queue of jobs: submitted, claimed under a lease, finished once, or given back when a worker dies."""

import json
import secrets
import sqlite3
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from helixfold.apps.serve.queue.database import Database, add_line
from helixfold.apps.serve.queue.jobs import Job, JobKind, JobState, NewJob, QueueOptions, Usage

# Columns of a job that waits once more: nothing of its earlier end is left, or is still to be told.
_AFRESH = (
    "losses = 0, error = NULL, ended = NULL, started = NULL, progress = NULL, worker = NULL, lease = NULL, "
    "webhook_next = NULL, webhook_attempts = 0"
)
# Columns of a job that has expired: nothing is left of what it asked for, and its files are removed.
_EXPIRED = (
    "bytes = 0, result = NULL, request = '{}', request_digest = '', idempotency_key = NULL, progress = NULL, "
    "error = NULL"
)
_OVERRUN = (
    "the job ran for longer than {hours:g} h, the limit of this service; use fewer predictions or recycles, or a "
    "shorter sequence, or ask whoever runs the service to raise --max-hours"
)
_LOST = "its worker died or lost contact {count} times during the job; a smaller job may fit into memory"

# What counts towards the limits of a user.
_USAGE = (
    "SELECT count(*) FILTER (WHERE state IN ('queued', 'running')) AS jobs, "
    "total(residues) FILTER (WHERE state IN ('queued', 'running')) AS residues, total(bytes) AS bytes "
    "FROM jobs WHERE user = ?"
)


class DuplicateKeyError(ValueError):
    """Error for an idempotency key under which the same user has submitted something else."""


class LostLeaseError(RuntimeError):
    """Error for a worker whose job was cancelled, or was given to another worker after its lease had ended."""


class JobStateError(ValueError):
    """Error for what cannot be done with a job in its state, such as to retry one that runs."""


class JobQueue:
    """Jobs in a database; every method is one transaction, which is on the disk when it returns.

    A job is claimed by one worker at a time, which shows its lease with everything that it reports. A job whose lease
    has ended is claimed again, and what a worker without a lease sends is refused: no job is lost, none is done twice.
    """

    def __init__(self, database: Database, options: QueueOptions, clock: Callable[[], float] = time.time) -> None:
        self._database, self.options, self._clock = database, options, clock
        self._max_seconds = 3600 * options.max_hours  # of an attempt
        self._revisions: dict[str, int] = defaultdict(int)

    def submit(self, new: NewJob) -> tuple[Job, bool]:
        """Add a job and return it with True, or with False the one that was submitted under its idempotency key or id.

        Raise `DuplicateKeyError` if that was another request, `QuotaError` if its user has no room for it.
        """
        with self._database.transaction() as connection:
            if (earlier := self._earlier(connection, new)) is not None:
                return earlier, False
            values = {
                "id": new.id,
                "user": new.user,
                "kind": new.kind,
                "name": new.name,
                "request": json.dumps(new.request),
                "request_digest": new.request_digest,
                "idempotency_key": new.idempotency_key,
                "residues": new.residues,
                "state": "queued",
                "created": self._clock(),
                "bytes": new.bytes,
                "webhook": new.webhook,
            }
            names, marks = ", ".join(values), ", ".join("?" * len(values))
            query = f"INSERT INTO jobs ({names}) VALUES ({marks}) RETURNING *"
            row = connection.execute(query, tuple(values.values())).fetchone()
            add_line(connection, self._clock(), new.user, new.address, "submit", new.id)
        return self._changed(row), True

    def earlier(self, new: NewJob) -> Job | None:
        """Return the job that `submit` would return instead of adding this one; None if it would be added.

        Raise as `submit` does.
        """
        with self._database.transaction() as connection:
            return self._earlier(connection, new)

    def _earlier(self, connection: sqlite3.Connection, new: NewJob) -> Job | None:
        row = connection.execute(
            "SELECT * FROM jobs WHERE id = ? OR (user = ? AND idempotency_key = ?)",
            (new.id, new.user, new.idempotency_key),
        ).fetchone()
        if row is None:
            self.options.check(new, Usage.of(connection.execute(_USAGE, (new.user,)).fetchone()))
            return None
        if row["request_digest"] != new.request_digest:
            raise DuplicateKeyError("this idempotency key belongs to another job of yours; choose a new one")
        return Job.of(row)

    def claim(self, worker: str, kinds: Sequence[JobKind], longest: int | None = None) -> Job | None:
        """Give the first waiting job of these kinds to a worker, with a new lease; return None if there is none.

        A worker takes no prediction of more than `longest` residues, which its memory has no room for.
        """
        now = self._clock()
        marks = ", ".join("?" * len(kinds))
        with self._database.transaction() as connection:
            row = connection.execute(
                "UPDATE jobs SET state = 'running', lease = ?, lease_until = ?, worker = ?, attempts = attempts + 1, "
                "started = ?, progress = NULL, error = NULL WHERE number = (SELECT number FROM jobs "
                f"WHERE state = 'queued' AND kind IN ({marks}) AND (kind != 'prediction' OR residues <= ?) "
                "ORDER BY number LIMIT 1) RETURNING *",
                (
                    secrets.token_urlsafe(24),
                    now + min(self.options.lease_seconds, self._max_seconds),
                    worker,
                    now,
                    *kinds,
                    longest or 2**62,
                ),
            ).fetchone()
        return None if row is None else self._changed(row)

    def heartbeat(self, job: str, lease: str, progress: Mapping[str, Any] | None = None) -> None:
        """Extend a lease, and keep how far the job is; raise `LostLeaseError` if the job is not this worker's.

        No lease extends beyond the time limit of an attempt.
        """
        now = self._clock()
        until = now + self.options.lease_seconds
        with self._database.transaction() as connection:
            row = connection.execute(
                "UPDATE jobs SET lease_until = min(?, coalesce(started, ?) + ?), progress = coalesce(?, progress) "
                "WHERE id = ? AND lease = ? AND state = 'running' RETURNING *",
                (until, now, self._max_seconds, None if progress is None else json.dumps(progress), job, lease),
            ).fetchone()
        if progress is None and row is not None:
            return  # nothing that anybody watches has changed
        self._held(row)

    def finish(self, job: str, lease: str, *, size: int, summary: Mapping[str, Any]) -> Job:
        """End a job with the files of this attempt, of so many bytes, as its result.

        A worker that did not get the answer may ask again. Raise `LostLeaseError` if the job is not this worker's.
        """
        now = self._clock()
        with self._database.transaction() as connection:
            row = connection.execute(
                "UPDATE jobs SET state = 'done', ended = ?, result = attempts, bytes = bytes + ?, summary = ?, "
                "webhook_next = CASE WHEN webhook IS NULL THEN NULL ELSE ? END "
                "WHERE id = ? AND lease = ? AND state = 'running' RETURNING *",
                (now, size, json.dumps(summary), now, job, lease),
            ).fetchone()
            if row is None:
                row = connection.execute(
                    "SELECT * FROM jobs WHERE id = ? AND lease = ? AND state IN ('done', 'expired')", (job, lease)
                ).fetchone()
        return self._held(row)

    def fail(self, job: str, lease: str, error: str, *, try_again: bool) -> Job:
        """End a job that failed, or let it be claimed again if another attempt may do better and is left."""
        with self._database.transaction() as connection:
            row = connection.execute(
                "SELECT * FROM jobs WHERE id = ? AND lease = ? AND state = 'running'", (job, lease)
            ).fetchone()
            if row is not None:
                again = try_again and row["losses"] + 1 < self.options.max_attempts
                row = self._end_attempt(connection, row["number"], error, again=again)
        return self._held(row)

    def release(self, job: str, lease: str) -> Job:
        """Give back a job whose worker stops; the attempt does not count."""
        with self._database.transaction() as connection:
            row = connection.execute(
                "UPDATE jobs SET state = 'queued', lease = NULL, worker = NULL, started = NULL, progress = NULL "
                "WHERE id = ? AND lease = ? AND state = 'running' RETURNING *",
                (job, lease),
            ).fetchone()
        return self._held(row)

    def cancel(self, job: str) -> Job:
        """End a job that waits or runs; its worker learns it with its next heartbeat. Others stay as they are."""
        now = self._clock()
        others = "ended = ?, lease = NULL, webhook_next = CASE WHEN webhook IS NULL THEN NULL ELSE ? END"
        return self._set(job, "cancelled", ("queued", "running"), others, (now, now))[0]

    def retry(self, job: str) -> Job:
        """Let a job that failed or was cancelled wait again, with all its attempts.

        Raise `JobStateError` otherwise, `QuotaError` if its user has no room for it.
        """
        found, is_changed = self._requeue(job, ("failed", "cancelled"))
        if not is_changed:
            raise JobStateError(f"the job is {found.state}; only failed and cancelled jobs can be retried")
        return found

    def again(self, job: str, user: str) -> Job:
        """Let a job that has ended without a result, or whose result has expired, wait once more, as this user's.

        Raise `QuotaError` if the user has no room for it.
        """
        return self._requeue(job, ("failed", "cancelled", "expired"), user)[0]

    def rename(self, job: str, name: str) -> Job:
        """Give a job another name for people."""
        with self._database.transaction() as connection:
            row = connection.execute("UPDATE jobs SET name = ? WHERE id = ? RETURNING *", (name, job)).fetchone()
        return self._changed(row)

    def recover(self) -> list[Job]:
        """Give back the jobs whose leases have ended, or end them as failed after the last attempt; return them.

        A job that ran over the time limit fails at once: its lease was extended up to the limit, while the lease of a
        worker that died, or of a server that was away, ends at another moment.
        """
        now, rows = self._clock(), []
        overrun = _OVERRUN.format(hours=self.options.max_hours)
        with self._database.transaction() as connection:
            ended = connection.execute(
                "SELECT number, losses, lease_until = started + ? AS is_overrun FROM jobs "
                "WHERE state = 'running' AND lease_until < ?",
                (self._max_seconds, now),
            ).fetchall()
            for row in ended:
                is_overrun = bool(row["is_overrun"])
                error = overrun if is_overrun else _LOST.format(count=row["losses"] + 1)
                again = not is_overrun and row["losses"] + 1 < self.options.max_attempts
                rows.append(self._end_attempt(connection, row["number"], error, again=again))
        return [self._changed(row) for row in rows]

    def extend_all(self) -> None:
        """Extend all leases: a server that was away could not hear the heartbeats of workers that are well."""
        with self._database.transaction() as connection:
            until = self._clock() + self.options.lease_seconds
            connection.execute("UPDATE jobs SET lease_until = max(lease_until, ?) WHERE state = 'running'", (until,))

    def expire(self) -> list[Job]:
        """Mark the jobs that ended long ago as expired, and return them, whose files are to be removed.

        Nothing is left of searches for other programs.
        """
        before = self._clock() - self.options.keep_days * 86_400.0
        with self._database.transaction() as connection:
            rows = connection.execute(
                f"UPDATE jobs SET state = 'expired', {_EXPIRED} "
                "WHERE state IN ('done', 'failed', 'cancelled') AND ended < ? RETURNING *",
                (before,),
            ).fetchall()
            connection.execute("DELETE FROM jobs WHERE kind = 'alignment' AND state = 'expired'")
        return [self._changed(row) for row in rows]

    def delete(self, job: str) -> Job:
        """Mark a job as expired at once, if it has ended; raise `JobStateError` for one that waits or runs."""
        found, is_changed = self._set(job, "expired", ("done", "failed", "cancelled"), _EXPIRED)
        if not is_changed and found.state != "expired":
            raise JobStateError(f"the job is {found.state}; cancel it first")
        return found

    def revision(self, job: str) -> int:
        """Return a number that is larger after each change of a job by this process."""
        return self._revisions[job]

    def _set(
        self, job: str, state: JobState, before: Sequence[JobState], others: str, values: Sequence[Any] = ()
    ) -> tuple[Job, bool]:
        """Change the state and other columns of a job that is in one of these states.

        Return the job as it is then, and whether it was changed.
        """
        marks = ", ".join("?" * len(before))
        with self._database.transaction() as connection:
            row = connection.execute(
                f"UPDATE jobs SET state = ?, {others} WHERE id = ? AND state IN ({marks}) RETURNING *",
                (state, *values, job, *before),
            ).fetchone()
            is_changed = row is not None
            if not is_changed:
                row = connection.execute("SELECT * FROM jobs WHERE id = ?", (job,)).fetchone()
        return self._changed(row), is_changed

    def _requeue(self, job: str, before: Sequence[JobState], user: str | None = None) -> tuple[Job, bool]:
        """Queue a job in one of these states again, for another user if one is named, within the user's limits.

        Return the job as it is then, and whether it was changed.
        """
        with self._database.transaction() as connection:
            row = connection.execute("SELECT * FROM jobs WHERE id = ?", (job,)).fetchone()
            is_changed = row["state"] in before
            if is_changed:
                owner = user or row["user"]
                # The bytes of its files count already.
                self.options.check(
                    replace(Job.of(row), bytes=0), Usage.of(connection.execute(_USAGE, (owner,)).fetchone())
                )
                row = connection.execute(
                    f"UPDATE jobs SET state = 'queued', user = ?, {_AFRESH} WHERE id = ? RETURNING *", (owner, job)
                ).fetchone()
        return self._changed(row), is_changed

    def _end_attempt(self, connection: sqlite3.Connection, number: int, error: str, *, again: bool) -> sqlite3.Row:
        now = self._clock()
        state, ended = ("queued", None) if again else ("failed", now)
        row: sqlite3.Row = connection.execute(
            "UPDATE jobs SET state = ?, ended = ?, error = ?, losses = losses + 1, lease = NULL, "
            "webhook_next = CASE WHEN webhook IS NULL OR ? IS NULL THEN NULL ELSE ? END WHERE number = ? RETURNING *",
            (state, ended, error, ended, ended, number),
        ).fetchone()
        return row

    def _held(self, row: sqlite3.Row | None) -> Job:
        if row is None:
            raise LostLeaseError("the job no longer belongs to this worker: it was cancelled, or given to another one")
        return self._changed(row)

    def _changed(self, row: sqlite3.Row) -> Job:
        job = Job.of(row)
        self._revisions[job.id] += 1
        return job


_MOST_LISTED = 200


@dataclass(frozen=True)
class QueueViews:
    """Reads of the queue; none of them waits for a commit."""

    database: Database

    def job(self, job: str) -> Job | None:
        """Return a job by its id, or None."""
        rows = self.database.rows("SELECT * FROM jobs WHERE id = ?", (job,))
        return Job.of(rows[0]) if rows else None

    def history(
        self, user: str, *, kind: JobKind = "prediction", before: int | None = None, limit: int = 50
    ) -> list[Job]:
        """Return a user's jobs of a kind, the newest first, of those with smaller numbers than `before`."""
        rows = self.database.rows(
            "SELECT * FROM jobs WHERE user = ? AND kind = ? AND number < ? ORDER BY number DESC LIMIT ?",
            (user, kind, 2**62 if before is None else before, min(limit, _MOST_LISTED)),
        )
        return [Job.of(row) for row in rows]

    def active_searches(self, user: str) -> list[Job]:
        """Return a user's searches for other programs that wait or run, the newest first."""
        rows = self.database.rows(
            "SELECT * FROM jobs WHERE user = ? AND kind = 'alignment' AND state IN ('queued', 'running') "
            "ORDER BY number DESC LIMIT ?",
            (user, _MOST_LISTED),
        )
        return [Job.of(row) for row in rows]

    def place(self, job: Job) -> int | None:
        """Return how many jobs wait up to this one, itself included; None if it does not wait."""
        if job.state != "queued":
            return None
        rows = self.database.rows(
            "SELECT count(*) AS count FROM jobs WHERE state = 'queued' AND kind = ? AND number <= ?",
            (job.kind, job.number),
        )
        return int(rows[0]["count"])

    def places(self, jobs: Sequence[Job]) -> list[int | None]:
        """Return the place of each prediction, as `place` does, with one read of the queue."""
        query = "SELECT number FROM jobs WHERE state = 'queued' AND kind = 'prediction' ORDER BY number"
        waiting = [row["number"] for row in self.database.rows(query)]
        return [bisect_right(waiting, job.number) if job.state == "queued" else None for job in jobs]

    def usage(self, user: str) -> Usage:
        """Return what a user has in the service."""
        return Usage.of(self.database.rows(_USAGE, (user,))[0])

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of jobs by kind and state."""
        rows = self.database.rows("SELECT kind, state, count(*) AS count FROM jobs GROUP BY kind, state")
        return {(row["kind"], row["state"]): int(row["count"]) for row in rows}

    def ids(self) -> set[str]:
        """Return the ids of all jobs whose files may be there."""
        return {row["id"] for row in self.database.rows("SELECT id FROM jobs WHERE state != 'expired'")}
