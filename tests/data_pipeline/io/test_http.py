"""No server can exceed the time and size limits of a request, or redirect it where it must not go."""

import contextlib
import itertools
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from data_pipeline.io import http
from data_pipeline.io.errors import ConnectionFailedError, RequestTimeoutError, UnusableAnswerError
from data_pipeline.io.http import send
from tests.data_pipeline.search.families import needed_program
from tests.support.alarm import time_limit


class EvilServer:
    """Answers each connection with the pieces of one script, and counts the bytes that it sends."""

    def __init__(self, script: Callable[[], Iterable[bytes]], pause: float) -> None:
        self.script, self.pause, self.sent = script, pause, 0
        self.requests: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                self.requests.append(connection.recv(65536))
                for piece in self.script():
                    self.sent += len(piece)  # before sending: the test may read it as soon as the answer arrives
                    connection.sendall(piece)
                    time.sleep(self.pause)
            except OSError:
                pass


@contextmanager
def evil(script: Callable[[], Iterable[bytes]], pause: float = 0.0) -> Iterator[EvilServer]:
    server = EvilServer(script, pause)
    try:
        yield server
    finally:
        server.listener.close()


def ask(
    url: str, method: str = "GET", timeout: float = 60.0, max_bytes: int = 10_000_000, connect_timeout: float = 60.0
) -> tuple[int, bytes]:
    """The status and the body of an answer."""
    limits = {"timeout": timeout, "max_bytes": max_bytes, "connect_timeout": connect_timeout}
    with send(method, url, redirects=True, **limits) as answer:
        return answer.status, answer.read_all()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def drip(head: bytes, byte: bytes = b"x") -> Callable[[], Iterable[bytes]]:
    return lambda: itertools.chain([head], itertools.repeat(byte))


OK, CHUNKED = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(drip(b""), id="status line"),
        pytest.param(drip(OK + b"A: "), id="header"),
        pytest.param(drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), id="100 Continue"),
        pytest.param(drip(OK + b"Content-Length: 1000000\r\n\r\n"), id="body"),
        pytest.param(drip(OK + b"\r\n"), id="body without a length"),
        pytest.param(drip(CHUNKED, b"0"), id="chunk size"),
        pytest.param(drip(CHUNKED + b"3\r\nabc\r\n0\r\n", b"A: b\r\n"), id="trailers"),
        pytest.param(lambda: (b"" for _ in [time.sleep(600)]), id="silence"),
    ],
)
def test_a_drip_ends_with_the_time_of_the_request(script: Callable[[], Iterable[bytes]]) -> None:
    with evil(script, pause=0.02) as server, time_limit(120), pytest.raises(RequestTimeoutError):
        ask(server.url, timeout=0.5)


def test_a_redirect_is_followed_and_its_body_left_alone() -> None:
    for method, status in (("GET", 200), ("POST", 302)):
        with evil(lambda: [OK + b"Content-Length: 4\r\n\r\ndone"]) as target:
            head = f"HTTP/1.1 302 Found\r\nLocation: {target.url}/there\r\n"
            body = itertools.repeat(b"x" * 65536)
            length = b"Content-Length: 4\r\n\r\nover" if method == "POST" else b"\r\n"
            script = itertools.chain([head.encode() + length], body if method == "GET" else [])
            with evil(lambda script=script: script) as server:  # type: ignore[misc]
                assert ask(server.url, method, timeout=20) == (status, b"done" if method == "GET" else b"over")
            assert (target.sent > 0) == (method == "GET")
            assert server.sent < 2**24  # what buffers between the two took


@pytest.mark.parametrize("place", ["http://[::1", "file:///etc/passwd", "ftp://127.0.0.1/a", "mailto:a"])
def test_a_redirect_to_something_else_is_refused(place: str) -> None:
    head = f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n"
    with evil(lambda: [head.encode()]) as server, pytest.raises(UnusableAnswerError, match="not an http address"):
        ask(server.url)


@pytest.mark.parametrize("host", ["a..example", "a" * 64 + ".example"])
def test_a_host_that_cannot_be_a_name_is_refused(host: str) -> None:
    with pytest.raises(UnusableAnswerError, match="this is not the address of a server"):
        ask(f"http://{host}/")
    head = f"HTTP/1.1 302 Found\r\nLocation: http://{host}/\r\nContent-Length: 0\r\n\r\n"
    with evil(lambda: [head.encode()]) as server, pytest.raises(UnusableAnswerError, match="this is not the address"):
        ask(server.url)


def test_redirects_in_a_circle_are_refused() -> None:
    head = b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n"
    with evil(lambda: [head]) as server, pytest.raises(UnusableAnswerError, match="more than 5 times"):
        ask(server.url, timeout=20)


def test_what_is_too_large_is_left_unread() -> None:
    endless = drip(OK + b"\r\n", b"x" * 65536)
    with (
        evil(endless) as server,
        pytest.raises(UnusableAnswerError, match="larger than the maximum of 1,000,000 bytes"),
    ):
        ask(server.url, timeout=20, max_bytes=1_000_000)
    assert server.sent < 2**24


def test_a_body_stays_packed_and_may_take_longer_than_the_time() -> None:
    pieces = [OK + b"Content-Encoding: gzip\r\nContent-Length: 1048576\r\n\r\n", *([b"z" * 131072] * 8)]
    with evil(lambda: pieces, pause=0.4) as server:
        assert ask(server.url, timeout=60) == (200, b"z" * 1048576)


class Names:
    """Host names with public and private addresses; every connection really goes to a port of this machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: dict[str, list[list[str]]] = {}
        self.connected: list[str] = []
        self._connect = socket.create_connection
        monkeypatch.setattr(socket, "getaddrinfo", self.look_up)
        monkeypatch.setattr(socket, "create_connection", self.connect)

    def look_up(self, host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        answers = self.addresses[host]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in found]

    def connect(self, address: tuple[str, int], timeout: float) -> socket.socket:
        self.connected.append(address[0])
        connection = socket.socket()
        connection.settimeout(timeout)
        connection.connect(("127.0.0.1", address[1]))
        return connection


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


def redirect(url: str) -> list[bytes]:
    return [f"HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n".encode()]


DONE = [OK + b"Content-Length: 4\r\n\r\ndone"]


@pytest.mark.parametrize(
    ("server", "target", "is_followed"),
    [
        ("8.8.8.8", "9.9.9.9", True),
        ("8.8.8.8", "127.0.0.1", False),
        ("8.8.8.8", "10.0.0.1", False),
        ("8.8.8.8", "100.64.0.1", False),
        ("8.8.8.8", "169.254.169.254", False),
        ("8.8.8.8", "0.0.0.0", False),
        ("8.8.8.8", "::1", False),
        ("8.8.8.8", "::ffff:127.0.0.1", False),
        ("8.8.8.8", "64:ff9b::a00:1", False),
        ("8.8.8.8", "fe80::1%eth0", False),
        ("8.8.8.8", "fd00::1", False),
        ("8.8.8.8", "2606:4700::1111", True),
        ("10.0.0.1", "192.168.0.1", True),
        ("10.0.0.1", "8.8.8.8", True),
        ("10.0.0.1", "127.0.0.1", False),
        ("10.0.0.1", "169.254.169.254", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "10.0.0.1", True),
    ],
)
def test_redirects_to_more_private_addresses_are_refused(
    server: str, target: str, is_followed: bool, names: Names
) -> None:
    with evil(lambda: DONE) as last, evil(lambda: redirect(last.url.replace("127.0.0.1", "target.example"))) as first:
        names.addresses = {"server.example": [[server]], "target.example": [[target]]}
        url = first.url.replace("127.0.0.1", "server.example")
        if is_followed:
            assert ask(url) == (200, b"done")
            return
        with pytest.raises(UnusableAnswerError, match="into a private network or to this machine"):
            ask(url)
        assert names.connected == [server]
        assert last.sent == 0


def test_connections_use_the_address_that_was_checked(names: Names) -> None:
    """The first name has two addresses; the second lookup of the name gives another address."""
    with evil(lambda: DONE) as last, evil(lambda: redirect(last.url.replace("127.0.0.1", "target.example"))) as first:
        names.addresses = {
            "server.example": [["8.8.8.8"]],
            "target.example": [["127.0.0.1", "9.9.9.9"], ["127.0.0.1"]],
        }
        assert ask(first.url.replace("127.0.0.1", "server.example")) == (200, b"done")
        assert names.connected == ["8.8.8.8", "9.9.9.9"]
        with pytest.raises(UnusableAnswerError, match="into a private network or to this machine"):
            ask(first.url.replace("127.0.0.1", "server.example"))


def test_only_harmless_headers_follow_a_redirect() -> None:
    sent = {"X-Lease": "secret", "Cookie": "secret", "Range": "bytes=0-"}
    with evil(lambda: DONE) as last, evil(lambda: redirect(last.url)) as first:
        with send("GET", first.url, timeout=20, max_bytes=9, headers=sent, redirects=True) as answer:
            assert answer.status == 200
        assert first.requests[0].count(b"secret") == 2
        assert b"secret" not in last.requests[0]
        assert b"bytes=0-" in last.requests[0]


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ssl.SSLContext]:
    """TLS context of a server on 127.0.0.1, whose certificate is in REQUESTS_CA_BUNDLE."""
    program = needed_program("openssl")
    names = ["-keyout", tmp_path / "key", "-out", tmp_path / "cert", "-addext", "subjectAltName=IP:127.0.0.1"]
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    subprocess.run([program, *words, *map(str, names)], check=True, capture_output=True)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "cert"))
    http._tls.cache_clear()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    yield context
    http._tls.cache_clear()


class SecureServer(EvilServer):
    def __init__(self, script: Callable[[], Iterable[bytes]], context: ssl.SSLContext, pause: float = 0.0) -> None:
        self.context = context
        super().__init__(script, pause)
        self.url = self.url.replace("http:", "https:")

    def answer(self, connection: socket.socket) -> None:
        try:
            super().answer(self.context.wrap_socket(connection, server_side=True))
        except OSError:
            connection.close()


def test_https_works_times_out_and_is_never_downgraded(certificate: ssl.SSLContext) -> None:
    with contextlib.closing(SecureServer(lambda: DONE, certificate).listener) as done:
        assert ask(f"https://127.0.0.1:{done.getsockname()[1]}") == (200, b"done")
    server = SecureServer(drip(OK + b"A: "), certificate, pause=0.02)
    with contextlib.closing(server.listener), pytest.raises(RequestTimeoutError):
        ask(server.url, timeout=0.5)
    with evil(lambda: DONE) as plain:
        server = SecureServer(lambda: redirect(plain.url), certificate)
        with contextlib.closing(server.listener), pytest.raises(UnusableAnswerError, match="from https to http"):
            ask(server.url)
        assert plain.sent == 0


def test_a_slow_handshake_times_out() -> None:
    with (
        evil(drip(b"\x16\x03\x03\x20\x00", b"\x02"), pause=0.02) as server,
        time_limit(120),
        pytest.raises(ConnectionFailedError, match="silent for too long"),
    ):
        ask(server.url.replace("http:", "https:"), timeout=600, connect_timeout=0.3)


def test_a_proxy_is_used_except_for_this_machine_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with evil(lambda: [OK + b"Content-Length: 5\r\n\r\nproxy"]) as proxy, evil(lambda: DONE) as server:
        monkeypatch.setenv("http_proxy", proxy.url.replace("://", "://user:word@"))
        monkeypatch.setenv("NO_PROXY", "inside.example,127.5.0.0/16")
        monkeypatch.setenv("no_proxy", "inside.example,127.5.0.0/16")
        assert ask("http://somewhere.example/") == (200, b"proxy")
        assert proxy.requests[0].startswith(b"GET http://somewhere.example/ HTTP/1.1")
        assert b"proxy-authorization: Basic dXNlcjp3b3Jk" in proxy.requests[0]
        assert ask(server.url) == (200, b"done")
        monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
        with pytest.raises(ConnectionFailedError, match="the proxy of the environment cannot be used"):
            ask("http://somewhere.example/")
        assert not http._is_direct("somewhere.example", "inside.example,10.0.0.0/8")
        assert http._is_direct("10.1.2.3", "inside.example,10.0.0.0/8")
        assert not http._is_direct("11.1.2.3", "inside.example,10.0.0.0/8")
        assert http._is_direct("inside.example", "")


def test_an_answer_before_the_body_is_sent_is_read() -> None:
    with evil(lambda: [b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno"]) as server:
        body = bytes(8_000_000)
        with send("PUT", server.url, timeout=20, max_bytes=9, body=body) as answer:
            assert (answer.status, answer.read_all()) == (401, b"no")


def test_an_answer_that_is_cut_is_an_error() -> None:
    pieces = [OK + b"Content-Length: 10\r\n\r\nabc"]
    with evil(lambda: pieces) as server, pytest.raises(ConnectionFailedError, match="the connection was cut"):
        ask(server.url)


def test_pauses_are_random_below_a_bound_that_doubles() -> None:
    bounds = [http.pause(retry, first=2, longest=30, uniform=lambda low, high: low + high) for retry in range(6)]
    assert bounds == [2, 4, 8, 16, 30, 30]
    assert len({http.pause(9, first=2, longest=30) for _ in range(5)}) == 5
