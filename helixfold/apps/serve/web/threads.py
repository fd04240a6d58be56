"""The threads of the service: one user has a part of them at most, and slow work has threads of its own.

Workers never wait for users, nor pages for what is parsed or checked. What is parsed is bounded in size and in the
number of its values, because other threads run only between two calls of a parser.
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

MAX_JSON_VALUES: Final = 2_000
_MAX_FORM_FIELDS: Final = 1_000
_SLICE: Final = 2**16
_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")
_ESCAPE = re.compile(rb"\\.", re.DOTALL)


class Threads:
    """A number of threads, of which one user has a part at most."""

    def __init__(self, count: int, of_user: int) -> None:
        self._limiter, self._of_user = CapacityLimiter(count), of_user
        self._users: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def part_of(self, user: str) -> asyncio.Semaphore:
        """Return the part of a user."""
        return self._users.setdefault(user, asyncio.Semaphore(self._of_user))

    async def run(self, user: str, function: Callable[[*_Arguments], _Result], *arguments: *_Arguments) -> _Result:
        """Return the result of a function, which begins when the user has a thread for it."""
        async with self.part_of(user):
            return await to_thread.run_sync(function, *arguments, limiter=self._limiter)


def add_threads(app: FastAPI) -> None:
    """Give an application its threads: for routes, for parsing, and for slow work."""
    app.router.route_class = ThreadedRoute
    app.state.route_threads = Threads(40, of_user=3)  # those in which FastAPI calls what is not a coroutine
    app.state.parsers = Threads(2, of_user=1)
    app.state.slow_threads = Threads(8, of_user=3)  # uploads that are checked take two


async def parse_in_thread(
    request: Request, parser: Callable[[*_Arguments], _Result], *arguments: *_Arguments
) -> _Result:
    """Return what a parser makes of its arguments, in one of the threads for it."""
    threads: Threads = request.app.state.parsers
    return await threads.run(request.state.who, parser, *arguments)


async def run_slowly(request: Request, function: Callable[[*_Arguments], _Result], *arguments: *_Arguments) -> _Result:
    """Return the result of a function that may take seconds, in one of the threads for it."""
    threads: Threads = request.app.state.slow_threads
    return await threads.run(request.state.who, function, *arguments)


class ThreadedRoute(APIRoute):
    """A route whose body, JSON or a form, is parsed in a thread, and whose function waits for its user's part."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of requests."""
        handler, has_thread = super().get_route_handler(), not iscoroutinefunction(self.endpoint)

        async def handle(plain_request: Request) -> Response:
            request = _ParsedRequest(plain_request.scope, plain_request.receive)
            if not has_thread or isinstance(request.state.caller, Token):
                return await handler(request)
            await request.body()  # a slow one keeps nobody of the same address waiting
            threads: Threads = request.app.state.route_threads
            async with threads.part_of(request.state.who):
                return await handler(request)

        return handle


class _ParsedRequest(Request):
    async def json(self) -> Any:
        return await parse_in_thread(self, read_json, await self.body())

    async def form(self, **limits: int) -> FormData:  # type: ignore[override]  # without the context of Starlette's
        async def read() -> FormData:
            return await Request.form(self, **limits)

        _check_form(self.headers.get("content-type"), await self.body())
        return await parse_in_thread(self, asyncio.run, read())


def _check_form(content_type: str | None, content: bytes) -> None:
    """Answer 415 to a form that names an encoding of its own, and 413 to one with too many fields.

    Some encodings make text of it that cannot be written, or take long.
    """
    kind, options = parse_options_header(content_type)
    if options.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
        raise HTTPException(415, "a form is read as UTF-8; send it without another charset")
    if kind != b"multipart/form-data" and content.count(b"&") >= _MAX_FORM_FIELDS:
        raise HTTPException(413, f"the form has more than {_MAX_FORM_FIELDS:,} fields; send fewer")


def read_json(content: bytes) -> Any:
    """Return the value of a JSON text. Answer 422 if it is not JSON, and 413 if it has too many values."""
    if count_values(content) > MAX_JSON_VALUES:
        raise HTTPException(413, f"the JSON body has more than {MAX_JSON_VALUES:,} values; send fewer")
    try:
        return pydantic_core.from_json(content)
    except ValueError as error:
        raise HTTPException(422, f"the body is not JSON: {error}") from error


def count_values(content: bytes) -> int:
    """Return how many values a JSON text has at most: its commas, and the brackets that open, outside of strings.

    Counting ends once there are too many.
    """
    count, is_in_string, begun = 1, False, b""
    for start in range(0, len(content), _SLICE):
        text = _ESCAPE.sub(b"", begun + content[start : start + _SLICE])
        begun = b"\\" if text.endswith(b"\\") else b""
        pieces = text.split(b'"')
        outside = b"".join(pieces[is_in_string::2])
        is_in_string ^= len(pieces) % 2 == 0
        count += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        if count > MAX_JSON_VALUES:
            break
    return count
