"""The queue of jobs: submit, claim with a lease, finish once, and queue again when a worker dies."""

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

# Columns of a job that is queued again: its earlier end is forgotten, and its webhook is not called for it.
_REQUEUED_COLUMNS = (
    "losses = 0, error = NULL, ended = NULL, started = NULL, progress = NULL, worker = NULL, lease = NULL, "
    "webhook_next = NULL, webhook_attempts = 0"
)
# Columns of an expired job, whose request is erased and whose files are removed.
_EXPIRED_COLUMNS = (
    "bytes = 0, result = NULL, request = '{}', request_digest = '', idempotency_key = NULL, progress = NULL, "
    "error = NULL"
)
_OVERRUN_MESSAGE = (
    "the job ran for longer than {hours:g} h, the limit of this service; use fewer predictions or recycles, or a "
    "shorter sequence, or ask whoever runs the service to raise --max-hours"
)
_LOST_MESSAGE = "its worker died or lost contact {count} times during the job; a smaller job may fit into memory"

# The values that are compared with the limits of a user.
_USAGE_QUERY = (
    "SELECT count(*) FILTER (WHERE state IN ('queued', 'running')) AS jobs, "
    "total(residues) FILTER (WHERE state IN ('queued', 'running')) AS residues, total(bytes) AS bytes "
    "FROM jobs WHERE user = ?"
)


class DuplicateKeyError(ValueError):
    """Error for an idempotency key that the same user has used for a different submission."""


class LostLeaseError(RuntimeError):
    """Error for a worker whose job was cancelled, or was assigned to another worker after the lease had ended."""


class JobStateError(ValueError):
    """Error for an action that the state of a job does not allow, such as retrying a running job."""


class JobQueue:
    """The queue of jobs in a database. Each method is one transaction, which is flushed to the disk.

    One worker at a time claims a job, and sends its lease with every report. After the lease has ended, another worker
    can claim the job, and reports with the old lease are refused. So no job is lost, and none is finished twice.
    """

    def __init__(self, database: Database, options: QueueOptions, clock: Callable[[], float] = time.time) -> None:
        self._database, self.options, self._clock = database, options, clock
        self._max_seconds = 3600 * options.max_hours  # of an attempt
        self._revisions: dict[str, int] = defaultdict(int)

    def submit(self, new: NewJob) -> tuple[Job, bool]:
        """Add a job to the queue.

        Return the job and True, or the earlier job with the same id, or of the same user with the same idempotency key,
        and False. Raise `DuplicateKeyError` if the earlier job has another request, `InputError` if the new job has too
        many residues, and `QuotaError` if it exceeds the user's limits.
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
        return self._count_change(row), True

    def earlier(self, new: NewJob) -> Job | None:
        """Return the earlier job that `submit` would return instead of adding this one; None if it would add it.

        Raise the same errors as `submit`.
        """
        with self._database.transaction() as connection:
            return self._earlier(connection, new)

    def _earlier(self, connection: sqlite3.Connection, new: NewJob) -> Job | None:
        """Return the earlier job as `earlier` does, in a transaction of the caller."""
        row = connection.execute(
            "SELECT * FROM jobs WHERE id = ? OR (user = ? AND idempotency_key = ?)",
            (new.id, new.user, new.idempotency_key),
        ).fetchone()
        if row is None:
            self.options.check(new, Usage.of(connection.execute(_USAGE_QUERY, (new.user,)).fetchone()))
            return None
        if row["request_digest"] != new.request_digest:
            raise DuplicateKeyError("this idempotency key belongs to another job of yours; choose a new one")
        return Job.of(row)

    def claim(self, worker: str, kinds: Sequence[JobKind], longest: int | None = None) -> Job | None:
        """Assign the oldest queued job of these kinds to a worker, with a new lease; return None if there is none.

        `longest` is the maximum number of residues of a prediction that fits into the worker's memory; None if there is
        no limit. Searches have no such limit.
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
        return None if row is None else self._count_change(row)

    def heartbeat(self, job: str, lease: str, progress: Mapping[str, Any] | None = None) -> None:
        """Extend a lease, up to the time limit of an attempt, and store the progress of the job.

        Raise `LostLeaseError` if the job no longer belongs to this worker.
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
            return  # nothing that users can see has changed
        self._job_with_lease(row)

    def finish(self, job: str, lease: str, *, size: int, summary: Mapping[str, Any]) -> Job:
        """Mark a job as done, with the files of this attempt as its result. `size` is their size in bytes.

        A worker that did not receive the answer may repeat the call. Raise `LostLeaseError` if the job no longer
        belongs to this worker.
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
        return self._job_with_lease(row)

    def fail(self, job: str, lease: str, error: str, *, try_again: bool) -> Job:
        """End an attempt: mark the job as failed, or queue it again if `try_again` is set and it has attempts left.

        `error` is stored with the job in both cases. Raise `LostLeaseError` if the job no longer belongs to this
        worker.
        """
        with self._database.transaction() as connection:
            row = connection.execute(
                "SELECT * FROM jobs WHERE id = ? AND lease = ? AND state = 'running'", (job, lease)
            ).fetchone()
            if row is not None:
                again = try_again and row["losses"] + 1 < self.options.max_attempts
                row = self._end_attempt(connection, row["number"], error, again=again)
        return self._job_with_lease(row)

    def release(self, job: str, lease: str) -> Job:
        """Queue a job again because its worker stops. This does not count as a failed attempt.

        Raise `LostLeaseError` if the job no longer belongs to this worker.
        """
        with self._database.transaction() as connection:
            row = connection.execute(
                "UPDATE jobs SET state = 'queued', lease = NULL, worker = NULL, started = NULL, progress = NULL "
                "WHERE id = ? AND lease = ? AND state = 'running' RETURNING *",
                (job, lease),
            ).fetchone()
        return self._job_with_lease(row)

    def cancel(self, job: str) -> Job:
        """Cancel a queued or running job; do nothing in other states. Its worker is informed at its next heartbeat."""
        now = self._clock()
        other_columns = "ended = ?, lease = NULL, webhook_next = CASE WHEN webhook IS NULL THEN NULL ELSE ? END"
        return self._set(job, "cancelled", ("queued", "running"), other_columns, (now, now))[0]

    def retry(self, job: str) -> Job:
        """Queue a failed or cancelled job again. It may then fail as often as a new job.

        Raise `JobStateError` in other states, `QuotaError` if it exceeds the user's limits.
        """
        record, is_changed = self._requeue(job, ("failed", "cancelled"))
        if not is_changed:
            raise JobStateError(f"the job is {record.state}; only failed and cancelled jobs can be retried")
        return record

    def resubmit(self, job: str, user: str) -> Job:
        """Queue a failed, cancelled or expired job again, as a job of `user`, and return it.

        A job in another state is returned unchanged. Raise `QuotaError` if it exceeds the user's limits.
        """
        return self._requeue(job, ("failed", "cancelled", "expired"), user)[0]

    def rename(self, job: str, name: str) -> Job:
        """Change the name of a job."""
        with self._database.transaction() as connection:
            row = connection.execute("UPDATE jobs SET name = ? WHERE id = ? RETURNING *", (name, job)).fetchone()
        return self._count_change(row)

    def recover(self) -> list[Job]:
        """Queue jobs whose leases have ended again, or mark them as failed after the last attempt; return them.

        A job that reached the time limit fails at once. It is recognized by a lease that ends exactly at the limit,
        because the lease of a worker that died ends at another time.
        """
        now, rows = self._clock(), []
        overrun = _OVERRUN_MESSAGE.format(hours=self.options.max_hours)
        with self._database.transaction() as connection:
            ended = connection.execute(
                "SELECT number, losses, lease_until = started + ? AS is_overrun FROM jobs "
                "WHERE state = 'running' AND lease_until < ?",
                (self._max_seconds, now),
            ).fetchall()
            for row in ended:
                is_overrun = bool(row["is_overrun"])
                error = overrun if is_overrun else _LOST_MESSAGE.format(count=row["losses"] + 1)
                again = not is_overrun and row["losses"] + 1 < self.options.max_attempts
                rows.append(self._end_attempt(connection, row["number"], error, again=again))
        return [self._count_change(row) for row in rows]

    def extend_all(self) -> None:
        """Extend all leases, because workers could not send heartbeats while the server was down."""
        with self._database.transaction() as connection:
            until = self._clock() + self.options.lease_seconds
            connection.execute("UPDATE jobs SET lease_until = max(lease_until, ?) WHERE state = 'running'", (until,))

    def expire(self) -> list[Job]:
        """Mark jobs that ended more than `keep_days` ago as expired, and return them for the removal of their files.

        Searches for other programs are deleted from the database.
        """
        before = self._clock() - self.options.keep_days * 86_400.0
        with self._database.transaction() as connection:
            rows = connection.execute(
                f"UPDATE jobs SET state = 'expired', {_EXPIRED_COLUMNS} "
                "WHERE state IN ('done', 'failed', 'cancelled') AND ended < ? RETURNING *",
                (before,),
            ).fetchall()
            connection.execute("DELETE FROM jobs WHERE kind = 'alignment' AND state = 'expired'")
        return [self._count_change(row) for row in rows]

    def delete(self, job: str) -> Job:
        """Mark a job that has ended as expired, and erase its request. The caller removes its files.

        Raise `JobStateError` for a queued or running job.
        """
        record, is_changed = self._set(job, "expired", ("done", "failed", "cancelled"), _EXPIRED_COLUMNS)
        if not is_changed and record.state != "expired":
            raise JobStateError(f"the job is {record.state}; cancel it first")
        return record

    def revision(self, job: str) -> int:
        """Return a number that increases with each change of a job by this process."""
        return self._revisions[job]

    def _set(
        self, job: str, state: JobState, before: Sequence[JobState], others: str, values: Sequence[Any] = ()
    ) -> tuple[Job, bool]:
        """Change the state and other columns of a job if its state is in `before`.

        Return the current job, and whether it was changed.
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
        return self._count_change(row), is_changed

    def _requeue(self, job: str, before: Sequence[JobState], user: str | None = None) -> tuple[Job, bool]:
        """Queue a job again if its state is in `before`, as a job of `user` or of its earlier user.

        Return the current job, and whether it was changed.
        """
        with self._database.transaction() as connection:
            row = connection.execute("SELECT * FROM jobs WHERE id = ?", (job,)).fetchone()
            is_changed = row["state"] in before
            if is_changed:
                owner = user or row["user"]
                # The bytes of its files are already counted.
                self.options.check(
                    replace(Job.of(row), bytes=0), Usage.of(connection.execute(_USAGE_QUERY, (owner,)).fetchone())
                )
                row = connection.execute(
                    f"UPDATE jobs SET state = 'queued', user = ?, {_REQUEUED_COLUMNS} WHERE id = ? RETURNING *",
                    (owner, job),
                ).fetchone()
        return self._count_change(row), is_changed

    def _end_attempt(self, connection: sqlite3.Connection, number: int, error: str, *, again: bool) -> sqlite3.Row:
        """End an attempt that failed with `error` at the job with a number: queue it `again` or mark it as failed."""
        now = self._clock()
        state, ended = ("queued", None) if again else ("failed", now)
        row: sqlite3.Row = connection.execute(
            "UPDATE jobs SET state = ?, ended = ?, error = ?, losses = losses + 1, lease = NULL, "
            "webhook_next = CASE WHEN webhook IS NULL OR ? IS NULL THEN NULL ELSE ? END WHERE number = ? RETURNING *",
            (state, ended, error, ended, ended, number),
        ).fetchone()
        return row

    def _job_with_lease(self, row: sqlite3.Row | None) -> Job:
        """Return the changed job in a row; raise `LostLeaseError` if the lease matched no row."""
        if row is None:
            raise LostLeaseError("the job no longer belongs to this worker: it was cancelled, or given to another one")
        return self._count_change(row)

    def _count_change(self, row: sqlite3.Row) -> Job:
        """Return the job in a row, and increase its revision."""
        job = Job.of(row)
        self._revisions[job.id] += 1
        return job


_MAX_LISTED = 200  # jobs that one query returns


@dataclass(frozen=True)
class QueueViews:
    """Queries of the queue, which never wait for a commit."""

    database: Database

    def job(self, job: str) -> Job | None:
        """Return the job with an id; None if it does not exist."""
        rows = self.database.rows("SELECT * FROM jobs WHERE id = ?", (job,))
        return Job.of(rows[0]) if rows else None

    def history(
        self, user: str, *, kind: JobKind = "prediction", before: int | None = None, limit: int = 50
    ) -> list[Job]:
        """Return a user's jobs of a kind with numbers below `before`, the newest first.

        At most `limit` are returned, and never more than 200. `before` of None returns the newest jobs.
        """
        rows = self.database.rows(
            "SELECT * FROM jobs WHERE user = ? AND kind = ? AND number < ? ORDER BY number DESC LIMIT ?",
            (user, kind, 2**62 if before is None else before, min(limit, _MAX_LISTED)),
        )
        return [Job.of(row) for row in rows]

    def active_searches(self, user: str) -> list[Job]:
        """Return a user's queued and running searches for other programs, the newest first."""
        rows = self.database.rows(
            "SELECT * FROM jobs WHERE user = ? AND kind = 'alignment' AND state IN ('queued', 'running') "
            "ORDER BY number DESC LIMIT ?",
            (user, _MAX_LISTED),
        )
        return [Job.of(row) for row in rows]

    def place(self, job: Job) -> int | None:
        """Return the position of a job among the queued jobs of its kind, from 1; None if it is not queued."""
        if job.state != "queued":
            return None
        rows = self.database.rows(
            "SELECT count(*) AS count FROM jobs WHERE state = 'queued' AND kind = ? AND number <= ?",
            (job.kind, job.number),
        )
        return int(rows[0]["count"])

    def places(self, jobs: Sequence[Job]) -> list[int | None]:
        """Return the position of each prediction, as `place` does, with one query."""
        query = "SELECT number FROM jobs WHERE state = 'queued' AND kind = 'prediction' ORDER BY number"
        queued = [row["number"] for row in self.database.rows(query)]
        return [bisect_right(queued, job.number) if job.state == "queued" else None for job in jobs]

    def usage(self, user: str) -> Usage:
        """Return a user's jobs, residues and bytes that count towards the limits."""
        return Usage.of(self.database.rows(_USAGE_QUERY, (user,))[0])

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of jobs by kind and state."""
        rows = self.database.rows("SELECT kind, state, count(*) AS count FROM jobs GROUP BY kind, state")
        return {(row["kind"], row["state"]): int(row["count"]) for row in rows}

    def ids(self) -> set[str]:
        """Return the ids of all jobs that may have files."""
        return {row["id"] for row in self.database.rows("SELECT id FROM jobs WHERE state != 'expired'")}
