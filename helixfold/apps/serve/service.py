"""The shared functions of the server's routes: check and queue submissions, and decide who may see which job."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from data_pipeline.io.errors import InputError, choice_problem
from helixfold.apps.serve.change_signal import ChangeSignal
from helixfold.apps.serve.forecast_curve import ForecastBody, estimate_job
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

_OFFERS_CACHE_SECONDS = 1.0  # during which the list of workers is not read again
_MAX_UPLOAD_CHECKS = 2  # of uploads at a time, at most one for each user


@dataclass(frozen=True)
class User:
    """The user who makes a request.

    `address` is the IP address that it comes from; `token` is the id of its token, None if no tokens are required.
    """

    name: str
    address: str
    token: str | None = None


@dataclass
class Service:
    """The state of a server that its routes share. No other process opens its database.

    `clock` returns the current time and `started` is the time of the start, in seconds since 1970.
    """

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
        """Open the service in its data directory, which is created if necessary.

        Remove the files that a killed server left behind, and extend the leases of running jobs.
        """
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
        """Check a submission, store its files, and queue it.

        Return its job and True, or the earlier job of the user with the same idempotency key and False. `webhook` is
        the address to call when the job ends. Raise `InputError` if the job cannot be predicted or the webhook is not
        allowed, `QuotaError` if it exceeds the user's limits, `DuplicateKeyError` if the earlier job differs, and
        `BusyError` while too many other uploads are being checked.
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
            with self._reserve_upload_check(user.name):
                self._store_files(submission, new)
        return self.enqueue(new)

    def _store_files(self, submission: Submission, new: NewJob) -> None:
        """Store the uploaded files of a new job and check them; remove them if the check fails."""
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
    def _reserve_upload_check(self, user: str) -> Iterator[None]:
        """Reserve the check of a user's upload.

        Raise `BusyError` if another upload of this user, or too many of others, are being checked.
        """
        with self._checks_lock:
            if user in self._checking:
                raise BusyError("another upload of yours is being checked; wait until it is queued")
            if len(self._checking) >= _MAX_UPLOAD_CHECKS:
                raise BusyError("the service is checking the uploads of other users; submit again in a few seconds")
            self._checking.add(user)
        try:
            yield
        finally:
            with self._checks_lock:
                self._checking.remove(user)

    def enqueue(self, new: NewJob) -> tuple[Job, bool]:
        """Add a job to the queue, and wake up waiting workers. Return the job and whether it is new.

        If an earlier job is returned instead, or the job is refused, the files stored for the new job are removed.
        """
        try:
            job, is_new = self.queue.submit(new)
        except BaseException:
            self.storage.remove(new.id)
            raise
        if is_new:
            self.waiting_jobs.notify()
        elif job.id != new.id:
            self.storage.remove(new.id)
        return job, is_new

    def estimate(self, submission: Submission) -> ForecastBody | None:
        """Estimate the time and memory of a submission; None while no worker has connected."""
        options = submission.options
        return estimate_job(
            self.offers(),
            residues=submission.residues,
            chains=len(submission.chains),
            model=options["model"],
            recycles=options["recycles"],
            count=options["predictions"],
        )

    def offers(self) -> Sequence[WorkerOffers]:
        """Return the offers of the connected workers, or of all workers of the last week if none is connected.

        The list is at most one second old.
        """
        read_time, offers = self._offers
        if time.monotonic() - read_time > _OFFERS_CACHE_SECONDS or not offers:
            offers = list((self.workers.present() or self.workers.offers()).values())
            self._offers = (time.monotonic(), offers)
        return offers

    def models(self) -> list[str]:
        """Return the names of the models that the workers of `offers` have, each once."""
        return list(dict.fromkeys(name for worker in self.offers() for name in worker.models))

    def provenance(self) -> str:
        """Return the provenance of each worker's best model, from the worker where it is least trustworthy.

        Without workers, return "trained".
        """
        return min((worker.best_provenance for worker in self.offers()), key=PROVENANCES.index, default=PROVENANCES[-1])

    def visible_job(self, job: str, user: User, kinds: Sequence[JobKind] = ("prediction",)) -> Job | None:
        """Return a job of these kinds if it belongs to the user; None for other users' jobs and unknown ids."""
        record = self.views.job(job)
        return record if record is not None and record.user == user.name and record.kind in kinds else None

    def shared_job(self, secret: str) -> Job | None:
        """Return the job that a link shows; None if the link or the token of its user is no longer valid."""
        job_id, token = self.shares.find(secret) or (None, None)
        job = None if job_id is None else self.views.job(job_id)
        return job if job is not None and self._is_authorized(job.user, token) else None

    def _is_authorized(self, user: str, token: str | None) -> bool:
        """Return whether a token is valid.

        If `token` is None, return whether the user has any valid token, or the service does not require tokens.
        """
        if token is not None:
            return self.tokens.valid_token(token) is not None
        now, tokens = time.time(), self.tokens.all()
        user_tokens = (each for each in tokens if each.user == user and each.kind == "user")
        return not self.settings.needs_token or any(each.is_valid(now) for each in user_tokens)

    def remove_files(self, jobs: Sequence[Job]) -> None:
        """Remove the files and shared links of jobs that were marked as expired.

        Also empty the database's write-ahead log, which may still contain their requests.
        """
        for job in jobs:
            self.storage.remove(job.id)
            self.shares.withdraw(job.id)
        if jobs:
            self.database.empty_log()

    def _check(self, submission: Submission, webhook: str | None) -> None:
        """Raise `InputError` for a submission that no worker can predict, or for a webhook that is not allowed."""
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
        estimate = self.estimate(submission)
        if estimate is not None and not estimate.fits:
            raise InputError(
                f"{submission.residues:,} residues do not fit into the memory of any worker; "
                f"the maximum is {estimate.longest or 0:,}"
            )

    def _check_webhook(self, webhook: str) -> None:
        """Raise `InputError` unless the webhook is the address of a host to which this service may send."""
        try:
            parts = urlsplit(webhook)
            port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
        except ValueError as error:
            raise InputError("the webhook is not a valid address") from error
        is_plain = parts.scheme in ("http", "https") and parts.username is None and webhook.isprintable()
        if not is_plain or f"{parts.hostname}:{port}" not in self.settings.webhook_host or len(webhook) > 2_000:
            raise InputError("this service may not call the host of the webhook; see --webhook-host")


def job_fields(job: Job, place: int | None = None) -> dict[str, Any]:
    """Return the fields of a job in answers of the REST interface.

    `place` is its position in the queue from 1, None if it is not queued. The field "forecast" is always None.
    """
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
