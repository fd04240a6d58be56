"""A server can neither hold a client of the service nor send it more than it wants."""

import io
from collections.abc import Callable, Iterable

import pytest

from data_pipeline.io.errors import InputError
from helixfold.apps.serve.client import Client
from helixfold.apps.serve.http_client import HttpClient, ServerError, ServerUnreachableError
from tests.data_pipeline.io.test_http import OK, evil


def dripping() -> Iterable[bytes]:
    yield OK
    yield from [b"A: b\r\n"] * 60
    yield b"Content-Length: 2\r\n\r\n{}"


def test_an_answer_that_drips_in_is_given_up() -> None:
    with (
        evil(dripping, pause=0.05) as server,
        pytest.raises(ServerUnreachableError, match=r"does not answer: no complete answer within 0\.5 s"),
    ):
        HttpClient(server.url, timeout=0.5).request("GET", "/api")


def test_a_download_has_a_limit() -> None:
    file = io.BytesIO()
    with (
        evil(lambda: [OK + b"Content-Length: 1000000\r\n\r\n", *[bytes(1000)] * 1000]) as server,
        pytest.raises(InputError, match="larger than the maximum of 5,000 bytes"),
    ):
        HttpClient(server.url).download("/file", file, max_bytes=5000)
    assert len(file.getvalue()) <= 5000


@pytest.mark.parametrize(("seconds", "requests"), [("1", 6), ("86400", 1)])
def test_a_server_may_ask_to_wait_a_minute_at_most(seconds: str, requests: int) -> None:
    pauses: list[float] = []
    busy = f"HTTP/1.1 429 No\r\nRetry-After: {seconds}\r\nContent-Length: 0\r\n\r\n".encode()
    script: Callable[[], Iterable[bytes]] = lambda: [busy]  # noqa: E731
    with evil(script) as server, Client(server.url, sleep=pauses.append) as client:
        with pytest.raises(ServerError):
            client.jobs()
        assert len(server.requests) == requests
    assert len(pauses) == requests - 1
    assert all(1 <= pause <= 60 for pause in pauses)
