"""Jobs of other programs: submit a search once for equal requests, and wait for the end of a job in one request."""

import asyncio
import hashlib
import json
import time
from dataclasses import asdict

from fastapi import HTTPException, Request
from starlette.concurrency import run_in_threadpool

from helixfold.apps.serve.alignment_request import AlignmentRequest
from helixfold.apps.serve.queue.jobs import Job, NewJob
from helixfold.apps.serve.service import Service, User
from helixfold.apps.serve.settings import API
from helixfold.apps.serve.web.identity import user_or_none


def submit_alignment(service: Service, search: AlignmentRequest, user: User) -> Job:
    """Submit a search, or return the earlier job of an equal request.

    A failed, cancelled or expired job is queued again, as a job of this user. Answer 501 if workers have connected, but
    none has ColabFold's databases.
    """
    offers = service.offers()
    if offers and not any(worker.alignments for worker in offers):
        raise HTTPException(501, "this service has no ColabFold databases")
    job_id = search.job_id(service.storage.secret())
    earlier = service.views.job(job_id)
    if earlier is not None and earlier.state in ("failed", "cancelled", "expired"):
        job = service.queue.resubmit(job_id, user.name)
        service.audit.add(user.name, user.address, "retry", job_id)
        service.waiting_jobs.notify()
        return job
    if earlier is not None:
        return earlier
    content = asdict(search)
    new = NewJob(
        id=job_id,
        user=user.name,
        address=user.address,
        kind="alignment",
        name=f"{search.kind} {search.mode}".strip(),
        request=content,
        request_digest=hashlib.sha256(json.dumps(content).encode()).hexdigest(),
        residues=search.residues,
    )
    return service.enqueue(new)[0]


_POLLING_SECONDS = 0.2


async def wait_until_done(service: Service, job_id: str, request: Request) -> Job:
    """Wait until a job is done, and return it.

    Answer 504 if it takes longer than the service's `wait_seconds`, 502 if it fails or is cancelled, and 401 if the
    token of the request becomes invalid. If the client disconnects, waiting ends. In each case, the job continues.
    """
    deadline, revision = time.monotonic() + service.settings.wait_seconds, -1
    while time.monotonic() < deadline and not await request.is_disconnected():
        newest_revision = service.queue.revision(job_id)
        if newest_revision != revision:
            revision = newest_revision
            job = await run_in_threadpool(service.views.job, job_id)
            if job is not None and job.state == "done":
                return job
            if job is None or job.has_ended:
                reason = (job.error if job is not None else None) or "it was cancelled"
                raise HTTPException(502, f"the job failed: {reason[:1_000]}")
        await asyncio.sleep(_POLLING_SECONDS)
        if user_or_none(request) is None:
            raise HTTPException(401, "the token has expired or was revoked")
    job_path = f"{API}/jobs/{job_id}"
    raise HTTPException(504, f"the job is not done yet; see {job_path}", headers={"Location": job_path})
