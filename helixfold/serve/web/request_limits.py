"""Refuse what no request of a well-meaning client is: too large, too slow, from another site, for another host."""

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from helixfold.serve.settings import API, ServeSettings

_SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")
_SUBMITTING_PATH: Final = "/template/"  # ColabFold's clients submit a search with a GET
_BYTES_PER_SECOND: Final = 2**18
_RESULT_PATH = re.compile(rf"{API}/worker/jobs/[0-9a-f]{{32}}/results/.*")


class RequestLimits:
    """Middleware that checks each request before, and while, its body arrives."""

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer why it is refused."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_safe = scope["method"] in _SAFE_METHODS and not scope["path"].startswith(_SUBMITTING_PATH)
        if (problem := self._problem(is_safe, headers)) is not None:
            await JSONResponse({"error": problem[1]}, problem[0])(scope, receive, send)
            return
        limit = self._limit(scope["path"])
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > limit:
            text = f"the request has {length[:20]} bytes, and at most {limit:,} are read"
            await JSONResponse({"error": text}, 413)(scope, receive, send)
            return
        await self._app(scope, _Body(receive, limit, self._settings.body_seconds), send)

    def _limit(self, path: str) -> int:
        return self._settings.max_result_bytes if _RESULT_PATH.fullmatch(path) else self._settings.max_upload_bytes

    def _problem(self, is_safe: bool, headers: Headers) -> tuple[int, str] | None:
        """Return the status and the text of a refusal; None if nothing is wrong."""
        host = headers.get("host", "")
        if not _has_name(host, self._settings.accepted_hosts):
            return 421, "this service has another name; see --host-name"
        if is_safe:
            return None
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "requests that change something are not taken from other sites"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, "requests that change something are not taken from other sites"
        return None


class _Body:
    """The messages of a request's body, up to a size and within a time that grows with it."""

    def __init__(self, receive: Receive, limit: int, seconds: float) -> None:
        self._receive, self._limit = receive, limit
        self._until, self._size, self._is_complete = time.monotonic() + seconds, 0, False

    async def __call__(self) -> Message:
        if self._is_complete:
            return await self._receive()  # tells when the client has gone
        try:
            message = await asyncio.wait_for(self._receive(), max(0.01, self._until - time.monotonic()))
        except TimeoutError:
            raise HTTPException(408, "the request took too long to arrive", headers={"Connection": "close"}) from None
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._until += len(message.get("body", b"")) / _BYTES_PER_SECOND
            self._is_complete = not message.get("more_body", False)
            if self._size > self._limit:
                text = f"the request has more than {self._limit:,} bytes, the most that are read"
                raise HTTPException(413, text, headers={"Connection": "close"})
        return message


def _has_name(host: str, accepted: Sequence[str] | None) -> bool:
    if accepted is None:
        return True
    name = re.sub(r":\d{1,5}$", "", host).lower()
    return name in accepted
