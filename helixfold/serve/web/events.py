"""Server-sent events: a job as JSON whenever it changes."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from helixfold.serve.queue.jobs import Job
from helixfold.serve.service import Service, described
from helixfold.serve.web.identity import user_or_none

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_SIGNS = 15.0  # of life, without which proxies end a silent connection
_MAX_STREAMS, _MAX_STREAMS_OF_USER = 500, 50
_PLACES_SECONDS = 5.0  # between looks at the place of a job that waits

_streams: Counter[str] = Counter()  # open ones of this process, by user


class Events(StreamingResponse):
    """The events of a job, up to its final state, or until the token or the session of the request ends.

    Answers 429 if the user watches too many jobs already, and 503 if all users do.
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
