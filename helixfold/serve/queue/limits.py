"""Limits of a user in the service, and the time for which results stay."""

from dataclasses import dataclass
from typing import Final

from data_pipeline.errors import InputError, check_at_least, check_positive
from helixfold.serve.queue.jobs import Job, NewJob, Usage

_DAY: Final = 86_400.0


class QuotaError(InputError):
    """Error for a job that its user has no room for; it may be submitted again later."""


class BusyError(QuotaError):
    """Error for an upload that cannot be checked while others are; it may be submitted again in a few seconds."""


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """Limits of the queue for each user, how often a job is tried, and how long leases and results last."""

    max_residues: int = 4_000  # of one job
    max_active_jobs: int = 200  # of a user, that wait or run
    max_active_residues: int = 200_000
    max_user_bytes: int = 20 * 2**30
    max_attempts: int = 3  # that end with the death of a worker; a prediction that fails by itself is not tried again
    lease_seconds: float = 60.0
    max_hours: float = 24.0  # of an attempt, after which the job fails
    keep_seconds: float = 30 * _DAY  # after which the files of a job that has ended are removed

    def __post_init__(self) -> None:
        check_at_least(self, InputError, max_residues=1, max_active_jobs=1, max_attempts=1, max_user_bytes=0)
        check_positive(self, "lease_seconds", "max_hours", "keep_seconds", "max_active_residues", error=InputError)

    def check(self, job: NewJob | Job, usage: Usage) -> None:
        """Raise `QuotaError` if a user who has this already has no room for one more job."""
        if job.residues > self.max_residues:
            raise InputError(
                f"the job has {job.residues:,} residues; this service accepts at most {self.max_residues:,}"
            )
        if usage.active_jobs >= self.max_active_jobs:
            raise QuotaError(f"you have {usage.active_jobs:,} queued or running jobs, the maximum; wait until one ends")
        if usage.active_residues + job.residues > self.max_active_residues:
            raise QuotaError(
                f"your queued and running jobs would have {usage.active_residues + job.residues:,} residues; the "
                f"maximum is {self.max_active_residues:,}; wait until one ends"
            )
        if usage.bytes + job.bytes > self.max_user_bytes:
            raise QuotaError(
                f"your files use {usage.bytes:,} bytes, and at most {self.max_user_bytes:,} are allowed; delete a job"
            )
