"""A server cannot hold a request longer than its time, nor send more than its limit, whatever it does."""

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from data_pipeline.errors import RequestTimeoutError, UnusableAnswerError
from data_pipeline.io.http import HttpSession


class EvilServer:
    """Answers each connection with the pieces of one script, and counts their bytes until it can send no more."""

    def __init__(self, script: Callable[[], Iterable[bytes]], pause: float) -> None:
        self.script, self.pause, self.sent = script, pause, 0
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
                connection.recv(65536)
                for piece in self.script():
                    self.sent += len(piece)  # before: who has the answer may look at once
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


def ask(url: str, method: str = "GET", timeout: float = 1.0, max_bytes: int = 10_000_000) -> tuple[int, bytes]:
    """The status and the body of an answer."""
    with (
        HttpSession(connect_timeout=0.3) as session,
        session.send(method, url, timeout=timeout, max_bytes=max_bytes, redirects=True) as answer,
    ):
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
        pytest.param(lambda: (b"" for _ in [time.sleep(60)]), id="silence"),
    ],
)
def test_a_drip_ends_with_the_time_of_the_request(script: Callable[[], Iterable[bytes]]) -> None:
    with evil(script, pause=0.02) as server:
        start = time.monotonic()
        with pytest.raises(RequestTimeoutError):
            ask(server.url, timeout=0.5)
        assert time.monotonic() - start < 5.5


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


def test_redirects_in_a_circle_are_refused() -> None:
    head = b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n"
    with evil(lambda: [head]) as server, pytest.raises(UnusableAnswerError, match="more than 5 times"):
        ask(server.url, timeout=20)


def test_what_is_too_large_is_left_unread() -> None:
    endless = drip(OK + b"\r\n", b"x" * 65536)
    with evil(endless) as server, pytest.raises(UnusableAnswerError, match="larger than 1,000,000 bytes"):
        ask(server.url, timeout=20, max_bytes=1_000_000)
    assert server.sent < 2**24


def test_a_body_stays_packed_and_may_take_longer_than_the_time() -> None:
    pieces = [OK + b"Content-Encoding: gzip\r\nContent-Length: 1048576\r\n\r\n", *([b"z" * 131072] * 8)]
    with evil(lambda: pieces, pause=0.4) as server:
        assert ask(server.url, timeout=2) == (200, b"z" * 1048576)
