"""Views of the queue: a job, a user's history, places in the queue, and counts for metrics."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from helixfold.serve.queue.database import Database
from helixfold.serve.queue.jobs import Job, JobKind, Usage

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

    def active(self) -> list[Job]:
        """Return the jobs of all users that wait or run, the first first."""
        rows = self.database.rows(
            "SELECT * FROM jobs WHERE state IN ('queued', 'running') ORDER BY number LIMIT ?", (_MOST_LISTED,)
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
        rows = self.database.rows(
            "SELECT count(*) FILTER (WHERE state IN ('queued', 'running')) AS jobs, "
            "total(residues) FILTER (WHERE state IN ('queued', 'running')) AS residues, total(bytes) AS bytes "
            "FROM jobs WHERE user = ?",
            (user,),
        )
        row = rows[0]
        return Usage(active_jobs=row["jobs"], active_residues=int(row["residues"]), bytes=int(row["bytes"]))

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of jobs by kind and state."""
        rows = self.database.rows("SELECT kind, state, count(*) AS count FROM jobs GROUP BY kind, state")
        return {(row["kind"], row["state"]): int(row["count"]) for row in rows}

    def ids(self) -> set[str]:
        """Return the ids of all jobs whose files may be there."""
        return {row["id"] for row in self.database.rows("SELECT id FROM jobs WHERE state != 'expired'")}
