"""A job of the service as stored in its database, and the limits of each user."""

import json
import secrets
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Self

from cyclopts import Parameter

from data_pipeline.io.config import POSITIVE, Checked
from data_pipeline.io.errors import InputError
from helixfold.runtime.annotations import Group
from helixfold.runtime.options import MemorySize, Number, Positive, option_group

JobState = Literal["queued", "running", "done", "failed", "cancelled", "expired"]
JobKind = Literal["prediction", "alignment"]
JOB_KINDS: tuple[JobKind, ...] = ("prediction", "alignment")
# States in which a job does not change unless a user requests it.
ENDED: tuple[JobState, ...] = ("done", "failed", "cancelled", "expired")


def new_id() -> str:
    """Return a new job id, which nobody can guess: 128 random bits in hexadecimal digits."""
    return secrets.token_hex(16)


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A submitted job that is not yet in the queue.

    `request` is the JSON object for the worker, `bytes` the size of the uploaded files. `request_digest` is equal for
    equal requests. A second job of the user with the same `idempotency_key` is not queued. `webhook` is the address to
    call when the job ends.
    """

    user: str
    name: str
    request: Mapping[str, Any]
    request_digest: str
    residues: int
    kind: JobKind = "prediction"
    idempotency_key: str | None = None
    webhook: str | None = None
    address: str = ""  # of the client, for the audit log
    bytes: int = 0
    id: str = field(default_factory=new_id)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job in the queue. Times are seconds since 1970.

    `number` increases from job to job in the order of submission. `attempts` counts how often a worker started the job,
    and `result` is the attempt, from 1, whose files are the result. `losses` counts the attempts that failed since a
    user queued the job. `lease` is a secret with which the worker proves until `lease_until` that the job is still
    assigned to it. `started` is the time of the last attempt and `worker` the name of its worker. `bytes` is the size
    of the uploaded files and of the result. `summary` has the scores and the model of the best prediction.
    """

    number: int
    id: str
    user: str
    kind: JobKind
    name: str
    request: Mapping[str, Any]
    request_digest: str
    residues: int
    state: JobState
    created: float
    started: float | None
    ended: float | None
    attempts: int
    losses: int
    lease: str | None
    lease_until: float | None
    worker: str | None
    progress: Mapping[str, Any]
    error: str | None
    result: int | None
    bytes: int
    summary: Mapping[str, Any]
    webhook: str | None

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Return the job in a row of the table `jobs`."""
        values = {name: row[name] for name in cls.__dataclass_fields__}
        for name in ("request", "progress", "summary"):
            values[name] = json.loads(values[name] or "{}")
        return cls(**values)

    @property
    def has_ended(self) -> bool:
        """Return whether the job is done, failed, cancelled or expired."""
        return self.state in ENDED


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Usage of the service by a user: queued and running jobs, their residues, and bytes of the files of all jobs."""

    active_jobs: int
    active_residues: int
    bytes: int

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Return the usage in a row with the columns `jobs`, `residues` and `bytes`."""
        return cls(active_jobs=row["jobs"], active_residues=int(row["residues"]), bytes=int(row["bytes"]))


LIMITS: Final = Group.create_ordered("Limits per user", sort_key=3)


class QuotaError(InputError):
    """Error for a job that exceeds a limit of its user. It may be submitted again later."""


class BusyError(QuotaError):
    """Error for an upload that must wait for the check of others. It may be submitted again in a few seconds."""


@option_group(LIMITS)
@dataclass(frozen=True, kw_only=True)
class QueueOptions(Checked):
    """Limits for each user, the number of attempts at a job, and how long leases and results last.

    `max_active_residues` limits the residues of all queued and running jobs of a user.
    """

    max_residues: Positive = 4_000
    """Maximum residues of a job."""
    max_active_jobs: Annotated[Positive, Parameter(name="--max-jobs")] = 200
    """Maximum number of queued and running jobs."""
    max_active_residues: Annotated[int | None, Parameter(parse=False)] = None  # None: 1,000 times `max_active_jobs`
    max_user_bytes: Annotated[MemorySize, Parameter(name="--max-disk", show_default="20GiB")] = 20 * 2**30
    """Maximum size of all inputs and results."""
    keep_days: Positive = 30
    """Delete results after this many days."""
    max_attempts: Positive = 3
    """Maximum number of attempts at a job whose workers die."""
    max_hours: Annotated[Number, POSITIVE] = 24.0
    """Maximum hours of an attempt; a job that takes longer fails."""
    lease_seconds: Annotated[float, Parameter(parse=False), POSITIVE] = 60.0

    def check(self, job: NewJob | Job, usage: Usage) -> None:
        """Raise `InputError` if a job has too many residues, `QuotaError` if it exceeds a limit of its user.

        `usage` is the user's usage without this job.
        """
        if job.residues > self.max_residues:
            raise InputError(
                f"the job has {job.residues:,} residues; this service accepts at most {self.max_residues:,}"
            )
        if usage.active_jobs >= self.max_active_jobs:
            raise QuotaError(f"you have {usage.active_jobs:,} queued or running jobs, the maximum; wait until one ends")
        max_residues = self.max_active_residues or self.max_active_jobs * 1_000
        if usage.active_residues + job.residues > max_residues:
            raise QuotaError(
                f"your queued and running jobs would have {usage.active_residues + job.residues:,} residues; the "
                f"maximum is {max_residues:,}; wait until one ends"
            )
        if usage.bytes + job.bytes > self.max_user_bytes:
            raise QuotaError(
                f"your files use {usage.bytes:,} bytes, and at most {self.max_user_bytes:,} are allowed; delete a job"
            )
