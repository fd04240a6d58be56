"""The thread pools of the server: each user can occupy only a part of them, and slow work has a separate pool.

So workers do not wait for users, and pages do not wait until uploads are parsed or checked. The size and the number of
values of parsed bodies are limited, because a parser holds the interpreter lock during a call.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar, TypeVarTuple
from weakref import WeakValueDictionary

import pydantic_core
from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.routing import APIRoute
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData

from helixfold.apps.serve.tokens import Token

MAX_JSON_VALUES: Final = 2_000  # of one body
_MAX_FORM_FIELDS: Final = 1_000
_SLICE_BYTES: Final = 2**16
_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")
_ESCAPE = re.compile(rb"\\.", re.DOTALL)


class Threads:
    """A pool of `count` threads, of which one user can occupy at most `per_user`."""

    def __init__(self, count: int, per_user: int) -> None:
        self._limiter, self._per_user = CapacityLimiter(count), per_user
        self._users: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def semaphore(self, user: str) -> asyncio.Semaphore:
        """Return the semaphore that limits the threads of a user."""
        return self._users.setdefault(user, asyncio.Semaphore(self._per_user))

    async def run(self, user: str, function: Callable[[*_Arguments], _Result], *arguments: *_Arguments) -> _Result:
        """Call a function in a thread as soon as the user may occupy one, and return its result."""
        async with self.semaphore(user):
            return await to_thread.run_sync(function, *arguments, limiter=self._limiter)


def add_threads(app: FastAPI) -> None:
    """Create the thread pools of an application, as its state: for routes, for parsing, and for slow work.

    Routes that are added to the application itself become `ThreadedRoute`.
    """
    app.router.route_class = ThreadedRoute
    app.state.route_threads = Threads(40, per_user=3)  # limits the threads in which FastAPI calls functions
    app.state.parsers = Threads(2, per_user=1)
    app.state.slow_threads = Threads(8, per_user=3)  # checks of uploads occupy at most two


async def parse_in_thread(
    request: Request, parser: Callable[[*_Arguments], _Result], *arguments: *_Arguments
) -> _Result:
    """Call a parser in a thread of the pool for parsing, and return its result."""
    threads: Threads = request.app.state.parsers
    return await threads.run(request.state.who, parser, *arguments)


async def run_slowly(request: Request, function: Callable[[*_Arguments], _Result], *arguments: *_Arguments) -> _Result:
    """Call a function that may take seconds in a thread of the pool for slow work, and return its result."""
    threads: Threads = request.app.state.slow_threads
    return await threads.run(request.state.who, function, *arguments)


class ThreadedRoute(APIRoute):
    """A route that parses its JSON or form body in a thread, and limits the threads of its user."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that handles requests."""
        handler, runs_in_thread = super().get_route_handler(), not iscoroutinefunction(self.endpoint)

        async def handle(plain_request: Request) -> Response:
            request = _ParsedRequest(plain_request.scope, plain_request.receive)
            if not runs_in_thread or isinstance(request.state.caller, Token):
                return await handler(request)
            await request.body()  # before a thread is occupied, so that a slow body delays no other request
            threads: Threads = request.app.state.route_threads
            async with threads.semaphore(request.state.who):
                return await handler(request)

        return handle


class _ParsedRequest(Request):
    """A request whose JSON or form body is parsed in a thread."""

    async def json(self) -> Any:
        return await parse_in_thread(self, read_json, await self.body())

    async def form(self, **limits: int) -> FormData:  # type: ignore[override]  # without the context of Starlette's
        async def read() -> FormData:
            return await Request.form(self, **limits)

        _check_form(self.headers.get("content-type"), await self.body())
        return await parse_in_thread(self, asyncio.run, read())


def _check_form(content_type: str | None, content: bytes) -> None:
    """Answer 415 to a form with a character set other than UTF-8, and 413 to a form with too many fields.

    Some character sets decode to text that cannot be stored, or take long to decode.
    """
    kind, options = parse_options_header(content_type)
    if options.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
        raise HTTPException(415, "a form is read as UTF-8; send it without another charset")
    if kind != b"multipart/form-data" and content.count(b"&") >= _MAX_FORM_FIELDS:
        raise HTTPException(413, f"the form has more than {_MAX_FORM_FIELDS:,} fields; send fewer")


def read_json(content: bytes) -> Any:
    """Parse a JSON text. Answer 422 if it is invalid, and 413 if it has too many values."""
    if count_values(content) > MAX_JSON_VALUES:
        raise HTTPException(413, f"the JSON body has more than {MAX_JSON_VALUES:,} values; send fewer")
    try:
        return pydantic_core.from_json(content)
    except ValueError as error:
        raise HTTPException(422, f"the body is not JSON: {error}") from error


def count_values(content: bytes) -> int:
    """Return an upper bound of the number of values in a JSON text, without parsing it.

    The bound is one more than the commas and opening brackets outside of strings. Counting stops soon after it exceeds
    `MAX_JSON_VALUES`.
    """
    count, is_in_string, pending_escape = 1, False, b""
    for start in range(0, len(content), _SLICE_BYTES):
        text = _ESCAPE.sub(b"", pending_escape + content[start : start + _SLICE_BYTES])
        pending_escape = b"\\" if text.endswith(b"\\") else b""
        parts_between_quotes = text.split(b'"')
        outside_strings = b"".join(parts_between_quotes[is_in_string::2])
        is_in_string ^= len(parts_between_quotes) % 2 == 0
        count += outside_strings.count(b",") + outside_strings.count(b"[") + outside_strings.count(b"{")
        if count > MAX_JSON_VALUES:
            break
    return count
