"""Send HTTP requests to untrusted servers. No other module opens connections to servers.

Proxies and additional certificates come from the environment (`https_proxy`, `NO_PROXY`, `REQUESTS_CA_BUNDLE` or
`CURL_CA_BUNDLE`); `~/.netrc` is never read. Credentials are not sent after a redirect to another origin. Redirects from
https to http, and from a public server into a private network or to this machine, are errors.
"""

import base64
import contextlib
import errno
import functools
import io
import ipaddress
import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import IO, Any
from urllib.parse import unquote, urljoin
from urllib.request import getproxies, proxy_bypass

import certifi
import urllib3
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util import Url, parse_url

from data_pipeline.io.errors import (
    ConnectionFailedError,
    NoNetworkError,
    RequestTimeoutError,
    UnusableAnswerError,
)

_CHUNK_BYTES = 2**16
_MAX_REDIRECTS = 5
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
# Other headers could be credentials.
_HEADERS_ON_REDIRECT = ("accept", "accept-encoding", "connection", "range", "user-agent")
_CONNECTION_ERRORS = (urllib3.exceptions.HTTPError, OSError)
_NO_NETWORK_ERRNOS = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052
_PROXY_PROBLEM = "the proxy of the environment cannot be used"
_ERROR_OF_CAUSE: tuple[tuple[type[BaseException], type[Exception], str], ...] = (
    (urllib3.exceptions.ProxySchemeUnknown, ConnectionFailedError, _PROXY_PROBLEM),
    (urllib3.exceptions.LocationValueError, UnusableAnswerError, "this is not the address of a server"),
    (urllib3.exceptions.ProxyError, ConnectionFailedError, _PROXY_PROBLEM),
    (ssl.SSLCertVerificationError, UnusableAnswerError, "its certificate cannot be verified"),
    (ssl.SSLError, UnusableAnswerError, "it does not speak TLS (https) as it should"),
    (FileNotFoundError, UnusableAnswerError, "the file of REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE does not exist"),
    (socket.gaierror, NoNetworkError, "its name cannot be resolved"),
    (ConnectionRefusedError, ConnectionFailedError, "the connection was refused"),
    (TimeoutError, ConnectionFailedError, "it was silent for too long"),
    (urllib3.exceptions.TimeoutError, ConnectionFailedError, "it was silent for too long"),
    (ConnectionError, ConnectionFailedError, "the connection was cut"),
    (urllib3.exceptions.ProtocolError, ConnectionFailedError, "the connection was cut"),
)


def send(
    method: str,
    url: str,
    *,
    timeout: float,
    max_bytes: int,
    headers: Mapping[str, str] | None = None,
    body: bytes | IO[bytes] = b"",
    redirects: bool = False,
    connect_timeout: float = 10.0,
    read_timeout: float = 60.0,
    bytes_per_second: float = 2**17,
) -> "Response":
    """Send a request and return the response with any status; reading more than `max_bytes` of its body is an error.

    The connection must be established within `connect_timeout` seconds, and each byte must follow within `read_timeout`
    seconds. The request may take `timeout` seconds in total, plus one second per `bytes_per_second` bytes sent or
    received. A user name and password in the URL are sent as basic authentication. With `redirects`, a GET follows
    redirects. If `body` is a file, `headers` must have a Content-Length. Sending the request and reading the response
    raise `RequestTimeoutError`, `UnusableAnswerError` or `ConnectionFailedError`.
    """
    exchange = _Exchange(timeout, connect_timeout, read_timeout, bytes_per_second)
    sent_headers = {"user-agent": "helixfold", "accept-encoding": "identity", "connection": "close"}
    sent_headers |= {name.lower(): value for name, value in (headers or {}).items()}
    if isinstance(body, bytes) and (body or method != "GET"):
        sent_headers["content-length"] = str(len(body))
    with exchange.translated_errors():
        target = parse_url(url)
    if target.auth is not None:
        sent_headers["authorization"] = f"Basic {base64.b64encode(unquote(target.auth).encode()).decode()}"
    for _ in range(_MAX_REDIRECTS + 1):
        with exchange.translated_errors():
            raw = exchange.connections_to(target).urlopen(
                method,
                target._replace(auth=None, fragment=None).url,
                headers=sent_headers,
                body=io.BytesIO(body) if isinstance(body, bytes) and body else body or None,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
            )
        response = Response(raw, exchange, max_bytes)
        location = response.headers.get("location")
        if not redirects or method != "GET" or response.status not in _REDIRECT_STATUSES or location is None:
            return response
        response.close()
        previous, target, exchange.is_redirected = target, _redirected(target, location), True
        if (target.scheme, target.host, target.port) != (previous.scheme, previous.host, previous.port):
            sent_headers = {name: value for name, value in sent_headers.items() if name in _HEADERS_ON_REDIRECT}
    raise UnusableAnswerError(f"it redirects more than {_MAX_REDIRECTS} times")


class _Exchange:
    """One request with its redirects: the allowed addresses, and the time limits."""

    def __init__(self, timeout: float, connect_timeout: float, read_timeout: float, rate: float) -> None:
        self._timeout, self._end, self._rate = timeout, time.monotonic() + timeout, rate
        self._connect_timeout, self._read_timeout = connect_timeout, read_timeout
        self._server_depth = 0  # of the address in the URL, not of a redirect
        self.is_redirected = False

    def connections_to(self, target: Url) -> urllib3.PoolManager:
        """Return the connections to a server, direct or through the proxy of the environment."""
        proxies, host = getproxies(), (target.host or "").strip("[]")
        proxy = proxies.get(target.scheme or "", proxies.get("all"))
        if proxy is None or _is_direct(host, proxies.get("no", "")):
            manager = urllib3.PoolManager(ssl_context=_tls())
        else:
            with contextlib.suppress(OSError):  # a name that only the proxy can resolve
                self._admitted(_addresses(host, target.port or 0))
            place = parse_url(proxy if "://" in proxy else f"http://{proxy}")
            login = urllib3.util.make_headers(proxy_basic_auth=unquote(place.auth)) if place.auth else None
            manager = urllib3.ProxyManager(
                place._replace(auth=None).url, proxy_headers=login, ssl_context=_tls(), proxy_ssl_context=_tls()
            )
        manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
        return manager

    def connect(self, host: str, port: int, *, is_proxy: bool) -> socket.socket:
        """Connect to the first address of a host that accepts, after checking the addresses of redirects."""
        addresses = _addresses(host, port)
        for address in addresses if is_proxy else self._admitted(addresses):
            timeout = min(self._connect_timeout, self.seconds_left())
            try:
                opened = socket.create_connection((address, port), timeout)
            except OSError as error:
                problem = error
                continue
            connection = _Timed(fileno=opened.detach())
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(timeout)  # also limits the whole TLS handshake
            return connection
        raise problem

    def _admitted(self, addresses: list[str]) -> list[str]:
        """Return the allowed addresses; after a redirect, they may not be more private than the server's address."""
        if not self.is_redirected:
            self._server_depth = min(map(_depth, addresses))
            return addresses
        admitted = [address for address in addresses if _depth(address) <= self._server_depth]
        if not admitted:
            raise UnusableAnswerError("it redirects into a private network or to this machine, which is not followed")
        return admitted

    def seconds_left(self) -> float:
        """Return the max seconds to wait for the next byte; raise `RequestTimeoutError` if the time is over."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise RequestTimeoutError(f"no complete answer within {self._timeout:g} s")
        return min(left, self._read_timeout)

    def count(self, size: int) -> None:
        """Extend the time limit for `size` bytes, but to no more than the full time from now."""
        self._end = min(self._end + size / self._rate, time.monotonic() + self._timeout)

    @contextlib.contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Translate connection errors in the context, and apply the time limits of this request to its sockets."""
        token = _EXCHANGE.set(self)
        try:
            yield
        except _CONNECTION_ERRORS as error:
            self.seconds_left()
            causes = list(_causes(error))
            if any(isinstance(cause, OSError) and cause.errno in _NO_NETWORK_ERRNOS for cause in causes):
                raise NoNetworkError("no network leads to it") from error
            for kind, raised, problem in _ERROR_OF_CAUSE:
                if any(isinstance(cause, kind) for cause in causes):
                    raise raised(problem) from error
            raise ConnectionFailedError("the connection failed") from error
        finally:
            _EXCHANGE.reset(token)


class Response(contextlib.AbstractContextManager["Response"]):
    """Status, reason, headers and body of a response; the body is streamed, and never decompressed.

    Use it as a context, which closes the connection. Reading raises the errors of `send`.
    """

    def __init__(self, raw: urllib3.BaseHTTPResponse, exchange: _Exchange, max_bytes: int) -> None:
        self._raw, self._exchange, self._left, self._max_bytes = raw, exchange, max_bytes, max_bytes
        self.status, self.reason, self.headers = raw.status, raw.reason or "", raw.headers

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and discard the unread rest of the body."""
        self._raw.close()

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait before a retry, from the Retry-After header; None if it is missing or invalid.

        The header has a number of seconds, or a time, which is compared with the Date header.
        """
        value = self.headers.get("retry-after", "")
        if value.isascii() and value.isdigit():
            return float(value[:9])
        try:
            until, now = (parsedate_to_datetime(text) for text in (value, self.headers.get("date", "")))
            return max(0.0, (until - now).total_seconds())
        except (ValueError, TypeError, OverflowError):
            return None

    def read(self, count: int = _CHUNK_BYTES) -> bytes:
        """Return between one and `count` bytes of the body, or b"" at the end."""
        with self._exchange.translated_errors():
            self._exchange.seconds_left()
            piece = self._raw.read1(count)
        self._left -= len(piece)
        if self._left < 0:
            self.close()
            raise UnusableAnswerError(f"the answer is larger than the maximum of {self._max_bytes:,} bytes")
        return piece

    def read_all(self) -> bytes:
        """Return the rest of the body."""
        return b"".join(iter(self.read, b""))

    def copy_to(self, file: IO[bytes]) -> None:
        """Write the rest of the body to a file."""
        for piece in iter(self.read, b""):
            file.write(piece)


def pause(
    retry: int, *, first: float, longest: float, uniform: Callable[[float, float], float] = random.uniform
) -> float:
    """Return the seconds to wait before a retry: random, with a maximum that starts at `first` and doubles each time.

    `retry` counts from 0, and the maximum is at most `longest`. The randomness (full jitter) prevents clients that
    failed together from retrying together.
    """
    return float(uniform(0.0, min(longest, first * 2 ** min(retry, 30))))


def _redirected(target: Url, location: str) -> Url:
    """Return the address of a redirection without its user and password; reject a change from https to http."""
    try:
        place = parse_url(urljoin(target.url, location))
    except ValueError:
        place = Url()
    if place.scheme not in ("http", "https") or not place.host:
        raise UnusableAnswerError("it redirects to something that is not an http address")
    if target.scheme == "https" and place.scheme == "http":
        raise UnusableAnswerError("it redirects from https to http, which is not followed")
    return place._replace(auth=None)


def _is_direct(host: str, no_proxy: str) -> bool:
    """Return whether a host needs no proxy: it is this machine, or NO_PROXY lists the host or its network."""
    if host == "localhost" or proxy_bypass(host):
        return True
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        networks = (ipaddress.ip_network(each.strip(), strict=False) for each in no_proxy.split(",") if "/" in each)
        return address.is_loopback or any(address in network for network in networks)
    return False


def _addresses(host: str, port: int) -> list[str]:
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except UnicodeError as error:  # a label of the name is empty or too long
        raise urllib3.exceptions.LocationParseError(host) from error


def _depth(address: str) -> int:
    """Return how private an address is: 0 for the internet, 1 for a private network, 2 for this machine or link."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        embedded = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else None
        ip = ip.ipv4_mapped or ip.sixtofour or embedded or ip
    if ip.is_loopback or ip.is_link_local or ip.is_unspecified:
        return 2
    return 0 if ip.is_global and not ip.is_multicast else 1


@functools.cache
def _tls() -> ssl.SSLContext:
    """Return TLS settings that trust this machine's certificates and the bundle of the environment or of certifi."""
    context = ssl.create_default_context()
    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or certifi.where()
    context.load_verify_locations(**{"capath" if os.path.isdir(bundle) else "cafile": bundle})
    context.sslsocket_class = _SecureSocket
    return context


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error of `urllib3` and the errors that it wraps."""
    yield error
    for each in {id(each): each for each in (error.__cause__, getattr(error, "reason", None), *error.args)}.values():
        if isinstance(each, BaseException):
            yield from _causes(each)


_EXCHANGE: ContextVar[_Exchange] = ContextVar("current exchange of this thread")


class _Timed(socket.socket):
    """Socket whose calls time out at the time limit of the request."""

    def recv_into(self, *arguments: Any) -> int:
        self.settimeout(_EXCHANGE.get().seconds_left())
        size = super().recv_into(*arguments)
        _EXCHANGE.get().count(size)
        return size

    def sendall(self, content: Any, *arguments: Any) -> None:
        self.settimeout(_EXCHANGE.get().seconds_left())
        super().sendall(content, *arguments)
        _EXCHANGE.get().count(len(content))


class _SecureSocket(_Timed, ssl.SSLSocket):
    pass


class _Connection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _EXCHANGE.get().connect(self._dns_host, self.port, is_proxy=self.proxy is not None)


class _SecureConnection(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _EXCHANGE.get().connect(self._dns_host, self.port, is_proxy=self.proxy is not None)


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection
