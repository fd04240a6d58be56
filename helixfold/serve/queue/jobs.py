"""A job of the service as its database has it: who asked for what, how far it is, and how it ended."""

import json
import secrets
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

JobState = Literal["queued", "running", "done", "failed", "cancelled", "expired"]
JobKind = Literal["prediction", "alignment"]
JOB_KINDS: tuple[JobKind, ...] = ("prediction", "alignment")
# States in which a job waits for nothing any more.
ENDED: tuple[JobState, ...] = ("done", "failed", "cancelled", "expired")


def new_id() -> str:
    """Return the id of a job, which nobody can guess: 128 random bits in hexadecimal digits."""
    return secrets.token_hex(16)


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job as submitted; `request` holds the JSON objects for a worker, `bytes` the size of its files on the disk."""

    user: str
    name: str
    request: Mapping[str, Any]
    request_digest: str
    residues: int
    kind: JobKind = "prediction"
    idempotency_key: str | None = None
    webhook: str | None = None
    address: str = ""  # from which it was asked for, for the audit log
    bytes: int = 0
    id: str = field(default_factory=new_id)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job of the queue; times are seconds since 1970.

    `attempts` counts how often a worker began it, `losses` how often that did not count as its end, and `result` is the
    attempt whose files are the result. `lease` is
    the secret by which its worker shows that the job is still its own, up to `lease_until`.
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
        """Return the job of a row of the table."""
        values = {name: row[name] for name in cls.__dataclass_fields__}
        for name in ("request", "progress", "summary"):
            values[name] = json.loads(values[name] or "{}")
        return cls(**values)

    @property
    def has_ended(self) -> bool:
        """Return whether nothing more will happen to the job unless somebody asks for it."""
        return self.state in ENDED


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Usage of the service by a user: jobs that wait or run, their residues, and bytes on the disk of all jobs."""

    active_jobs: int
    active_residues: int
    bytes: int

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Return the usage in a row with the columns `jobs`, `residues` and `bytes`."""
        return cls(active_jobs=row["jobs"], active_residues=int(row["residues"]), bytes=int(row["bytes"]))
