"""The service behind its routes: submissions that are checked and queued, and who may see which job."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from data_pipeline.errors import InputError
from helixfold.serve.change_signal import ChangeSignal
from helixfold.serve.forecast_curve import JobForecast, forecast
from helixfold.serve.queue.audit import AuditLog
from helixfold.serve.queue.database import Database
from helixfold.serve.queue.jobs import Job, NewJob, new_id
from helixfold.serve.queue.queue import JobQueue
from helixfold.serve.queue.shares import Shares
from helixfold.serve.queue.views import QueueViews
from helixfold.serve.queue.workers import WorkerOffers, Workers
from helixfold.serve.settings import ServeSettings
from helixfold.serve.storage import Storage, write_durably
from helixfold.serve.submission import Submission
from helixfold.serve.tokens import TokenFile
from helixfold.serve.upload_check import check_upload

_PRESENT_SECONDS = 1.0  # for which the list of workers is not read again


@dataclass(frozen=True)
class User:
    """Whoever makes a request, and from which address."""

    name: str
    address: str


@dataclass
class Service:
    """Everything that the routes of a server use; its database is opened by nobody else."""

    settings: ServeSettings
    storage: Storage
    database: Database
    tokens: TokenFile
    clock: Callable[[], float] = time.time
    started: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.queue = JobQueue(self.database, self.settings.queue, self.clock)
        self.views = QueueViews(self.database)
        self.audit = AuditLog(self.database, self.clock)
        self.shares = Shares(self.database, self.clock)
        self.workers = Workers(self.database, self.clock)
        self.waiting_jobs = ChangeSignal()
        self._offers: tuple[float, list[WorkerOffers]] = (0.0, [])

    @classmethod
    def open(cls, settings: ServeSettings) -> "Service":
        """Open the service in its data directory, and put right what a killed server left behind."""
        storage = Storage(settings.directory)
        storage.prepare()
        service = cls(settings, storage, Database(storage.database), TokenFile(settings.directory))
        service.queue.extend_all()
        storage.remove_unknown(service.views.ids())
        return service

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def submit(
        self, submission: Submission, user: User, *, idempotency_key: str | None = None, webhook: str | None = None
    ) -> tuple[Job, bool]:
        """Queue a submission and return its job with True, or the one that its idempotency key has with False.

        Raise `InputError` for what cannot be predicted, `QuotaError` where there is no room for it.
        """
        self._check(submission, webhook)
        request, job, size = submission.request(), new_id(), 0
        if submission.files:
            directory = self.storage.inputs(job)
            try:
                for name, file in submission.stored_files().items():
                    write_durably(directory / name, file.content)
                self.storage.flush_names(directory)
                check_upload(request, directory)
                size = sum(self.storage.sizes(directory).values())
            except BaseException:
                self.storage.remove(job)
                raise
        new = NewJob(
            id=job,
            user=user.name,
            address=user.address,
            name=submission.name,
            request=request,
            request_digest=submission.digest(),
            residues=submission.residues,
            idempotency_key=idempotency_key,
            webhook=webhook,
            bytes=size,
        )
        return self.enqueue(new)

    def enqueue(self, new: NewJob) -> tuple[Job, bool]:
        """Add a job to the queue, and wake up the workers that wait for one."""
        try:
            job, is_new = self.queue.submit(new)
        except BaseException:
            self.storage.remove(new.id)
            raise
        if is_new:
            self.waiting_jobs.changed()
        elif job.id != new.id:
            self.storage.remove(new.id)
        return job, is_new

    def forecast(self, submission: Submission) -> JobForecast | None:
        """Return what a submission will take; None while no worker has told its forecasts."""
        options = submission.options
        return forecast(
            self.offers(),
            residues=submission.residues,
            chains=len(submission.chains),
            model=options.model,
            recycles=options.recycles,
            count=options.predictions,
        )

    def offers(self) -> Sequence[WorkerOffers]:
        """Return what the workers offer that are present, or else were heard last."""
        read, found = self._offers
        if time.monotonic() - read > _PRESENT_SECONDS or not found:
            found = list((self.workers.present() or self.workers.offers()).values())
            self._offers = (time.monotonic(), found)
        return found

    def models(self) -> list[str]:
        """Return the names of the models that workers offer."""
        return list(dict.fromkeys(name for worker in self.offers() for name in worker.models))

    def visible_job(self, job: str, user: User) -> Job | None:
        """Return a job if it is the user's own; None for others' jobs as for those that there never were."""
        found = self.views.job(job)
        return found if found is not None and found.user == user.name and found.kind == "prediction" else None

    def remove_files(self, jobs: Sequence[Job]) -> None:
        """Remove the files and the shared links of jobs that have expired."""
        for job in jobs:
            self.storage.remove(job.id)
            self.shares.withdraw(job.id)

    def _check(self, submission: Submission, webhook: str | None) -> None:
        offers, models, options = self.offers(), self.models(), submission.options
        if options.model is not None and models and options.model not in models:
            raise InputError(f"the model must be one of {', '.join(models)}, got {options.model[:40]!a}")
        has_databases = any(worker.databases for worker in offers)
        if offers and options.search == "databases" and not has_databases:
            raise InputError("this service has no databases to search; give an alignment, or search nothing")
        if offers and options.templates and not any(worker.templates for worker in offers):
            raise InputError("this service has no database of templates; give template structures of your own")
        if options.relax and offers and not any(worker.relaxes for worker in offers):
            raise InputError("this service cannot relax structures, for OpenMM is not installed there")
        if webhook is not None:
            self._check_webhook(webhook)
        found = self.forecast(submission)
        if found is not None and not found.fits:
            raise InputError(
                f"{submission.residues:,} residues fit into the memory of no worker of this service; "
                f"there is room for {found.longest or 0:,}"
            )

    def _check_webhook(self, webhook: str) -> None:
        try:
            parts = urlsplit(webhook)
            port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
        except ValueError as error:
            raise InputError("the webhook is no address") from error
        is_plain = parts.scheme in ("http", "https") and parts.username is None and webhook.isprintable()
        if not is_plain or f"{parts.hostname}:{port}" not in self.settings.webhook_hosts or len(webhook) > 2_000:
            raise InputError("the webhook's host is not one that this service may call; see --webhook-host")


def described(job: Job, place: int | None = None, forecast: JobForecast | None = None) -> dict[str, Any]:
    """Return what the REST interface tells of a job."""
    return {
        "id": job.id,
        "name": job.name,
        "state": job.state,
        "place": place,
        "residues": job.residues,
        "created": job.created,
        "started": job.started,
        "ended": job.ended,
        "attempts": job.attempts,
        "error": job.error,
        "progress": job.progress,
        "options": job.request.get("options", {}),
        "sequence": job.request.get("sequence", ""),
        "summary": job.summary,
        "forecast": None if forecast is None else forecast.to_dict(),
    }
