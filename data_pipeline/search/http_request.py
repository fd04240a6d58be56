"""Make an HTTP request of a server that is not trusted, within a total time and a number of bytes."""

import contextlib
import errno
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import IO, Any, Self
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

from data_pipeline.errors import (
    ConnectionFailedError,
    NoNetworkError,
    RequestTimeoutError,
    UnusableAnswerError,
)

_CHUNK = 2**16
_MAX_REDIRECTS = 5
_BYTES_PER_SECOND = 2**17  # each byte that arrives adds its share of a second to the time
_REDIRECTS = (301, 302, 303, 307, 308)
_CONNECTION_ERRORS = (requests.RequestException, urllib3.exceptions.HTTPError, OSError)
_NO_NETWORK = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL)


_PROBLEMS: tuple[tuple[type[BaseException], type[Exception], str], ...] = (
    (requests.exceptions.InvalidURL, UnusableAnswerError, "this is no address of a server"),
    (urllib3.exceptions.LocationValueError, UnusableAnswerError, "this is no address of a server"),
    (urllib3.exceptions.ProxyError, ConnectionFailedError, "the proxy that the environment names cannot be used"),
    (ssl.SSLCertVerificationError, UnusableAnswerError, "its certificate cannot be verified"),
    (ssl.SSLError, UnusableAnswerError, "it does not speak TLS (https) as it should"),
    (requests.exceptions.SSLError, UnusableAnswerError, "it does not speak TLS (https) as it should"),
    (socket.gaierror, NoNetworkError, "its name cannot be resolved"),
    (ConnectionRefusedError, ConnectionFailedError, "the connection was refused"),
    (TimeoutError, ConnectionFailedError, "it was silent for too long"),
    (urllib3.exceptions.NewConnectionError, ConnectionFailedError, "no connection could be made"),
    (urllib3.exceptions.TimeoutError, ConnectionFailedError, "it was silent for too long"),
    (ConnectionError, ConnectionFailedError, "the connection was cut"),
    (urllib3.exceptions.ProtocolError, ConnectionFailedError, "the connection was cut"),
)


@dataclass(frozen=True, kw_only=True)
class HttpAnswer:
    """Status line and headers of a server's complete answer."""

    status: int
    reason: str
    headers: requests.structures.CaseInsensitiveDict[str]


def request(
    method: str,
    url: str,
    body: IO[bytes],
    *,
    timeout: float,
    connect_timeout: float,
    read_timeout: float,
    max_bytes: int,
    data: dict[str, str] | None = None,
    headers: dict[str, str],
) -> HttpAnswer:
    """Write the body of a server's answer into a file and return the rest; only a GET follows redirects.

    However the answer drips in, the request ends after `timeout` seconds, to which each 128 KiB of the body add one. It
    ends after `read_timeout` seconds without a byte, and after `connect_timeout` while a connection is made, TLS
    included. Raise `RequestTimeoutError`, `UnusableAnswerError`, `ConnectionFailedError`, or the `OSError` of a file
    that cannot be written.
    """
    with _Deadline(timeout) as deadline:
        for _ in range(_MAX_REDIRECTS + 1):
            with _Session() as session, contextlib.ExitStack() as stack:
                with _connection_errors(deadline):
                    response = session.request(
                        method,
                        url,
                        data=data,
                        headers=headers,
                        timeout=(connect_timeout, read_timeout),
                        stream=True,
                        allow_redirects=False,
                    )
                stack.enter_context(response)
                location = response.headers.get("Location")
                if method == "GET" and response.status_code in _REDIRECTS and location is not None:
                    url = _redirected(url, location)
                    continue
                for chunk in _chunks(response, max_bytes, deadline):
                    body.write(chunk)
                body.seek(0)
                return HttpAnswer(status=response.status_code, reason=response.reason or "", headers=response.headers)
    raise UnusableAnswerError(f"it redirects more than {_MAX_REDIRECTS} times")


def _chunks(response: requests.Response, max_bytes: int, deadline: "_Deadline") -> Iterator[bytes]:
    size = 0
    while True:
        with _connection_errors(deadline):
            chunk = response.raw.read1(_CHUNK)  # as it arrived: nothing is unpacked
        deadline.check()
        if not chunk:
            return
        size += len(chunk)
        if size > max_bytes:
            raise UnusableAnswerError(f"the answer is larger than {max_bytes:,} bytes, the most that is read")
        yield chunk
        deadline.extend(len(chunk) / _BYTES_PER_SECOND)


@contextlib.contextmanager
def _connection_errors(deadline: "_Deadline") -> Iterator[None]:
    """Translate the errors of a connection, which fails in many ways if its time is over."""
    try:
        yield
    except _CONNECTION_ERRORS as error:
        deadline.check()
        causes = list(_causes(error))
        if any(isinstance(cause, OSError) and cause.errno in _NO_NETWORK for cause in causes):
            raise NoNetworkError("no network leads to it") from error
        for kind, raised, problem in _PROBLEMS:
            if any(isinstance(cause, kind) for cause in causes):
                raise raised(problem) from error
        raise ConnectionFailedError("the connection failed") from error
    except Exception:
        deadline.check()
        raise


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error of `requests` and those that it wraps."""
    yield error
    for each in {id(each): each for each in (error.__cause__, getattr(error, "reason", None), *error.args)}.values():
        if isinstance(each, BaseException):
            yield from _causes(each)


def _redirected(url: str, location: str) -> str:
    try:
        target = urljoin(url, location)
        parts = urlsplit(target)
    except ValueError:
        parts, target = None, ""
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise UnusableAnswerError("it redirects to something that is no http address")
    return target


class _Deadline:
    """Time limit that ends the connections opened within it, whatever they wait for."""

    def __init__(self, seconds: float) -> None:
        self._end, self._passed = time.monotonic() + seconds, False
        self._sockets: list[socket.socket] = []
        self._left, self._lock = threading.Event(), threading.Lock()

    def __enter__(self) -> Self:
        self._token = _DEADLINE.set(self)
        self._watcher = threading.Thread(target=self._watch, name="deadline of a request", daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        _DEADLINE.reset(self._token)
        self._left.set()
        self._watcher.join()
        for each in self._sockets:
            each.close()

    def add(self, connection: socket.socket) -> socket.socket:
        # A duplicate: TLS takes the first one's descriptor away.
        with self._lock:
            self._sockets.append(connection.dup())
        return connection

    def extend(self, seconds: float) -> None:
        self._end += seconds

    def check(self) -> None:
        """Raise `RequestTimeoutError` if the time is over."""
        if self._passed:
            raise RequestTimeoutError

    def _watch(self) -> None:
        while (left := self._end - time.monotonic()) > 0:
            if self._left.wait(left):
                return
        self._passed = True
        while not self._left.wait(0.1):  # connections may still be opened
            with self._lock:
                for each in self._sockets:
                    with contextlib.suppress(OSError):  # it may have ended by itself
                        each.shutdown(socket.SHUT_RDWR)


_DEADLINE: ContextVar[_Deadline] = ContextVar("deadline of this request")


class _Connection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _DEADLINE.get().add(super()._new_conn())


class _SecureConnection(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _DEADLINE.get().add(super()._new_conn())


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


class _Adapter(HTTPAdapter):
    """Transport whose connections the deadline ends."""

    def init_poolmanager(self, *arguments: Any, **settings: Any) -> None:
        super().init_poolmanager(*arguments, **settings)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}

    def proxy_manager_for(self, *arguments: Any, **settings: Any) -> Any:
        manager = super().proxy_manager_for(*arguments, **settings)
        manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
        return manager


class _Session(requests.Session):
    """Session that leaves redirects, and so their bodies, to the caller; `requests` would read them whole."""

    def __init__(self) -> None:
        super().__init__()
        self.mount("http://", _Adapter())
        self.mount("https://", _Adapter())

    def get_redirect_target(self, response: requests.Response) -> None:
        return None
