"""The REST interface for workers on any machine: claim a job, report its progress, send its result.

Requests of a worker contain its token and, if they concern a job, the lease of the job.
"""

import os
import time
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, HTTPException, Request, Response
from pydantic import AfterValidator, BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse

from data_pipeline.io.errors import InputError, printable
from helixfold.apps.serve.queue.jobs import Job, JobKind, JobState
from helixfold.apps.serve.queue.queue import LostLeaseError
from helixfold.apps.serve.queue.workers import Provenance, Text, WorkerOffers
from helixfold.apps.serve.settings import API
from helixfold.apps.serve.transfer import MAX_RESULT_FILES
from helixfold.apps.serve.web.identity import CurrentWorker, ServiceOf
from helixfold.apps.serve.web.threads import ThreadedRoute

_POLLING_SECONDS = 2.0
_MAX_WAIT_SECONDS = 10.0
_BYTES_BETWEEN_CHECKS = 2**22  # of the size of a result while one of its files arrives
router = APIRouter(prefix=f"{API}/worker", tags=["workers"], route_class=ThreadedRoute)
# The header with the lease of a job, a line of output, and a score; each with its limits.
Lease = Annotated[str, Header(alias="X-Lease", max_length=100)]
Line = Annotated[str, Field(max_length=400), AfterValidator(partial(printable, limit=400))]
Score = Annotated[float | None, Field(ge=0, le=100)]


class HelloBody(BaseModel):
    """The name of a worker, and its offers."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    offers: WorkerOffers


class ClaimBody(BaseModel):
    """The kinds of jobs that a worker accepts, the maximum number of residues, and the seconds to wait for a job."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    kinds: Annotated[list[JobKind], Field(min_length=1, max_length=2)]
    longest: Annotated[int | None, Field(ge=1, le=2**40)] = None
    wait: Annotated[float, Field(ge=0, le=_MAX_WAIT_SECONDS)] = 0.0


class StageBody(BaseModel):
    """A completed stage of a job, and its duration."""

    name: Text
    seconds: Annotated[float, Field(ge=0, le=1e9)]


class ProgressBody(BaseModel):
    """Progress of a job: the completed stages, and at most five of the last lines of output."""

    stages: Annotated[list[StageBody], Field(max_length=200)] = Field(default_factory=list)
    lines: Annotated[list[Line], Field(max_length=5)] = Field(default_factory=list)


class HeartbeatBody(BaseModel):
    """A heartbeat, with the progress of the job if it has changed."""

    progress: ProgressBody | None = None


class SummaryBody(BaseModel):
    """Scores and model of the best prediction; empty for an alignment. pLDDT is from 0 to 100, pTM and ipTM to 1."""

    plddt: Score = None
    ptm: Score = None
    iptm: Score = None
    model: Text = ""
    provenance: Provenance | None = None


class FinishBody(BaseModel):
    """The summary and the number of files of a result, which a worker sends after the files."""

    summary: SummaryBody = Field(default_factory=SummaryBody)
    files: Annotated[int, Field(ge=0, le=MAX_RESULT_FILES)]


class FailBody(BaseModel):
    """Why a job failed, and whether another attempt may succeed."""

    error: Annotated[str, Field(max_length=20_000)]
    try_again: bool = False


@router.post("/hello", status_code=204)
def hello(body: HelloBody, service: ServiceOf, worker: CurrentWorker) -> None:
    """Store the offers of a worker, which it sends when it starts."""
    service.workers.record_message(_name(worker.user, body.name), body.offers)


@router.post("/claim", response_model=None)
async def claim(body: ClaimBody, service: ServiceOf, worker: CurrentWorker, request: Request) -> Any:
    """Claim a job. Answer 204 if there is none within the time that the worker waits."""
    name, deadline = _name(worker.user, body.name), time.monotonic() + body.wait
    await run_in_threadpool(service.workers.record_message, name)
    while True:
        if await request.is_disconnected():
            return Response(status_code=204)  # nobody would receive the job
        job = await run_in_threadpool(service.queue.claim, name, body.kinds, body.longest)
        if job is not None:
            return _claim_fields(job, service.settings.queue.lease_seconds)
        seconds_left = deadline - time.monotonic()
        if seconds_left <= 0:
            return Response(status_code=204)
        await service.waiting_jobs.wait(min(seconds_left, _POLLING_SECONDS))


@router.post("/jobs/{job_id}/heartbeat", status_code=204)
def heartbeat(job_id: str, body: HeartbeatBody, service: ServiceOf, worker: CurrentWorker, x_lease: Lease) -> None:
    """Extend the lease. Answer 409 if the job no longer belongs to this worker, which must then stop."""
    progress = None if body.progress is None else body.progress.model_dump()
    service.queue.heartbeat(job_id, x_lease, progress)


@router.get("/jobs/{job_id}/inputs/{name}", response_class=FileResponse)
def read_input(job_id: str, name: str, service: ServiceOf, worker: CurrentWorker, x_lease: Lease) -> FileResponse:
    """Fetch a file that was uploaded for the job."""
    job = _require_lease(service.views.job(job_id), x_lease)
    try:
        path = service.storage.input_file(job.id, name)
    except InputError as error:
        raise HTTPException(404, str(error)) from error
    if not path.is_file():
        raise HTTPException(404, "the job has no input of this name")
    return FileResponse(path, media_type="application/octet-stream")


@router.put("/jobs/{job_id}/results/{path:path}", status_code=204)
async def write_result(
    job_id: str, path: str, request: Request, service: ServiceOf, worker: CurrentWorker, x_lease: Lease
) -> None:
    """Send a file of the result. The result is visible once the job is finished.

    Answer 413 if the files of the result exceed the disk limit of a user, and 422 if there are too many.
    """
    job = _require_lease(await run_in_threadpool(service.views.job, job_id), x_lease)
    target = service.storage.attempt_file(job.id, job.attempts, path)
    directory = service.storage.attempt(job.id, job.attempts)
    sizes = await run_in_threadpool(service.storage.sizes, directory)
    if len(sizes.keys() - {target}) >= MAX_RESULT_FILES:
        raise HTTPException(422, f"a result has at most {MAX_RESULT_FILES:,} files")
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with target.open("wb") as file:
            bytes_until_check = 0
            async for chunk in request.stream():
                file.write(chunk)
                bytes_until_check -= len(chunk)
                if bytes_until_check < 0:
                    file.flush()
                    # Other files of the result may arrive at the same time.
                    sizes = await run_in_threadpool(service.storage.sizes, directory)
                    bytes_until_check = min(
                        _BYTES_BETWEEN_CHECKS, service.settings.queue.max_user_bytes - sum(sizes.values())
                    )
                if bytes_until_check < 0:
                    raise HTTPException(413, "the result exceeds the disk limit of its user")
            file.flush()
            await run_in_threadpool(os.fsync, file.fileno())
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise HTTPException(422, "a file and a folder of the result have the same name") from error


@router.post("/jobs/{job_id}/finish", status_code=204)
def finish(job_id: str, body: FinishBody, service: ServiceOf, worker: CurrentWorker, x_lease: Lease) -> None:
    """Mark the job as done, with the files that were sent as its result. Files of earlier attempts are removed.

    Answer 422 if a file is missing or none was sent, and 409 if the job no longer belongs to this worker.
    """
    job = _require_lease(service.views.job(job_id), x_lease, "done")
    directory = service.storage.attempt(job.id, job.attempts)
    sizes = service.storage.sizes(directory)
    file_count = len(sizes)
    if file_count != body.files or not file_count:
        raise HTTPException(422, f"expected {body.files} files of the result, got {file_count}")
    service.storage.flush_names(directory)
    summary = {} if body.summary.plddt is None else body.summary.model_dump()
    job = service.queue.finish(job.id, x_lease, size=sum(sizes.values()), summary=summary)
    service.storage.remove_other_attempts(job)


@router.post("/jobs/{job_id}/fail", status_code=204)
def fail(job_id: str, body: FailBody, service: ServiceOf, worker: CurrentWorker, x_lease: Lease) -> None:
    """Report why the job failed. It is queued again if another attempt may succeed and it has attempts left."""
    job = service.queue.fail(job_id, x_lease, printable(body.error, 4_000), try_again=body.try_again)
    if job.state == "queued":
        service.waiting_jobs.notify()


@router.post("/jobs/{job_id}/release", status_code=204)
def release(job_id: str, service: ServiceOf, worker: CurrentWorker, x_lease: Lease) -> None:
    """Queue the job again, because the worker stops."""
    service.queue.release(job_id, x_lease)
    service.waiting_jobs.notify()


def _name(user: str, name: str) -> str:
    """Return the name of a worker in the database, with the user of its token in front."""
    return f"{user}/{name}" if name.isprintable() else user


def _require_lease(job: Job | None, lease: str, *others: JobState) -> Job:
    """Return a job that has this lease and is running, or in a state of `others`; else raise `LostLeaseError`."""
    if job is None or job.lease != lease or job.state not in ("running", *others):
        raise LostLeaseError("the job no longer belongs to this worker: it was cancelled, or given to another one")
    return job


def _claim_fields(job: Job, lease_seconds: float) -> dict[str, Any]:
    """Return the answer to a worker that has claimed a job."""
    return {
        "id": job.id,
        "kind": job.kind,
        "lease": job.lease,
        "lease_seconds": lease_seconds,
        "attempt": job.attempts,
        "request": job.request,
    }
