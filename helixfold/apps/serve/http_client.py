"""HTTP client with which workers and commands send requests to a server of the service."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, Final
from urllib.parse import urlsplit

from data_pipeline.io.addresses import is_http_address
from data_pipeline.io.errors import InputError, RequestError, UnusableAnswerError, printable
from data_pipeline.io.http import Response, send

_TIMEOUT_SECONDS: Final = 60.0
_MAX_ANSWER_BYTES: Final = 2**24
_MAX_ERROR_READS: Final = 16  # parts of an error's body that are read; the rest is ignored


class ServerError(RuntimeError):
    """Error for an answer that refuses a request (with its status and text) or cannot be used (status 0).

    `retry_after` is the number of seconds after which the server allows another attempt; None if it names none.
    """

    def __init__(self, status: int, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status, self.retry_after = status, retry_after


class ServerUnreachableError(RuntimeError):
    """Error for a server that does not answer; the same request may succeed later."""


@dataclass(frozen=True)
class Answer:
    """Status, headers and body of a server's answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the parsed JSON body; None for an empty one. Raise `ServerUnreachableError` if it is not JSON."""
        try:
            return json.loads(self.body) if self.body else None
        except (ValueError, RecursionError) as error:
            raise ServerUnreachableError("the server sent an answer that is not JSON") from error


class HttpClient:
    """Sends requests to the server at `url`, with a token if there is one. Not thread-safe.

    `timeout` is in seconds. Raise `InputError` for an invalid address.
    """

    def __init__(self, url: str, token: str | None = None, *, timeout: float = _TIMEOUT_SECONDS) -> None:
        if not is_http_address(url) or urlsplit(url).query or urlsplit(url).username is not None:
            raise InputError(f"the server must be an address such as http://127.0.0.1:8000, got '{printable(url)}'")
        self.url, self._timeout = url.rstrip("/"), timeout
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def request(
        self,
        method: str,
        path: str,
        *,
        content: Any = None,
        body: bytes | IO[bytes] = b"",
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Send a request with `content` as JSON, or with `body`, and return the answer.

        `path` is appended to the server's address. `timeout` of None is the client's. Raise `ServerError` for a status
        of 300 or more (redirects are not followed), `ServerUnreachableError` if no complete answer comes.
        """
        all_headers = dict(headers or {})
        if content is not None:
            body, all_headers["Content-Type"] = json.dumps(content).encode(), "application/json"
        with self._open(
            method, path, body=body, headers=all_headers, timeout=timeout, max_bytes=_MAX_ANSWER_BYTES
        ) as response:
            try:
                return Answer(response.status, response.headers, response.read_all())
            except RequestError as error:
                raise self._failure("broke off its answer", error) from error

    def download(self, path: str, file: IO[bytes], *, max_bytes: int, headers: Mapping[str, str] | None = None) -> int:
        """Request a path with GET, write the body of the answer to a file, and return the body's size in bytes.

        Raise `InputError` if the answer is larger than `max_bytes`, and errors as `request` does.
        """
        with self._open("GET", path, body=b"", headers=headers or {}, timeout=None, max_bytes=max_bytes) as response:
            start_position = file.tell()
            try:
                response.copy_to(file)
            except UnusableAnswerError as error:
                problem = f"{self.url}{path} is larger than the maximum of {max_bytes:,} bytes"
                raise InputError(problem) from error
            except RequestError as error:
                raise self._failure("broke off its answer", error) from error
            return file.tell() - start_position

    def _open(
        self,
        method: str,
        path: str,
        *,
        body: bytes | IO[bytes],
        headers: Mapping[str, str],
        timeout: float | None,
        max_bytes: int,
    ) -> Response:
        """Send a request, and return the response if its status is below 300.

        Redirects are not followed, because the token is for this server only.
        """
        try:
            response = send(
                method,
                self.url + path,
                timeout=timeout or self._timeout,
                max_bytes=max_bytes,
                headers={**self._headers, **headers},
                body=body,
            )
            if response.status < 300:
                return response
            with response:
                error_body = b"".join(islice(iter(response.read, b""), _MAX_ERROR_READS))
        except RequestError as error:
            raise self._failure("does not answer", error) from error
        try:
            text = str(json.loads(error_body)["error"])
        except (ValueError, KeyError, TypeError):
            text = error_body[:200].decode("utf-8", "replace")
        if response.status < 400:
            text = f"it redirects to {response.headers.get('location', 'another address')}; use that address instead"
        raise ServerError(response.status, printable(text, 1_000), response.retry_after)

    def _failure(self, problem: str, error: RequestError) -> RuntimeError:
        """Return the error to raise for a failed request: the server is unreachable, or its answer is unusable."""
        if isinstance(error, UnusableAnswerError):
            return ServerError(0, f"{self.url}: {error}")
        return ServerUnreachableError(f"{self.url} {problem}: {error}")
