"""A server that means harm gets no file, no terminal and no token of the workers and clients that speak to it."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.io.errors import InputError
from helixfold.apps.serve import client as client_module
from helixfold.apps.serve.alignment_request import AlignmentRequest
from helixfold.apps.serve.client import Client
from helixfold.apps.serve.http_client import Answer, HttpClient, ServerError, ServerUnreachableError
from helixfold.apps.serve.job_options import job_options
from helixfold.apps.serve.worker import worker as worker_module
from helixfold.apps.serve.worker.process import Outcome
from helixfold.apps.serve.worker.worker import Worker
from helixfold.cli.main import main
from tests.apps.serve.running import until

JOB = "0" * 32
API = "/api/v1"
WORKER = f"{API}/worker"
REQUEST = {
    "name": "protein",
    "sequence": "MKTAYIAKQR",
    "chain_ids": [],
    "options": job_options(),
    "alignments": [],
    "templates": [],
}
CLAIM = {"id": JOB, "kind": "prediction", "lease": "lease", "lease_seconds": 60, "attempt": 1, "request": REQUEST}
SHOWN = {"id": JOB, "name": "protein", "state": "done", "place": None, "progress": {}, "error": None, "summary": {}}


@dataclass
class Fake:
    """A server that answers each path with the next of its answers, the last one forever, and keeps the requests."""

    answers: Mapping[str, list[Any]]
    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, path: str) -> bytes:
        waiting = self.answers.get(path, [None])
        content = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(content, bytes):
            return content
        return b"" if content is None else json.dumps(content).encode()

    def sent(self, ending: str) -> list[Any]:
        """The JSON bodies of the requests whose paths end like this."""
        return [json.loads(body or b"null") for _, path, body in self.requests if path.endswith(ending)]


@contextmanager
def answering(answers: Mapping[str, list[Any]]) -> Iterator[Fake]:
    fake = Fake(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.partition("?")[0]
            fake.requests.append((self.command, path, sent))
            fake.tokens.append(self.headers.get("Authorization"))
            body = fake.answer(path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Predicting:
    """In place of the process that predicts: keeps what it is asked to do, and fails."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []

    def do(self, kind: str, content: Mapping[str, Any], directory: Path, should_continue: object) -> Outcome:
        if kind == "offers":
            return Outcome(result={"device": "none", "models": ["tiny"], "alignments": True, "forecasts": {}})
        self.asked.append(content)
        return Outcome(error="it was asked to fail")

    def stop(self) -> None:
        pass


@contextmanager
def working(url: str, directory: Path) -> Iterator[tuple[Predicting, list[str]]]:
    """A worker of the server, with what it is asked to do and what it prints."""
    process, printed = Predicting(), list[str]()
    worker = Worker(HttpClient(url, "hf_token"), process, name="w", directory=directory, print_line=printed.append)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield process, printed
    finally:
        worker.stop.set()
        thread.join(20)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(worker_module, "_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(client_module, "_MAX_ATTEMPTS", 1)


@pytest.mark.parametrize("kind", ["alignments", "templates"])
@pytest.mark.parametrize(
    "name",
    ["/planted", "../planted", "a/../../planted", "../../planted", "target.fasta", "alignment_0.a3m/../x", "", ".x", 5],
)
def test_a_worker_writes_no_file_that_a_server_names_elsewhere(kind: str, name: Any, tmp_path: Path) -> None:
    work = tmp_path / "outside" / "work"
    work.mkdir(parents=True)
    named = f"{tmp_path}{name}" if name == "/planted" else name
    claim = {**CLAIM, "request": {**REQUEST, kind: [named]}}
    with answering({f"{WORKER}/claim": [claim, None]}) as fake, working(fake.url, work) as (process, printed):
        until(lambda: fake.sent("/fail"))
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
        assert process.asked == []
        (failed,) = fake.sent("/fail")
        assert "the name of an uploaded file must be like alignment_0.a3m" in failed["error"]
        assert not failed["try_again"]
        assert any("the name of an uploaded file must be like" in line for line in printed)


@pytest.mark.parametrize("count", [1, 2])
def test_a_worker_takes_no_more_bytes_than_a_job_may_have(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "MAX_INPUT_BYTES", 1_000, raising=False)
    names = [f"alignment_{number}.a3m" for number in range(count)]
    answers: dict[str, list[Any]] = {f"{WORKER}/jobs/{JOB}/inputs/{name}": [b"x" * (1_200 // count)] for name in names}
    claim = {**CLAIM, "request": {**REQUEST, "alignments": names}}
    with answering({**answers, f"{WORKER}/claim": [claim, None]}) as fake, working(fake.url, tmp_path) as (process, _):
        until(lambda: fake.sent("/fail"))
        assert process.asked == []
        assert (
            f"{WORKER}/jobs/{JOB}/inputs/{names[-1]} is larger than the maximum of " in fake.sent("/fail")[0]["error"]
        )


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def test_a_worker_goes_on_after_whatever_a_server_sends_as_a_job(tmp_path: Path) -> None:
    wrong: list[Any] = [
        5,
        [],
        {},
        b"{",
        b"[" * 100_000,
        {**CLAIM, "id": "../../x"},
        {**CLAIM, "lease": "a\r\nX: b"},
        {**CLAIM, "lease_seconds": float("nan")},
        {**CLAIM, "lease_seconds": "x"},
        {**CLAIM, "kind": "offers"},
        {**CLAIM, "request": 5},
    ]
    failing = [
        {**CLAIM, "request": {}},
        {**CLAIM, "request": {**REQUEST, "alignments": 5}},
        {**CLAIM, "request": {**REQUEST, "alignments": ["alignment_0.a3m"] * 21}},
        {**CLAIM, "request": {**REQUEST, "options": {"recycles": 10**9}}},
        {**CLAIM, "request": {**REQUEST, "options": {"predictions": "x"}}},
        {**CLAIM, "request": {**REQUEST, "options": {"model": nested(400)}}},
        {**CLAIM, "request": {**REQUEST, "chain_ids": [5]}},
        {**CLAIM, "kind": "alignment"},
        {**CLAIM, "request": {**REQUEST, "sequence": "M" * (2**20 + 1)}},
    ]
    later = {**CLAIM, "request": {**REQUEST, "of a later version": nested(400)}}
    claims = [*wrong, *failing, later, None]
    with answering({f"{WORKER}/claim": claims}) as fake, working(fake.url, tmp_path) as (process, printed):
        until(lambda: process.asked)
        until(lambda: len(fake.sent("/fail")) > len(failing))
        assert process.asked == [REQUEST]
        assert sum("something other than a job" in line for line in printed) == len(wrong) - 2


def test_a_worker_reads_no_file_that_a_server_names_as_a_template() -> None:
    for names in (["../../etc/1abc_A"], ["/etc/1abc_A"], ["1abc_A\n"], []):
        content = {"kind": "template", "mode": "", "names": names, "sequences": []}
        with pytest.raises(InputError, match="hits such as 1abc_A"):
            AlignmentRequest.from_dict(content)
    for names, sequences in ((["a\n>b"], ["MK"]), (["a"], ["MK\n>b\nMK"]), (["a"], [])):
        with pytest.raises(InputError):
            AlignmentRequest.from_dict({"kind": "msa", "mode": "env", "names": names, "sequences": sequences})


def test_no_control_character_of_a_server_reaches_the_screen_of_a_worker(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        is_over = threading.Event()

        def answer() -> None:
            while not is_over.is_set():
                try:
                    connection, _ = listening.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.recv(10_000)
                    connection.sendall(b"\x1b]0;owned\x07\x1b[2J\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with working(url, tmp_path) as (_, printed):
            until(lambda: printed)
        is_over.set()
        thread.join()
    assert "retrying" in printed[0]
    assert "".join(printed).isprintable()


@pytest.mark.parametrize(
    "answer",
    [
        {**SHOWN, "id": "\x1b]0;owned\x07"},
        {**SHOWN, "state": "\x1b[2J"},
        {**SHOWN, "progress": {"stages": [5]}},
        {**SHOWN, "name": 5},
        {name: value for name, value in SHOWN.items() if name != "error"},
        {name: value for name, value in SHOWN.items() if name != "summary"},
        {"error": "\x1b[2J"},
        b"\x1b[2J",
        5,
    ],
)
def test_no_control_character_of_a_server_reaches_the_screen_of_a_user(
    answer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = {"jobs": [answer] if not isinstance(answer, bytes) else [], "next": None}
    answers = {f"{API}/jobs": [answer, lists], f"{API}/jobs/{JOB}": [answer]}
    with answering(answers) as fake:
        server = ["--server", fake.url]
        codes = [
            main(["submit", "MKTAYIAKQR", "--wait", *server]),
            main(["status", *server]),
            main(["status", JOB, *server]),
            main(["fetch", JOB, "--output", str(tmp_path / "out"), *server]),
        ]
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert "Traceback" not in printed.err
    assert codes[0] == codes[2] == codes[3] == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ([{"path": "a", "bytes": 3}], "larger than the maximum of 3 bytes"),
        ([{"path": "a", "bytes": 2_000}, {"path": "b", "bytes": 3_000}], "4,000 are allowed; raise --max-disk"),
        ([{"path": f"{number}", "bytes": 0} for number in range(2_001)], "2,001 files"),
        ([{"path": "a/b/c/d/e/f", "bytes": 4}], "at most four folders"),
        ([{"path": "../a", "bytes": 4}], "path of a result"),
        ([{"path": 5, "bytes": 4}], "does not answer like helixfold serve"),
        ([{"bytes": 4}], "does not answer like helixfold serve"),
        ([{"path": "a", "bytes": -1}], "does not answer like helixfold serve"),
        ([{"path": "a", "bytes": "4"}], "does not answer like helixfold serve"),
        (5, "does not answer like helixfold serve"),
    ],
)
def test_results_that_are_too_large_or_wrongly_described_are_not_fetched(
    files: Any, problem: str, tmp_path: Path
) -> None:
    answers = {f"{API}/jobs/{JOB}/files": [files], f"{API}/jobs/{JOB}/files/a": [b"four"]}
    with (
        answering(answers) as fake,
        Client(fake.url) as client,
        pytest.raises((InputError, ServerUnreachableError), match=problem),
    ):
        client.fetch(JOB, tmp_path / "out", max_bytes=4_000)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_redirect_is_not_taken_for_a_file(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Length: 4\r\n\r\nmove")

        thread = threading.Thread(target=answer)
        thread.start()
        client = HttpClient(f"http://127.0.0.1:{listening.getsockname()[1]}")
        with (
            (tmp_path / "file").open("wb") as file,
            pytest.raises(ServerError, match="it redirects to http://x/"),
        ):
            client.download("/x", file, max_bytes=100)
        thread.join()
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("command", ["submit", "status", "fetch", "serve worker"])
def test_a_token_travels_unencrypted_only_on_this_machine_or_where_the_user_says_so(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("hf_secret")
    monkeypatch.setattr(Worker, "_offers", lambda _: {"alignments": False, "forecasts": {}})
    answers: dict[str, list[Any]] = {f"{API}/jobs": [b"stop"], f"{API}/jobs/{JOB}": [b"stop"]}
    with answering(answers) as fake:
        # An address that is not a loopback one, although it leads to this machine.
        url = f"http://0.0.0.0:{fake.port}"
        words = {
            "submit": ["submit", "MKTAYIAKQR", "--server", url],
            "status": ["status", JOB, "--server", url],
            "fetch": ["fetch", JOB, "--server", url],
            "serve worker": ["serve", "worker", url, "--device", "nowhere"],
        }[command]
        words += ["--token-file", str(token)]
        assert main(words) == 2
        assert "use https, or pass --allow-http" in capsys.readouterr().err
        assert fake.requests == []
        if command == "serve worker":
            # A wrong answer to the first message ends the worker.
            monkeypatch.setattr(Answer, "json", refused)
        assert main([*words, "--allow-http"]) in (1, 2)
        assert fake.tokens == ["Bearer hf_secret"]


def refused(*_: object) -> None:
    raise ServerError(401, "a worker token is required")
