"""The REST interface for jobs: submit, watch, cancel, retry, fetch, share."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, HTTPException, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from data_pipeline.io.errors import InputError
from helixfold import __version__
from helixfold.apps.serve.forecast_curve import ForecastBody
from helixfold.apps.serve.queue.jobs import JOB_KINDS, Job, JobKind
from helixfold.apps.serve.service import Service, User, job_fields
from helixfold.apps.serve.settings import API
from helixfold.apps.serve.storage import checked_name
from helixfold.apps.serve.web.bodies import (
    PROBLEMS,
    JobBody,
    JobsBody,
    NameBody,
    ResultFile,
    ServiceBody,
    ShareBody,
    SubmissionBody,
)
from helixfold.apps.serve.web.identity import CurrentUser, ServiceOf, user_or_none
from helixfold.apps.serve.web.result_files import archive_response, file_response
from helixfold.apps.serve.web.threads import ThreadedRoute, parse_in_thread, run_slowly

_POLLING_SECONDS = 0.5
_KEEP_ALIVE_SECONDS = 15.0  # between messages, because proxies close silent connections
_MAX_STREAMS, _MAX_STREAMS_OF_USER = 500, 50
_SECONDS_BETWEEN_PLACES = 5.0  # between updates of the position of a queued job

_streams: Counter[str] = Counter()  # open streams of this process, by user


class Events(StreamingResponse):
    """A stream of a job's events until the job, or the token or session of the request, ends.

    Answers 429 if the user has too many open streams, and 503 if all users together have too many.
    """

    def __init__(self, service: Service, job: Job, request: Request) -> None:
        super().__init__(_stream(service, job.id, request), media_type="text/event-stream")
        self._user = job.user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        is_own_limit = _streams[self._user] >= _MAX_STREAMS_OF_USER
        if is_own_limit or _streams.total() >= _MAX_STREAMS:
            text = "too many jobs are being watched; poll their status instead"
            await JSONResponse({"error": text}, 429 if is_own_limit else 503)(scope, receive, send)
            return
        _streams[self._user] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            _streams[self._user] -= 1


async def _stream(service: Service, job_id: str, request: Request) -> AsyncIterator[str]:
    revision, last_content, seconds_since_message, seconds_since_update = -1, "", 0.0, 0.0
    while user_or_none(request) is not None:
        newest_revision = service.queue.revision(job_id)
        if newest_revision != revision or seconds_since_update >= _SECONDS_BETWEEN_PLACES:
            revision, seconds_since_update = newest_revision, 0.0
            job = await run_in_threadpool(service.views.job, job_id)
            if job is None:
                return
            content = json.dumps(job_fields(job, await run_in_threadpool(service.views.place, job)))
            if content != last_content:
                last_content, seconds_since_message = content, 0.0
                yield f"event: job\ndata: {content}\n\n"
            if job.has_ended:
                return
        if seconds_since_message >= _KEEP_ALIVE_SECONDS:
            seconds_since_message = 0.0
            yield ": still there\n\n"
        await asyncio.sleep(_POLLING_SECONDS)
        seconds_since_message, seconds_since_update = (
            seconds_since_message + _POLLING_SECONDS,
            seconds_since_update + _POLLING_SECONDS,
        )


SHARE_SECONDS = 30 * 86_400.0  # the longest validity of a link
router = APIRouter(prefix=API, tags=["jobs"], responses=PROBLEMS, route_class=ThreadedRoute)


@router.post("/jobs", status_code=201)
async def submit(
    body: SubmissionBody,
    request: Request,
    service: ServiceOf,
    user: CurrentUser,
    response: Response,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> JobBody:
    """Submit a job. With an Idempotency-Key, repeating the request returns the first job."""
    submission = await parse_in_thread(request, body.submission)
    submit_job = partial(service.submit, submission, user, idempotency_key=idempotency_key, webhook=body.webhook)
    job, is_new = await run_slowly(request, submit_job)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"{API}/jobs/{job.id}"
    return await run_in_threadpool(job_body, service, job)


@router.post("/forecast")
async def forecast(
    body: SubmissionBody, request: Request, service: ServiceOf, user: CurrentUser
) -> ForecastBody | None:
    """Estimate the time and memory of a job without submitting it; null while no worker has connected."""
    submission = await parse_in_thread(request, body.submission)
    return await run_in_threadpool(service.estimate, submission)


@router.get("/service")
def describe(service: ServiceOf, user: CurrentUser) -> ServiceBody:
    """Return the models and limits of the service, and the numbers of queued and running jobs."""
    counts, offers = service.views.counts(), service.offers()
    return ServiceBody(
        version=__version__,
        models=service.models(),
        provenance=service.provenance(),
        databases=any(worker.databases for worker in offers),
        template_databases=any(worker.templates for worker in offers),
        workers=len(service.workers.present()),
        queued=counts.get(("prediction", "queued"), 0),
        running=counts.get(("prediction", "running"), 0),
        max_residues=service.settings.queue.max_residues,
    )


@router.get("/jobs")
def history(
    service: ServiceOf,
    user: CurrentUser,
    kind: JobKind = "prediction",
    before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> JobsBody:
    """List your jobs of a kind, the newest first. Searches for other programs have the kind "alignment"."""
    jobs = service.views.history(user.name, kind=kind, before=before, limit=limit)
    places = service.views.places(jobs)
    bodies = [JobBody(**job_fields(job, place)) for job, place in zip(jobs, places, strict=True)]
    return JobsBody(jobs=bodies, next=jobs[-1].number if len(jobs) == limit else None)


@router.get("/jobs/{job_id}")
def status(job_id: str, service: ServiceOf, user: CurrentUser) -> JobBody:
    """Return a job with its progress."""
    return job_body(service, own_job(service, user, job_id, JOB_KINDS))


@router.get("/jobs/{job_id}/events", response_class=StreamingResponse)
def watch(job_id: str, service: ServiceOf, user: CurrentUser, request: Request) -> StreamingResponse:
    """Send a server-sent event whenever the job changes, until it has ended."""
    return Events(service, own_job(service, user, job_id), request)


@router.post("/jobs/{job_id}/cancel")
def cancel(job_id: str, service: ServiceOf, user: CurrentUser) -> JobBody:
    """Cancel a queued or running job; a job that has ended does not change."""
    job = own_job(service, user, job_id, JOB_KINDS)
    service.audit.add(user.name, user.address, "cancel", job.id)
    return job_body(service, service.queue.cancel(job.id))


@router.post("/jobs/{job_id}/retry")
def retry(job_id: str, service: ServiceOf, user: CurrentUser) -> JobBody:
    """Queue a failed or cancelled job again."""
    job = service.queue.retry(own_job(service, user, job_id).id)
    service.audit.add(user.name, user.address, "retry", job.id)
    service.waiting_jobs.notify()
    return job_body(service, job)


@router.patch("/jobs/{job_id}")
def rename(job_id: str, body: NameBody, service: ServiceOf, user: CurrentUser) -> JobBody:
    """Rename a job."""
    job = own_job(service, user, job_id)
    return job_body(service, service.queue.rename(job.id, checked_name(body.name)))


@router.delete("/jobs/{job_id}", status_code=204)
def delete(job_id: str, service: ServiceOf, user: CurrentUser) -> None:
    """Delete the files and the sequence of a job that has ended. The job stays in the history."""
    delete_job(service, user, job_id)


@router.get("/jobs/{job_id}/files")
def files(job_id: str, service: ServiceOf, user: CurrentUser) -> list[ResultFile]:
    """List the files of a result. The list is empty until the job is done."""
    job = own_job(service, user, job_id)
    return [ResultFile(path=path, bytes=size) for path, size in service.storage.results(job)]


@router.get("/jobs/{job_id}/files/{path:path}", response_class=FileResponse)
def file(job_id: str, path: str, service: ServiceOf, user: CurrentUser) -> FileResponse:
    """Fetch a file of a result."""
    return file_response(service, own_job(service, user, job_id), path)


@router.get("/jobs/{job_id}/archive", response_class=FileResponse)
async def archive(job_id: str, request: Request, service: ServiceOf, user: CurrentUser) -> FileResponse:
    """Fetch all files of a result in one zip archive."""
    job = await run_in_threadpool(own_job, service, user, job_id)
    return await run_slowly(request, archive_response, service, job)


@router.post("/jobs/{job_id}/share", status_code=201)
def share(job_id: str, service: ServiceOf, user: CurrentUser) -> ShareBody:
    """Create a link that shows the job and its result to anyone, for 30 days or until your token expires."""
    return ShareBody(**share_job(service, user, job_id))


@router.delete("/jobs/{job_id}/share", status_code=204)
def unshare(job_id: str, service: ServiceOf, user: CurrentUser) -> None:
    """Revoke all links to a job."""
    unshare_job(service, user, job_id)


def own_job(service: Service, user: User, job_id: str, kinds: Sequence[JobKind] = ("prediction",)) -> Job:
    """Return a job of the user that is of one of `kinds`. Answer 404 for any other id."""
    job = service.visible_job(job_id, user, kinds)
    if job is None:
        raise HTTPException(404, "you have no job with this id")
    return job


def job_body(service: Service, job: Job) -> JobBody:
    """Return the body of an answer with a job and its position in the queue."""
    return JobBody(**job_fields(job, service.views.place(job)))


def delete_job(service: Service, user: User, job_id: str) -> None:
    """Remove the files, the sequence and the links of a prediction of the user that has ended.

    It stays in the history as expired. Raise `JobStateError` if it is queued or running.
    """
    job = service.queue.delete(own_job(service, user, job_id).id)
    service.remove_files([job])
    service.audit.add(user.name, user.address, "delete", job.id)


def share_job(service: Service, user: User, job_id: str) -> dict[str, Any]:
    """Create a link to a prediction of the user, valid for 30 days or until the user's token expires.

    Return its "path", its "url" (None without a public address of the service), and the time when it "expires", in
    seconds since 1970. Raise `InputError` if the job is expired.
    """
    job = own_job(service, user, job_id)
    if job.state == "expired":
        raise InputError("the files of this job were deleted, so it cannot be shared")
    now, token = service.clock(), None if user.token is None else service.tokens.valid_token(user.token)
    expires = now + SHARE_SECONDS
    if token is not None and token.expires is not None:
        expires = min(expires, token.expires)
    path = f"/shared/{service.shares.create(job.id, expires - now, user.token)}"
    service.audit.add(user.name, user.address, "share", job.id)
    public_url = service.settings.public_url
    return {"path": path, "url": None if public_url is None else public_url + path, "expires": expires}


def unshare_job(service: Service, user: User, job_id: str) -> None:
    """Revoke all links to a prediction of the user."""
    job = own_job(service, user, job_id)
    service.shares.withdraw(job.id)
    service.audit.add(user.name, user.address, "unshare", job.id)
