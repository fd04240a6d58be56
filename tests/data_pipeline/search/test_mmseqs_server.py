import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.search.alignment_server import PUBLIC_SERVER, AlignmentServer, ServerOptions
from data_pipeline.search.mmseqs_server import ServerPairing, ServerSearch
from data_pipeline.search.server_archive import UNIREF_FILE
from data_pipeline.search.tool import SequenceSearch
from tests.data_pipeline.search.mock_server import Answer, Handler, MockServer, archive, failing, mock_server, state

TARGETS = ["MKVLA", "ACDXY", "GHIKL"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with mock_server() as running:
        yield running


class Time:
    """A clock that only sleeping moves on."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 0.0, tick
        self.pauses: list[float] = []

    def clock(self) -> float:
        self.now += self.tick
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def ask(
    server: MockServer | str, sequences: Sequence[str] = TARGETS, time: Time | None = None, **options: object
) -> dict[str, bytes]:
    time = time or Time()
    url = server if isinstance(server, str) else server.url
    own = ServerOptions(url=url, **options)  # type: ignore[arg-type]
    known = AlignmentServer(own, clock=time.clock, sleep=time.sleep, rng=np.random.default_rng(0))
    return dict(zip(sequences, ServerSearch(known).search_many(sequences), strict=True))


def expected(number: int, sequence: str) -> bytes:
    rest = sequence[1:]
    return f">query\n{sequence}\n>U{number}\t99\n-{rest}\n>E{number}\t99\n-{rest}\n".encode()


def test_each_sequence_gets_its_own_rows_below_itself(server: MockServer) -> None:
    results = ask(server)
    assert results == {target: expected(101 + index, target) for index, target in enumerate(TARGETS)}
    assert parse_a3m(results["MKVLA"], "MKVLA").names == ("query", "U101", "E101")
    assert server.queries == [{"q": ">101\nMKVLA\n>102\nACDXY\n>103\nGHIKL\n", "mode": "env"}]
    assert server.agents == {"helixfold"}
    assert server.requests == ["submit", "state", "download"]


def test_equal_sequences_are_sent_once_and_batches_are_bounded(server: MockServer) -> None:
    results = ask(server, [*TARGETS, "MKVLA", "ACDXY"], batch=2)
    assert list(results) == TARGETS
    assert [query["q"] for query in server.queries] == [">101\nMKVLA\n>102\nACDXY\n", ">101\nGHIKL\n"]
    assert results["GHIKL"] == expected(101, "GHIKL")


def test_without_environmental_sequences_only_uniref_is_read(server: MockServer) -> None:
    server.answers["download"] = [
        lambda handler: handler.send(archive({f"./{UNIREF_FILE}": server.results()[UNIREF_FILE]}))
    ]
    assert ask(server, ["MKVLA"], mode="all") == {"MKVLA": b">query\nMKVLA\n>U101\t99\n-KVLA\n"}
    assert server.queries[0]["mode"] == "all"


def test_the_tool_answers_for_one_and_for_many(server: MockServer) -> None:
    search = ServerSearch(AlignmentServer(ServerOptions(url=f"{server.url}/")))
    assert isinstance(search, SequenceSearch)
    assert list(search.search_many(["MKVLA", "GHIKL", "MKVLA"]))[2] == expected(101, "MKVLA")
    assert search.search("GHIKL") == expected(101, "GHIKL")
    assert search.identity() == f"mmseqs2 server {server.url} mode env"


def test_no_password_is_in_results_and_messages(server: MockServer) -> None:
    host = server.url.removeprefix("http://")
    own = AlignmentServer(ServerOptions(url=f"http://me:pass@word@{host}/"))
    assert own.shown_address == server.url
    assert [each(own).identity().split()[2] for each in (ServerSearch, ServerPairing)] == [server.url] * 2
    assert ask(f"http://me:password@{host}", ["MKVLA"]) == {"MKVLA": expected(101, "MKVLA")}
    lines: list[str] = []
    with mock_server() as refusing:
        refusing.answers["submit"] = [failing(503), failing(403)]
        url = f"http://me:password@{refusing.url.removeprefix('http://')}"
        known = AlignmentServer(ServerOptions(url=url), report=lines.append, sleep=lambda _: None)
        with pytest.raises(SearchError) as error:
            ServerSearch(known).search("MKVLA")
    assert refusing.url in str(error.value)
    assert lines
    assert not any("password" in text for text in (*lines, str(error.value)))


def test_letters_that_the_server_replaces_are_still_the_target(server: MockServer) -> None:
    def replaced(handler: Handler) -> None:
        changed = {name: content.replace(b"ABZJUOXY", b"ADELXXXY") for name, content in server.results().items()}
        handler.send(archive(changed))

    server.answers["download"] = [replaced]
    assert ask(server, ["ABZJUOXY"])["ABZJUOXY"].startswith(b">query\nABZJUOXY\n>U101")


def cut(handler: Handler) -> None:
    """Half of an answer, then a reset."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"half")
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(handler.connection.detach())


def closed(handler: Handler) -> None:
    """Half of an answer, then a quiet end."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"half")
    handler.close_connection = True


def silent(handler: Handler) -> None:
    time.sleep(1.5)
    handler.close_connection = True


@pytest.mark.parametrize("kind", ["submit", "state", "download"])
@pytest.mark.parametrize(
    "fault",
    [cut, closed, failing(429), failing(500), failing(503, Retry_After="7"), failing(200, b""), failing(408)],
    ids=["reset", "closed", "429", "500", "503", "empty", "408"],
)
def test_faults_that_pass_are_waited_out(server: MockServer, kind: str, fault: object) -> None:
    server.answers[kind] = [fault, fault, *server.answers[kind]]  # type: ignore[list-item]
    time = Time()
    assert ask(server, time=time) == {target: expected(101 + index, target) for index, target in enumerate(TARGETS)}
    assert len(time.pauses) == 2


@pytest.mark.parametrize("kind", ["submit", "state"])
@pytest.mark.parametrize(
    "fault",
    [
        state("MAINTENANCE"),
        state("RATELIMIT"),
        state("UNKNOWN"),
        state("SOMETHING"),
        failing(200, b"<html>busy</html>"),
        failing(200, b"[" * 60_000),
        failing(200, b"[1]"),
        failing(200, b'{"status": 5}'),
    ],
    ids=["maintenance", "ratelimit", "unknown", "new", "html", "deep", "list", "number"],
)
def test_states_that_pass_are_waited_out(server: MockServer, kind: str, fault: object) -> None:
    server.answers[kind] = [fault, *server.answers[kind]]  # type: ignore[list-item]
    assert len(ask(server)) == 3


@pytest.mark.parametrize("busy", [failing(429), state("RATELIMIT")], ids=["429", "RATELIMIT"])
def test_a_busy_server_is_asked_for_as_long_as_there_is_time(server: MockServer, busy: Answer) -> None:
    server.answers["submit"] = [*[busy] * 20, *server.answers["submit"]]
    assert len(ask(server)) == 3


def test_an_archive_that_arrives_damaged_is_fetched_again(server: MockServer) -> None:
    def damaged(change: int) -> object:
        def answer(handler: Handler) -> None:
            content = bytearray(archive(server.results()))
            handler.send(bytes(content[:-20]) if change == 0 else bytes(content[:-5] + b"\xff" + content[-4:]))

        return answer

    server.answers["download"] = [damaged(0), damaged(1), *server.answers["download"]]  # type: ignore[list-item]
    assert ask(server)["MKVLA"] == expected(101, "MKVLA")
    server.answers["download"] = [damaged(0)]  # type: ignore[list-item]
    with pytest.raises(SearchError, match="8 attempts failed: the archive of results is damaged"):
        ask(server)


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (state("MAINTENANCE"), "8 attempts failed: its state is MAINTENANCE"),
        (failing(500, b"<b>out of\nmemory</b>"), "8 attempts failed: it answered 500 .*'<b>out of memory</b>'"),
        (failing(200, b"\x1b[31m no json"), r"8 attempts failed: its answer is not JSON: '\\x1b\[31m no json'"),
        (state("PENDING", id="../../etc"), "8 attempts failed: it returned no ticket"),
    ],
)
def test_faults_that_stay_are_named(server: MockServer, fault: object, problem: str) -> None:
    server.answers["submit"] = [fault]  # type: ignore[list-item]
    with pytest.raises(SearchError, match=problem):
        ask(server)


@pytest.mark.parametrize(
    ("kind", "fault", "problem"),
    [
        ("submit", failing(400, b"bad sequence"), "it answered 400 Bad Request: 'bad sequence'; is this the address"),
        ("submit", failing(404), "it answered 404"),
        ("submit", failing(301, Location="http://127.0.0.1:1/ticket/msa"), "it answered 301"),
        ("submit", state("ERROR"), "could not search"),
        ("state", state("ERROR"), "could not search"),
        ("state", failing(200, b"x" * 70_000), "the answer is larger than the maximum of 65,536 bytes"),
    ],
)
def test_what_cannot_succeed_fails_at_once(server: MockServer, kind: str, fault: object, problem: str) -> None:
    server.answers[kind] = [fault]  # type: ignore[list-item]
    time = Time()
    with pytest.raises(SearchError, match=problem):
        ask(server, time=time)
    assert time.pauses == []


@pytest.mark.parametrize("status", ["RUNNING", "PENDING", "RATELIMIT"])
def test_the_whole_wait_is_bounded(server: MockServer, status: str) -> None:
    server.answers["state"] = [state(status)]
    time = Time()
    with pytest.raises(SearchError, match=f"no answer within 500 s: .*{status}"):
        ask(server, time=time, max_wait=500)
    assert 400 < time.now <= 500


def test_pauses_grow_at_random_up_to_a_minute(server: MockServer) -> None:
    server.answers["state"] = [*[state("RUNNING")] * 200, state("COMPLETE")]
    time = Time()
    ask(server, time=time)
    assert len(time.pauses) == 200
    assert all(1 <= pause <= 60 for pause in time.pauses)
    assert all(pause <= 4 * 2**index for index, pause in enumerate(time.pauses))
    late = np.array(time.pauses[10:])
    assert late.std() > 10  # over the whole range, not around a middle
    assert late.min() < 10
    assert late.max() > 50


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry_After": "90"},
        {"Retry_After": "Wed, 21 Oct 2015 07:30:00 GMT", "Date": "Wed, 21 Oct 2015 07:28:30 GMT"},
    ],
)
def test_the_server_may_say_how_long_to_wait(server: MockServer, headers: dict[str, str]) -> None:
    def busy(handler: Handler) -> None:
        handler.send_response_only(429)
        for name, value in {"Content-Length": "0", **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()

    server.answers["submit"] = [busy, *server.answers["submit"]]
    time = Time()
    ask(server, time=time)
    assert time.pauses == [90]
    server.answers["submit"] = [busy]
    time = Time()
    with pytest.raises(SearchError, match="no answer within 60 s: it answered 429"):
        ask(server, time=time, max_wait=60)
    assert time.pauses == []


def test_a_slow_drip_ends_with_the_time_of_a_request(server: MockServer) -> None:
    def drip(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        for _ in range(1000):
            handler.wfile.write(b"x")
            time.sleep(0.005)

    server.answers["download"] = [drip]
    with pytest.raises(SearchError, match=r"no complete answer within 0\.5 s"):
        ask(server, timeout=0.5)


def test_silence_is_a_failed_connection(server: MockServer) -> None:
    server.answers["state"] = [silent, *server.answers["state"]]
    assert len(ask(server, read_timeout=1)) == 3


def changed(server: MockServer, old: bytes, new: bytes) -> None:
    server.answers["download"] = [
        lambda handler: handler.send(
            archive({name: content.replace(old, new) for name, content in server.results().items()})
        )
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b">102\nACDXY", b">102\nACEXY", r"is for another sequence than requested \('>102'\)"),
        (b">102\nACDXY", b">102\nACDXYA", "is for another sequence"),
        (b">102\n", b">104\n", "is for '>104', which was not requested"),
        (b">102\n", b">101\n", "is for '>101', which was not requested, or occurs too often"),
        (b">102\n", b"102\n", "is for '102', which was not requested"),
        (b">102\n", b">10\xb2\n", "which was not requested"),
        (b">103\nGHIKL\n>U103\t99\n-HIKL\n\0", b"", r"uniref\.a3m of the server's answer lacks 1 of 3 sequences"),
    ],
)
def test_an_answer_to_something_else_is_refused(server: MockServer, old: bytes, new: bytes, problem: str) -> None:
    changed(server, old, new)
    with pytest.raises(SearchError, match=problem):
        ask(server)


def test_a_missing_file_is_refused(server: MockServer) -> None:
    server.answers["download"] = [lambda handler: handler.send(archive({UNIREF_FILE: server.results()[UNIREF_FILE]}))]
    with pytest.raises(SearchError, match=r"the server's answer lacks bfd\.mgnify30\.metaeuk30\.smag30\.a3m"):
        ask(server)


def test_nothing_is_sent_to_an_address_that_is_none() -> None:
    for url in ("", "api.colabfold.com", "ftp://host", "http://", "http://[", "http://host:x", "http://host/?q=1"):
        with pytest.raises(InputError, match=f"an MMseqs2 server must be a URL like {PUBLIC_SERVER}, got"):
            ServerOptions(url=url)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "pair"},
        {"pair_strategy": "all"},
        {"batch": 0},
        {"batch": 101},
        {"max_wait": 0.0},
        {"read_timeout": float("inf")},
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        ServerOptions(url=PUBLIC_SERVER, **wrong)  # type: ignore[arg-type]


def test_a_sequence_that_would_change_the_query_is_refused(server: MockServer) -> None:
    for sequence in ("", "mkv", "MK>1\nV", "MK V", "MÄ"):
        with pytest.raises(ValueError, match="a sequence must be upper-case letters"):
            ask(server, [sequence])
    assert server.requests == []
    assert ask(server, []) == {}
