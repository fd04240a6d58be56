"""Server-sent events: a job as JSON whenever it changes."""

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi import HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from helixfold.serve.queue.jobs import Job
from helixfold.serve.service import Service, described
from helixfold.serve.web.identity import user_or_none

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_SIGNS = 15.0  # of life, without which proxies end a silent connection
_MOST_STREAMS = 500
_PLACES_SECONDS = 5.0  # between looks at the place of a job that waits

_open_streams = 0


def events(service: Service, job: Job, request: Request) -> StreamingResponse:
    """Return the events of a job, up to its final state, or until the token or the session of the request ends.

    Answer 503 if too many are watched already.
    """
    if _open_streams >= _MOST_STREAMS:
        raise HTTPException(503, "too many jobs are watched; ask for the status now and then instead")
    return StreamingResponse(_stream(service, job.id, request), media_type="text/event-stream")


async def _stream(service: Service, job_id: str, request: Request) -> AsyncIterator[str]:
    global _open_streams  # noqa: PLW0603  # of this process, whatever the application
    _open_streams += 1
    try:
        revision, sent, silent, unlooked = -1, "", 0.0, 0.0
        while user_or_none(request) is not None:
            newest = service.queue.revision(job_id)
            if newest != revision or unlooked >= _PLACES_SECONDS:
                revision, unlooked = newest, 0.0
                job = await run_in_threadpool(service.views.job, job_id)
                if job is None:
                    return
                content = json.dumps(described(job, await run_in_threadpool(service.views.place, job)))
                if content != sent:
                    sent, silent = content, 0.0
                    yield f"event: job\ndata: {content}\n\n"
                if job.has_ended:
                    return
            if silent >= _SECONDS_BETWEEN_SIGNS:
                silent = 0.0
                yield ": still there\n\n"
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
            silent, unlooked = silent + _SECONDS_BETWEEN_LOOKS, unlooked + _SECONDS_BETWEEN_LOOKS
    finally:
        _open_streams -= 1
