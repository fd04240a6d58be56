"""A server that cannot be used costs a run one wait, and says so while it waits."""

import errno
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from data_pipeline.io.errors import SearchError, ServerUnavailableError
from data_pipeline.search.alignment_server import AlignmentServer, ServerOptions
from data_pipeline.search.mmseqs_server import ServerSearch
from tests.data_pipeline.search.mock_server import Handler, MockServer, archive, failing, mock_server, state
from tests.data_pipeline.search.test_mmseqs_server import Time, cut
from tests.support.alarm import time_limit

TARGETS = ["MKVLA", "ACDXY", "GHIKL"]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def server() -> Iterator[MockServer]:
    with mock_server() as running:
        yield running


class Run:
    """Searches of one run, with the lines that it shows and the time that it takes."""

    def __init__(self, url: str, **options: object) -> None:
        self.time, self.lines = Time(), list[str]()
        self.server = AlignmentServer(
            ServerOptions(url=url, **options),  # type: ignore[arg-type]
            report=self.lines.append,
            clock=self.time.clock,
            sleep=self.time.sleep,
            rng=np.random.default_rng(0),
        )
        self.search = ServerSearch(self.server)

    def fails(self, sequence: str = "MKVLA") -> str:
        """Search, and return why that failed."""
        with pytest.raises(SearchError) as error:
            self.search.search(sequence)
        return str(error.value)

    def is_given_up(self) -> bool:
        """Whether the next search fails at once, with the same sentence."""
        before, lines, pauses = self.server.contact.problem, len(self.lines), len(self.time.pauses)
        again = before is not None and self.fails("GHIKL") == before
        return again and (len(self.lines), len(self.time.pauses)) == (lines, pauses)


@contextmanager
def closed_port() -> Iterator[str]:
    """An address where nobody listens, as long as the context lasts."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unused.getsockname()[1]}"


def test_a_server_that_is_not_there_costs_a_run_one_short_wait() -> None:
    with closed_port() as url:
        run = Run(url, instead="pass --msa")
        problem = f"MMseqs2 server {url}: 3 attempts failed: the connection was refused; pass --msa"
        assert run.fails() == problem
        assert (len(run.time.pauses), run.time.now < 15) == (2, True)
        assert run.is_given_up()
        with pytest.raises(ServerUnavailableError, match=re.escape(problem)):
            list(run.search.search_many(TARGETS))
    assert [re.sub(r"\b\d+ s$", "N s", line) for line in run.lines] == [
        f"MMseqs2 server {url}: the connection was refused; trying again in N s"
    ] * 2


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), "its name cannot be resolved"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "no network leads to it"),
    ],
)
def test_without_a_network_one_sentence_comes_at_once(
    monkeypatch: pytest.MonkeyPatch, error: OSError, problem: str
) -> None:
    def failing(*_: object, **__: object) -> object:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", failing)
    run = Run("http://somewhere.example")
    assert run.fails() == (
        f"MMseqs2 server http://somewhere.example: it cannot be reached: {problem}; check the address and the network; "
        "pass your own alignments, or search a database on this machine"
    )
    assert (run.time.pauses, run.lines) == ([], [])
    assert run.is_given_up()


def test_a_port_that_answers_no_handshake_is_left_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        run = Run(f"https://127.0.0.1:{mute.getsockname()[1]}", connect_timeout=0.1, read_timeout=600)
        with time_limit(120):
            assert "3 attempts failed: it was silent for too long" in run.fails()
    assert run.is_given_up()


def test_a_silent_server_is_left_when_the_time_of_a_request_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        run = Run(f"http://127.0.0.1:{mute.getsockname()[1]}", read_timeout=0.1)
        run.time.tick = 70  # as if it had been silent for a minute each time
        assert "2 attempts failed: it was silent for too long" in run.fails()
    assert run.is_given_up()


def test_what_is_no_tls_is_no_library_text(server: MockServer) -> None:
    run = Run(server.url.replace("http:", "https:"))
    assert "it does not speak TLS (https) as it should; pass" in run.fails()
    assert run.is_given_up()


def test_a_wrong_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with closed_port() as url:
        monkeypatch.setenv("NO_PROXY", "")
        monkeypatch.setenv("http_proxy", url)
        assert "the proxy of the environment cannot be used" in Run("http://somewhere.example").fails()


def test_a_server_that_has_answered_is_given_more_time(server: MockServer) -> None:
    run = Run(server.url)
    run.search.search("MKVLA")
    server.answers["submit"] = [cut]
    assert "8 attempts failed: the connection was cut" in run.fails("ACDXY")
    assert run.time.now > 30
    assert run.is_given_up()


@pytest.mark.parametrize(
    ("kind", "busy"),
    [
        ("submit", failing(429)),
        ("submit", state("RATELIMIT")),
        ("state", state("RATELIMIT")),
        ("state", state("PENDING")),
    ],
    ids=["429", "RATELIMIT", "RATELIMIT of a search", "PENDING"],
)
def test_a_server_that_refuses_is_waited_for_once_in_a_run(
    server: MockServer, kind: str, busy: Callable[[Handler], None]
) -> None:
    server.answers[kind] = [busy]
    run = Run(server.url, max_wait=500)
    with pytest.raises(ServerUnavailableError, match=r"no answer within 500 s: (it|the search|too many requests)"):
        list(run.search.search_many(TARGETS))
    assert 400 < run.time.now <= 500
    assert run.is_given_up()
    assert len(run.lines) == (len(run.time.pauses) if kind == "submit" else 1)


@pytest.mark.parametrize("fault", [failing(503), state("MAINTENANCE"), failing(200, b"<html>log in</html>")])
def test_a_server_that_accepts_no_search_is_given_up(server: MockServer, fault: Callable[[Handler], None]) -> None:
    server.answers["submit"] = [fault]
    run = Run(server.url)
    assert "8 attempts failed: it" in run.fails()
    assert run.is_given_up()


def test_a_search_that_fails_by_itself_leaves_the_others(server: MockServer) -> None:
    good = server.answers["download"][0]
    faults: list[tuple[str, Callable[[Handler], None]]] = [
        ("submit", state("ERROR")),
        ("submit", failing(400)),
        ("state", state("ERROR")),
        ("state", state("UNKNOWN")),
        ("state", state("RUNNING")),
        ("download", failing(500)),
        ("download", lambda handler: handler.send(archive(server.results())[:-20])),
        ("download", lambda handler: handler.send(archive({}))),
    ]
    run = Run(server.url, max_wait=500)
    for kind, fault in faults:
        server.answers |= {"submit": [state("PENDING")], "state": [state("COMPLETE")], "download": [good]}
        server.answers[kind] = [fault]
        with pytest.raises(SearchError) as error:
            run.search.search("MKVLA")
        assert type(error.value) is SearchError, fault
        server.answers[kind] = [{"submit": state("PENDING"), "state": state("COMPLETE"), "download": good}[kind]]
        assert run.search.search("MKVLA").startswith(b">query\nMKVLA\n>U101")


def test_the_state_of_a_search_is_shown_when_it_changes(server: MockServer) -> None:
    server.answers["state"] = [*[state("PENDING")] * 5, *[state("RUNNING")] * 5, state("COMPLETE")]
    run = Run(server.url)
    run.search.search("MKVLA")
    assert [line.split(";")[0].rpartition(" ")[2] for line in run.lines] == ["PENDING", "RUNNING"]


def test_no_room_for_an_answer_is_not_taken_for_a_bad_connection(
    server: MockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def write(self, _: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("data_pipeline.search.alignment_server.tempfile.TemporaryFile", Full)
    run = Run(server.url)
    problem = run.fails()
    assert problem.endswith("temporary directory: No space left on device; set TMPDIR to a folder with free space")
    assert run.lines == []
