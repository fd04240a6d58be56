"""Check each request by its headers before its body is read.

A request is refused if it comes from another site, is addressed to another host, has no valid token, comes too often,
or is too large. The body must arrive within a time limit.
"""

import asyncio
import ipaddress
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from fastapi import HTTPException, Request
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from helixfold.apps.serve.settings import API, ServeSettings
from helixfold.apps.serve.tokens import Token, TokenFileError
from helixfold.apps.serve.web.errors import http_error, unreadable_tokens
from helixfold.apps.serve.web.identity import client_address, identify, is_public, refuse_unauthenticated

_MAX_BUCKETS = 10_000  # above which full buckets are removed


class RateLimiter:
    """A token bucket for each user: it holds the requests of one minute, and is refilled at a constant rate."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute, self._clock = per_minute, clock
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}  # remaining requests, at a time

    def seconds_to_wait(self, key: str) -> float:
        """Take one request from the bucket of `key` and return 0, or return the seconds until the next is allowed.

        `key` is a user or an address.
        """
        now, rate = self._clock(), self._per_minute / 60
        with self._lock:
            if len(self._buckets) >= _MAX_BUCKETS and key not in self._buckets:
                self._buckets = {
                    name: (requests_left, since)
                    for name, (requests_left, since) in self._buckets.items()
                    if requests_left + rate * (now - since) < self._per_minute
                }
            requests_left, since = self._buckets.get(key, (float(self._per_minute), now))
            requests_left = min(self._per_minute, requests_left + rate * (now - since))
            is_allowed = requests_left >= 1
            self._buckets[key] = (requests_left - is_allowed, now)
        return 0.0 if is_allowed else (1 - requests_left) / rate


def network_of(address: str) -> str:
    """Return the network that counts as one client: an IPv4 address, or a /64 of IPv6, which one host controls."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    mapped_ipv4 = parsed.ipv4_mapped
    return str(mapped_ipv4) if mapped_ipv4 is not None else str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))


MAX_REQUESTS: Final = 100  # in progress for each user or address, including requests that wait for a structure
_SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")
_SUBMITTING_GET_PATH: Final = "/template/"  # ColabFold's clients submit a search with a GET
_MIN_BYTES_PER_SECOND: Final = 2**18
_MAX_ANONYMOUS_BODY: Final = 2**12  # for requests without a token, such as the login form
_MAX_BODY_WITHOUT_FILES: Final = 2**22  # for routes without files; a sequence has at most 2**20 letters
_MAX_UNCOUNTED_BODY: Final = 2**16
_RESULT_PATH = re.compile(rf"{API}/worker/jobs/[0-9a-f]{{32}}/results/.*")
_UPLOAD_PATHS: Final = (
    *(f"{API}/jobs", f"{API}/forecast", "/submit"),
    "/protein-structure/alphafold2/predict-structure-from-MSA",
)


class RequestLimits:
    """Middleware that checks each request before its body arrives, and limits the size and time of the body."""

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self._app, self._settings = app, settings
        self._limiter = RateLimiter(settings.max_requests)
        self._requests: Counter[str] = Counter()  # in progress, by client
        self._bytes: Counter[str] = Counter()  # of the larger bodies in progress, by client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer with the reason for which it is refused."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        is_safe = scope["method"] in _SAFE_METHODS and not scope["path"].startswith(_SUBMITTING_GET_PATH)
        if (problem := self._problem(is_safe, request.headers)) is not None:
            await JSONResponse({"error": problem[1]}, problem[0])(scope, receive, send)
            return
        try:
            who = self._admit(request)
            limit = self._limit(request)
            size = self._body_memory(request, who, limit)
        except HTTPException as error:
            await http_error(request, error)(scope, receive, send)
            return
        except TokenFileError as error:
            await unreadable_tokens(request, error)(scope, receive, send)
            return
        request.state.who = who
        self._requests[who] += 1
        self._bytes[who] += size
        try:
            await self._app(scope, _Body(receive, limit, self._settings.body_seconds), send)
        finally:
            self._requests -= Counter({who: 1})  # in contrast to `subtract`, removes counts of 0
            self._bytes -= Counter({who: size})

    def _admit(self, request: Request) -> str:
        """Return the client of a request, for which its requests are counted. Answer 401, 303 or 429 to refuse it."""
        caller = identify(request)
        if isinstance(caller, Token):
            return f"worker {caller.id}"  # without a rate limit, because heartbeats must arrive
        who = f"address {network_of(client_address(request))}" if caller is None else f"user {caller.name}"
        if seconds := self._limiter.seconds_to_wait(who):
            raise _too_many("too many requests", math.ceil(seconds))
        if caller is None and not is_public(request.scope["path"]):
            refuse_unauthenticated(request)
        if self._requests[who] >= MAX_REQUESTS:
            raise _too_many(f"you have {MAX_REQUESTS} requests in progress, the maximum")
        return who

    def _limit(self, request: Request) -> int:
        """Return the maximum size of the body of a request in bytes."""
        path = request.scope["path"]
        if request.state.caller is None:
            return _MAX_ANONYMOUS_BODY
        if _RESULT_PATH.fullmatch(path):
            return self._settings.max_result_bytes
        return min(self._settings.max_upload, _MAX_BODY_WITHOUT_FILES if path not in _UPLOAD_PATHS else 2**62)

    def _body_memory(self, request: Request, who: str, limit: int) -> int:
        """Return the bytes of memory that the body of a request needs; 0 for a small body or a result file.

        Answer 413 if it is too large, and 429 or 503 if other requests currently need too much memory.
        """
        length = request.headers.get("content-length", "0")
        if "content-length" in request.headers and "transfer-encoding" in request.headers:
            # Proxies disagree on where such a request ends, and may treat the rest as a request of another client.
            text = "a request must have Content-Length or Transfer-Encoding, not both"
            raise HTTPException(400, text, {"Connection": "close"})
        if not length.isdecimal() or int(length[:20]) > limit:
            raise HTTPException(413, f"the request has {length[:20]} bytes; the maximum is {limit:,}")
        size = limit if "transfer-encoding" in request.headers else int(length)
        is_result = _RESULT_PATH.fullmatch(request.scope["path"])  # written to the disk while it arrives
        if size <= _MAX_UNCOUNTED_BODY or is_result:
            return 0
        max_bytes, client_bytes = self._settings.max_upload, self._bytes[who]
        if client_bytes + size > max_bytes:
            raise _too_many(f"your requests in progress would exceed {max_bytes:,} bytes, the maximum")
        # A body takes up to six times its size when it is parsed. One client may use two thirds of what is left.
        bytes_left = max_bytes + (max_bytes + 1) // 2 - (self._bytes.total() - client_bytes)
        if client_bytes + size > bytes_left * 2 // 3:
            text = "the service is busy with uploads of other users; try again in a few seconds"
            raise HTTPException(503, text, {"Retry-After": "5"})
        return size

    def _problem(self, is_safe: bool, headers: Headers) -> tuple[int, str] | None:
        """Return the status and the text with which to refuse a request; None if its host and origin are allowed."""
        host = headers.get("host", "")
        if not _is_accepted(host, self._settings.accepted_hosts):
            return 421, "unknown host name; start the service with --host-name to allow it"
        if is_safe:
            return None
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "requests from other sites cannot change anything"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403, "requests from other sites cannot change anything"
        return None


class _Body:
    """Receives the body of a request, with a maximum size and a time limit that grows with the size received."""

    def __init__(self, receive: Receive, limit: int, seconds: float) -> None:
        self._receive, self._limit = receive, limit
        self._until, self._size, self._is_complete = time.monotonic() + seconds, 0, False

    async def __call__(self) -> Message:
        if self._is_complete:
            return await self._receive()  # returns when the client disconnects
        try:
            message = await asyncio.wait_for(self._receive(), max(0.01, self._until - time.monotonic()))
        except TimeoutError:
            raise HTTPException(408, "the request took too long to arrive", headers={"Connection": "close"}) from None
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._until += len(message.get("body", b"")) / _MIN_BYTES_PER_SECOND
            self._is_complete = not message.get("more_body", False)
            if self._size > self._limit:
                text = f"the request has more than {self._limit:,} bytes, the maximum"
                raise HTTPException(413, text, headers={"Connection": "close"})
        return message


def _too_many(text: str, seconds: int = 5) -> HTTPException:
    """Return the 429 answer to a request that comes too often or is too many, with the seconds to wait."""
    # The connection is closed because more requests may be waiting on it, and answering each takes time.
    return HTTPException(429, f"{text}; wait {seconds} s", {"Retry-After": str(seconds), "Connection": "close"})


def _is_accepted(host: str, accepted: Sequence[str] | None) -> bool:
    """Return whether a Host header, without its port, is one of the accepted names; None accepts all."""
    if accepted is None:
        return True
    name = re.sub(r":\d{1,5}$", "", host).lower()
    return name in accepted
