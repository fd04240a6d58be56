"""Leases, sessions, limits of size and number, the log and the client let pass only what has a right to."""

import contextlib
import http.client
import json
import logging
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from data_pipeline.io.errors import InputError
from helixfold.apps.serve.client import Client, ServerError, ServerUnreachableError
from helixfold.apps.serve.http_client import HttpClient
from helixfold.apps.serve.settings import ServeSettings
from helixfold.apps.serve.storage import Storage
from helixfold.apps.serve.web import api_jobs, identity
from helixfold.apps.serve.web.identity import Sessions
from helixfold.apps.serve.web.response_headers import LOGGER
from tests.apps.serve.databases import audit_lines
from tests.apps.serve.running import Running, running

API = "/api/v1"
JOB = {"sequence": "MKTAYIAKQR"}


@pytest.mark.integration
def test_a_worker_whose_lease_has_ended_reads_and_writes_nothing(server: Running) -> None:
    rows = [{"name": "rows.a3m", "content": ">query\nMKTAYIAKQR\n"}]
    job = server.json("POST", f"{API}/jobs", {**JOB, "alignments": rows})["id"]
    claimed = server.claim()
    assert server.as_worker("GET", "/inputs/alignment_0.a3m", claimed)
    for lease in ("", "x", claimed["lease"][:-1], server.claim() or claimed["lease"].lower()):
        others = {**claimed, "lease": lease}
        for method, path, body in (
            ("GET", "/inputs/alignment_0.a3m", None),
            ("PUT", "/results/ranked_0.pdb", b"x"),
            ("POST", "/heartbeat", None),
            ("POST", "/release", None),
            ("POST", "/finish", None),
            ("POST", "/fail", None),
        ):
            content = {"files": 0, "error": "x"} if method == "POST" else None
            with pytest.raises(ServerError) as refused:
                server.as_worker(method, path, others, body=body, content=content)
            assert refused.value.status == 409, path
    assert not (server.service.storage.job(job) / "1").exists()
    server.json("POST", f"{API}/jobs/{job}/cancel")
    with pytest.raises(ServerError):
        server.as_worker("PUT", "/results/ranked_0.pdb", claimed, body=b"x")


@pytest.mark.parametrize("path", ["", "..", "../x", "a/../x", "/etc/passwd", ".hidden", "a//b", "-x", "a\nb"])
def test_no_file_of_a_job_lies_elsewhere(path: str, tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    for found in (lambda: storage.input_file("0" * 32, path), lambda: storage.attempt_file("0" * 32, 1, path)):
        with pytest.raises(InputError, match=r"must be like|path of a result"):
            found()
    with pytest.raises(ValueError, match="not a job id"):
        storage.job(path)


def test_a_session_ends_by_itself_and_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(b"s" * 32)
    cookie = sessions.begin("abc")
    assert sessions.token_id(cookie) == "abc"
    assert Sessions(b"t" * 32).token_id(cookie) is None
    assert sessions.token_id(f"other{cookie[3:]}") is None
    assert sessions.token_id("") is None
    assert not sessions.is_form_token("", sessions.form_token(""))
    assert not sessions.is_form_token(sessions.begin("abc"), sessions.form_token(cookie))
    later = time.time() + identity.SESSION_SECONDS + 1
    monkeypatch.setattr(identity.time, "time", lambda: later)
    assert sessions.token_id(cookie) is None


def test_an_upload_that_does_not_tell_its_size_is_limited_too(tmp_path: Path) -> None:
    with running(tmp_path, max_upload=2**16) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        body = b'{"sequence": "MKTAYIAKQR"}'.ljust(2**17)
        parts = (body[start : start + 2**12] for start in range(0, len(body), 2**12))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may end before all is sent
            connection.request("POST", f"{API}/jobs", parts, {"Content-Type": "application/json"}, encode_chunked=True)
        try:
            assert connection.getresponse().status == 413
        except (ConnectionResetError, BrokenPipeError):
            pass
        finally:
            connection.close()
        assert server.json("GET", f"{API}/jobs")["jobs"] == []


def test_a_client_cannot_choose_the_address_that_a_proxy_tells(tmp_path: Path) -> None:
    with running(tmp_path, behind_proxy=True, max_requests=3) as server:
        token = server.service.tokens.create("anna")
        headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": "10.0.0.1, 10.0.0.2"}
        server.json("POST", f"{API}/jobs", JOB, headers=headers)
        assert audit_lines(server.service.database)[0]["address"] == "10.0.0.2"
        # Who shows no token is limited by address, and the first entries do not make another one of it.
        statuses = [
            server.asked("GET", f"{API}/jobs", headers={"X-Forwarded-For": f"10.1.1.{number}, 10.0.0.3"})[0]
            for number in range(5)
        ]
        assert statuses == [401, 401, 401, 429, 429]


def test_watched_jobs_are_limited_in_all(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_jobs, "_MAX_STREAMS", 0)
    job = server.json("POST", f"{API}/jobs", JOB)["id"]
    assert server.asked("GET", f"{API}/jobs/{job}/events")[0] == 503


def test_the_log_has_neither_tokens_nor_links(guarded: Running) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    before = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    LOGGER.addHandler(handler)
    try:
        token = guarded.service.tokens.create("dora")
        headers = {"Authorization": f"Bearer {token}"}
        job = guarded.json("POST", f"{API}/jobs", JOB, headers=headers)["id"]
        link = guarded.json("POST", f"{API}/jobs/{job}/share", headers=headers)["path"]
        assert guarded.asked("GET", link)[0] == 200
        guarded.asked("GET", f"/nowhere/{link}")
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(before)
    assert '"/shared/{secret}"' in "".join(lines)
    assert token not in "".join(lines)
    assert link.rpartition("/")[2] not in "".join(lines)


class Hostile(BaseHTTPRequestHandler):
    """A server that names files of a result elsewhere."""

    path_of_file = ""

    def do_GET(self) -> None:
        body = json.dumps([{"path": self.path_of_file, "bytes": 1}]) if self.path.endswith("/files") else "x"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hostile() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Hostile)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/x", ".hidden", "a//b", "a\\b", "a\nb"])
def test_a_server_writes_nothing_outside_the_output(path: str, hostile: str, tmp_path: Path) -> None:
    Hostile.path_of_file = path
    with Client(hostile) as client, pytest.raises(InputError, match="path of a result"):
        client.fetch("0" * 32, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_settings_outside_their_bounds_are_refused(tmp_path: Path) -> None:
    for wrong in ({"port": -1}, {"port": 65_536}, {"max_upload": 1}, {"webhook_host": ("example.org",)}):
        with pytest.raises(InputError):
            ServeSettings(data=tmp_path, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("body", [b"", b'{"id": "0'])
def test_an_answer_that_ends_before_its_length_is_no_answer(body: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + body)

        thread = Thread(target=answer)
        thread.start()
        client = HttpClient(f"http://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(ServerUnreachableError, match="broke off its answer"):
            client.request("GET", "/v1/health/ready")
        thread.join()
