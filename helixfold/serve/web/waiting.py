"""Wait in one request for the end of a job, for interfaces that answer with the result itself."""

import asyncio
import time

from fastapi import HTTPException, Request
from starlette.concurrency import run_in_threadpool

from helixfold.serve.queue.jobs import Job
from helixfold.serve.service import Service
from helixfold.serve.settings import API
from helixfold.serve.web.identity import user_or_none

_SECONDS_BETWEEN_LOOKS = 0.2


async def finished(service: Service, job_id: str, request: Request) -> Job:
    """Return a job when it is done.

    Answer 504 if it takes too long, 502 if it fails, 401 if the token of the request ends, and stop looking if the
    client has gone; the job goes on.
    """
    until, revision = time.monotonic() + service.settings.wait_seconds, -1
    while time.monotonic() < until and not await request.is_disconnected():
        newest = service.queue.revision(job_id)
        if newest != revision:
            revision = newest
            job = await run_in_threadpool(service.views.job, job_id)
            if job is not None and job.state == "done":
                return job
            if job is None or job.has_ended:
                reason = (job.error if job is not None else None) or "it was cancelled"
                raise HTTPException(502, f"the job failed: {reason[:1_000]}")
        await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
        if user_or_none(request) is None:
            raise HTTPException(401, "the token has expired or was revoked")
    place = f"{API}/jobs/{job_id}"
    raise HTTPException(504, f"the job is not done yet; see {place}", headers={"Location": place})
