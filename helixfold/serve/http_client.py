"""HTTP requests of the service's own programs to its server: one connection, which is made again when it breaks off."""

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Final, Self
from urllib.parse import urlsplit

from data_pipeline.errors import InputError, printable

_TIMEOUT: Final = 60.0
_MOST_JSON: Final = 2**24
_CHUNK: Final = 2**20
# What a connection that the other side has closed meanwhile raises, in whatever moment it is noticed.
_BROKEN = (http.client.HTTPException, OSError)


class ServerError(RuntimeError):
    """Error for an answer of the server that refuses a request, with its status and its sentence."""

    def __init__(self, status: int, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status, self.retry_after = status, retry_after


class ServerUnreachableError(RuntimeError):
    """Error for a server that does not answer; the same request may be made again later."""


@dataclass(frozen=True)
class Answer:
    """The status, the headers and the body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the value of a JSON body; None if there is none. Raise `ServerUnreachableError` for anything else."""
        try:
            return json.loads(self.body) if self.body else None
        except (ValueError, RecursionError) as error:
            raise ServerUnreachableError("the server sent an answer that is not JSON") from error


class HttpClient:
    """Requests to one server, with a token. It is for one thread at a time."""

    def __init__(self, url: str, token: str | None = None, *, timeout: float = _TIMEOUT) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname, parts.port
        except ValueError as error:
            raise InputError(f"a server is named like http://127.0.0.1:8000, got '{printable(url)}'") from error
        if parts.scheme not in ("http", "https") or not self._host or parts.query or parts.username is not None:
            raise InputError(f"a server is named like http://127.0.0.1:8000, got '{printable(url)}'")
        self.url = url.rstrip("/")
        self._is_tls, self._prefix, self._timeout = parts.scheme == "https", parts.path.rstrip("/"), timeout
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        content: Any = None,
        body: bytes | IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Return the answer to a request with a JSON `content`, or with a `body`.

        Raise `ServerError` for a refusal, and `ServerUnreachableError` if no whole answer comes.
        """
        response = self._response(method, path, content=content, body=body, headers=headers or {}, timeout=timeout)
        expected = response.length or 0
        try:
            answered = response.read(_MOST_JSON)
        except _BROKEN as error:
            self.close()
            raise ServerUnreachableError(f"{self.url} broke off its answer: {error}") from error
        if len(answered) < min(expected, _MOST_JSON):  # http.client says nothing of it
            self.close()
            raise ServerUnreachableError(f"{self.url} broke off its answer")
        return self._checked(Answer(response.status, dict(response.getheaders()), answered))

    def download(self, path: str, file: IO[bytes], *, max_bytes: int, headers: Mapping[str, str] | None = None) -> int:
        """Write the body of an answer into a file, and return its size; raise as `request` does.

        Raise `InputError` for an answer of more than `max_bytes`.
        """
        response = self._response("GET", path, content=None, body=None, headers=headers or {}, timeout=None)
        try:
            if response.status >= 300:
                self._checked(Answer(response.status, dict(response.getheaders()), response.read(_MOST_JSON)))
            expected, size = response.length, 0
            while size <= max_bytes and (chunk := response.read(min(_CHUNK, max_bytes + 1 - size))):
                size += len(chunk)
                if size <= max_bytes:
                    file.write(chunk)
        except _BROKEN as error:
            self.close()
            raise ServerUnreachableError(f"{self.url} broke off its answer: {error}") from error
        if size > max_bytes:
            self.close()
            raise InputError(f"{self.url} sends more than the {max_bytes:,} bytes that are accepted for {path}")
        if expected is not None and size < expected:
            raise ServerUnreachableError(f"{self.url} broke off its answer")
        return size

    def close(self) -> None:
        """Close the connection; the next request makes another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _response(
        self,
        method: str,
        path: str,
        *,
        content: Any,
        body: bytes | IO[bytes] | None,
        headers: Mapping[str, str],
        timeout: float | None,
    ) -> http.client.HTTPResponse:
        sent = dict(self._headers) | dict(headers)
        if content is not None:
            body, sent["Content-Type"] = json.dumps(content).encode(), "application/json"
        is_fresh = self._connection is None
        try:
            return self._sent(method, path, body, sent, timeout)
        except _BROKEN as error:
            self.close()
            # The server may have closed an idle connection; a new one tells whether it is there.
            can_repeat = not is_fresh and not hasattr(body, "read") and not isinstance(error, TimeoutError)
            if not can_repeat or method not in ("GET", "PUT", "DELETE"):
                raise self._unreachable(error) from error
        try:
            return self._sent(method, path, body, sent, timeout)
        except _BROKEN as error:
            self.close()
            raise self._unreachable(error) from error

    def _sent(
        self,
        method: str,
        path: str,
        body: bytes | IO[bytes] | None,
        headers: Mapping[str, str],
        timeout: float | None,
    ) -> http.client.HTTPResponse:
        if self._connection is None:
            assert self._host is not None
            self._connection = (
                http.client.HTTPSConnection(self._host, self._port, context=ssl.create_default_context())
                if self._is_tls
                else http.client.HTTPConnection(self._host, self._port)
            )
        self._connection.timeout = self._timeout if timeout is None else timeout
        if self._connection.sock is not None:
            self._connection.sock.settimeout(self._connection.timeout)
        self._connection.request(method, self._prefix + path, body=body, headers=dict(headers))
        return self._connection.getresponse()

    def _unreachable(self, error: Exception) -> ServerUnreachableError:
        return ServerUnreachableError(f"{self.url} does not answer: {str(error) or type(error).__name__}")

    def _checked(self, answer: Answer) -> Answer:
        if answer.status < 300:
            return answer
        try:
            text = str(answer.json()["error"])
        except (ServerUnreachableError, KeyError, TypeError):
            text = answer.body[:200].decode("utf-8", "replace")
        waits = answer.headers.get("retry-after", answer.headers.get("Retry-After", ""))
        raise ServerError(answer.status, printable(text, 1_000), float(waits) if waits.isdecimal() else None)
