"""The service behind its routes: submissions that are checked and queued, and who may see which job."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from data_pipeline.io.errors import InputError, choice_problem
from helixfold.apps.serve.change_signal import ChangeSignal
from helixfold.apps.serve.forecast_curve import ForecastBody, forecast
from helixfold.apps.serve.queue.access import EndedSessions, Shares
from helixfold.apps.serve.queue.database import AuditLog, Database
from helixfold.apps.serve.queue.jobs import BusyError, Job, JobKind, NewJob, new_id
from helixfold.apps.serve.queue.queue import JobQueue, QueueViews
from helixfold.apps.serve.queue.workers import PROVENANCES, WorkerOffers, Workers
from helixfold.apps.serve.settings import ServeSettings
from helixfold.apps.serve.storage import Storage, write_durably
from helixfold.apps.serve.submission import Submission
from helixfold.apps.serve.tokens import TokenFile
from helixfold.apps.serve.upload_check import check_upload

_PRESENT_SECONDS = 1.0  # for which the list of workers is not read again
_MAX_CHECKS = 2  # of uploads at a time, at most one of each user


@dataclass(frozen=True)
class User:
    """Whoever makes a request, from which address, and the id of the token that shows it; None where none is needed."""

    name: str
    address: str
    token: str | None = None


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
        self.ended_sessions = EndedSessions(self.database, self.clock)
        self.workers = Workers(self.database, self.clock)
        self.waiting_jobs = ChangeSignal()
        self._offers: tuple[float, list[WorkerOffers]] = (0.0, [])
        self._checking: set[str] = set()  # users whose uploads are being checked
        self._checks_lock = threading.Lock()

    @classmethod
    def open(cls, settings: ServeSettings) -> "Service":
        """Open the service in its data directory, and put right what a killed server left behind."""
        storage = Storage(settings.data)
        storage.prepare()
        service = cls(settings, storage, Database(storage.database), TokenFile(settings.data))
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

        Raise `InputError` for what cannot be predicted, `QuotaError` where there is no room for it, and `BusyError`
        while other uploads are checked.
        """
        self._check(submission, webhook)
        new = NewJob(
            id=new_id(),
            user=user.name,
            address=user.address,
            name=submission.name,
            request=submission.request(),
            request_digest=submission.digest(),
            residues=submission.residues,
            idempotency_key=idempotency_key,
            webhook=webhook,
            bytes=sum(len(file.content) for file in submission.files),
        )
        if submission.files:
            if (earlier := self.queue.earlier(new)) is not None:
                return earlier, False
            with self._upload_check_of(user.name):
                self._store_files(submission, new)
        return self.enqueue(new)

    def _store_files(self, submission: Submission, new: NewJob) -> None:
        directory = self.storage.inputs(new.id)
        try:
            for name, file in submission.stored_files().items():
                write_durably(directory / name, file.content)
            self.storage.flush_names(directory)
            check_upload(new.request, directory)
        except BaseException:
            self.storage.remove(new.id)
            raise

    @contextmanager
    def _upload_check_of(self, user: str) -> Iterator[None]:
        """Let a user's upload be checked. Raise `BusyError` if another one of the user's, or too many others, are."""
        with self._checks_lock:
            if user in self._checking:
                raise BusyError("another upload of yours is being checked; wait until it is queued")
            if len(self._checking) >= _MAX_CHECKS:
                raise BusyError("the service is checking the uploads of other users; submit again in a few seconds")
            self._checking.add(user)
        try:
            yield
        finally:
            with self._checks_lock:
                self._checking.remove(user)

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

    def forecast(self, submission: Submission) -> ForecastBody | None:
        """Return what a submission will take; None while no worker has told its forecasts."""
        options = submission.options
        return forecast(
            self.offers(),
            residues=submission.residues,
            chains=len(submission.chains),
            model=options["model"],
            recycles=options["recycles"],
            count=options["predictions"],
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

    def provenance(self) -> str:
        """Return the provenance of the best model of the worker whose best model is the least trustworthy."""
        return min((worker.best_provenance for worker in self.offers()), key=PROVENANCES.index, default=PROVENANCES[-1])

    def visible_job(self, job: str, user: User, kinds: Sequence[JobKind] = ("prediction",)) -> Job | None:
        """Return a job of these kinds if it is the user's own; None for others' jobs as for unknown ones."""
        found = self.views.job(job)
        return found if found is not None and found.user == user.name and found.kind in kinds else None

    def shared_job(self, secret: str) -> Job | None:
        """Return the job that a link shows; None for a link that has ended, or whose token has."""
        job_id, token = self.shares.find(secret) or (None, None)
        job = None if job_id is None else self.views.job(job_id)
        return job if job is not None and self._is_good(job.user, token) else None

    def _is_good(self, user: str, token: str | None) -> bool:
        """Return whether a token of a user is good now; without one, whether any is, or none is needed."""
        if token is not None:
            return self.tokens.good(token) is not None
        now, tokens = time.time(), self.tokens.all()
        own = (each for each in tokens if each.user == user and each.kind == "user")
        return not self.settings.needs_token or any(each.is_good(now) for each in own)

    def remove_files(self, jobs: Sequence[Job]) -> None:
        """Remove the files and the shared links of jobs that have expired, and what they asked for from the disk."""
        for job in jobs:
            self.storage.remove(job.id)
            self.shares.withdraw(job.id)
        if jobs:
            self.database.empty_log()

    def _check(self, submission: Submission, webhook: str | None) -> None:
        offers, models, options = self.offers(), self.models(), submission.options
        if options["model"] is not None and models and options["model"] not in models:
            raise InputError(f"the model {choice_problem(options['model'], models)}")
        has_databases = any(worker.databases for worker in offers)
        if offers and options["search"] == "databases" and not has_databases:
            raise InputError("this service has no databases to search; upload an alignment, or choose no search")
        if offers and options["templates"] and not any(worker.templates for worker in offers):
            raise InputError("this service has no template database; upload template structures")
        if options["relax"] and offers and not any(worker.relaxes for worker in offers):
            raise InputError("this service cannot relax structures, because OpenMM is not installed")
        if webhook is not None:
            self._check_webhook(webhook)
        found = self.forecast(submission)
        if found is not None and not found.fits:
            raise InputError(
                f"{submission.residues:,} residues do not fit into the memory of any worker; "
                f"the maximum is {found.longest or 0:,}"
            )

    def _check_webhook(self, webhook: str) -> None:
        try:
            parts = urlsplit(webhook)
            port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
        except ValueError as error:
            raise InputError("the webhook is not a valid address") from error
        is_plain = parts.scheme in ("http", "https") and parts.username is None and webhook.isprintable()
        if not is_plain or f"{parts.hostname}:{port}" not in self.settings.webhook_host or len(webhook) > 2_000:
            raise InputError("this service may not call the host of the webhook; see --webhook-host")


def described(job: Job, place: int | None = None) -> dict[str, Any]:
    """Return what the REST interface tells of a job."""
    return {
        "id": job.id,
        "kind": job.kind,
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
        "forecast": None,
    }
