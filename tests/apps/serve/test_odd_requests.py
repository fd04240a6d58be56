"""Requests that no browser or client sends, and files that are damaged or vanish, give no error of the service."""

import json
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from helixfold.apps.serve.queue.jobs import QueueOptions
from helixfold.apps.serve.web import api_nim, protocol, result_files
from tests.apps.serve.databases import audit_lines
from tests.apps.serve.running import WORKER, Running, running, until
from tests.apps.serve.test_overload import bearer, start_request, status_of

API = "/api/v1"
NIM = "/protein-structure/alphafold2"
JOB = {"sequence": "MKTAYIAKQR"}
HTML = {"Accept": "text/html"}


@pytest.fixture
def token(guarded: Running) -> str:
    return guarded.service.tokens.create("anna")


@pytest.mark.parametrize("origin", ["http://[", "http://]", "http://[::1", "//", "\xff"])
def test_origin_that_is_not_one_is_refused(guarded: Running, origin: str) -> None:
    assert guarded.asked("POST", f"{API}/jobs", JOB, headers={"Origin": origin})[0] == 403


@pytest.mark.integration
def test_request_with_two_lengths_is_refused_and_its_connection_closed(guarded: Running, token: str) -> None:
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=120) as connection:
        connection.sendall(
            f"POST {API}/jobs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nContent-Length: 4\r\n"
            f"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /login HTTP/1.1\r\nHost: a\r\n\r\n".encode()
        )
        answer = b"".join(iter(lambda: connection.recv(2**16), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_client_of_a_proxy_that_adds_a_header_of_its_own_cannot_choose_its_address(tmp_path: Path) -> None:
    with running(tmp_path, behind_proxy=True) as server:
        token = server.service.tokens.create("anna")
        with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
            connection.sendall(
                f"POST {API}/jobs HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 25\r\n"
                f"Authorization: Bearer {token}\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-For: 10.0.0.2\r\n\r\n"
                '{"sequence":"MKTAYIAKQR"}'.encode()
            )
            assert status_of(connection) == 201
        assert audit_lines(server.service.database)[0]["address"] == "10.0.0.2"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        ("10.0.0.1:4711", "10.0.0.1"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("unknown:1", "unknown:1"),
        ("", "127.0.0.1"),
    ],
)
def test_port_that_a_proxy_adds_to_an_address_makes_no_other_client(
    forwarded: str, address: str, tmp_path: Path
) -> None:
    with running(tmp_path, behind_proxy=True) as server:
        headers = bearer(server.service.tokens.create("anna"))
        server.json("POST", f"{API}/jobs", JOB, headers={**headers, "X-Forwarded-For": forwarded})
        assert audit_lines(server.service.database)[0]["address"] == address


@pytest.mark.integration
@pytest.mark.parametrize(
    "charset", ["unicode_escape", "utf-7", "idna", "undefined", "punycode", "utf-16", "latin-1", "x", "'", "UTF-8"]
)
def test_form_in_another_encoding_is_refused(guarded: Running, charset: str) -> None:
    content = b'--B\r\nContent-Disposition: form-data; name="csrf"\r\n\r\n\\ud800+2AA-xn--a\r\n--B--\r\n'
    headers = {"Content-Type": f"multipart/form-data; boundary=B; charset={charset}", "Cookie": "helixfold_session=x"}
    status = guarded.asked("POST", "/login", body=content, headers=headers)[0]
    assert status == (403 if charset == "UTF-8" else 415)


def test_form_with_too_many_fields_is_refused_before_it_is_parsed(
    guarded: Running, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("starlette.requests.FormParser.parse", parse)
    headers = {**bearer(token), "Content-Type": "application/x-www-form-urlencoded"}
    for path in ("/submit", "/ticket/msa"):
        assert guarded.asked("POST", path, body=b"&" * 1_000, headers=headers)[0] == 413


@pytest.mark.integration
def test_name_of_an_unknown_option_is_cut_in_the_message(server: Running) -> None:
    status, _, body = server.asked("POST", f"{API}/jobs", {**JOB, "k" * 2**20: 1})
    assert status == 422
    assert b"kkk...: Extra inputs" in body


@pytest.mark.integration
def test_several_sequences_are_refused_where_one_structure_is_returned(server: Running) -> None:
    records = ">a\nMKTAYIAKQR\n>b\nMKTAYIAKQRQISFVK\n"
    for path in (f"{NIM}/predict-structure-from-sequence", f"{NIM}/predict-structure-from-MSA"):
        status, _, body = server.asked("POST", path, {"sequence": records})
        assert (status, b"accepts one sequence" in body) == (422, True)


@pytest.mark.integration
def test_structures_of_a_worker_that_do_not_fit_into_an_answer_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_nim, "_MAX_ANSWER_BYTES", 10)
    with running(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        for sizes, expected in (((5, 5), 200), ((6, 5), 502)):
            answer = pool.submit(server.asked, "POST", f"{NIM}/predict-structure-from-sequence", JOB)
            claimed = server.claim(wait=10)
            server.finish(claimed, {f"ranked_{number}.pdb": b"x" * size for number, size in enumerate(sizes)})
            assert answer.result()[0] == expected


def test_structures_are_answered_in_the_order_of_their_ranks(tmp_path: Path) -> None:
    with running(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.asked, "POST", f"{NIM}/predict-structure-from-sequence", JOB)
        files = {f"ranked_{rank}.pdb": str(rank).encode() for rank in range(22)}
        server.finish(server.claim(wait=10), files | {"ranked_0.cif": b"x", "unrelaxed_tiny.pdb": b"x"})
        assert json.loads(answer.result()[2]) == [str(rank) for rank in range(20)]  # as many as there may be


@pytest.mark.integration
def test_files_of_a_result_that_arrive_together_have_one_limit(tmp_path: Path) -> None:
    with running(tmp_path, queue=QueueOptions(max_user_bytes=20)) as server:
        server.json("POST", f"{API}/jobs", JOB)
        claimed = server.claim()
        headers = {**bearer(server.worker_token), "X-Lease": claimed["lease"]}
        path = f"{WORKER}/jobs/{claimed['id']}/results"
        with start_request(server, "PUT", f"{path}/a", 15, headers) as first:
            first.sendall(b"x" * 10)
            file = server.service.storage.attempt_file(claimed["id"], 1, "a")
            until(lambda: file.exists() and file.stat().st_size == 10)
            assert server.asked("PUT", f"{path}/b", body=b"x" * 15, headers=headers)[0] == 413
        assert server.asked("PUT", f"{path}/b", body=b"x" * 10, headers=headers)[0] == 204


def _without_a_brace(text: str) -> str:
    return text.replace("}", "", 1)


@pytest.mark.integration
@pytest.mark.parametrize(
    "damage",
    [
        _without_a_brace,
        lambda text: "",
        lambda text: "[" * 100,
        lambda text: '{"tokens": [5]}',
        lambda text: text.replace('"expires": null', '"expires": "x"'),
        lambda text: text.replace('"digest": "', '"digest": "é'),
        lambda text: text.replace('"id": "', '"id": ["').replace('",\n   "user"', '"],\n   "user"'),
    ],
)
def test_nobody_is_let_in_while_the_file_of_tokens_is_damaged(damage: Callable[[str], str], tmp_path: Path) -> None:
    with running(tmp_path, require_tokens=True) as server:
        headers, file = bearer(server.service.tokens.create("anna")), tmp_path / "tokens.json"
        text = file.read_text()
        file.write_text(damage(text), encoding="utf-8")
        assert file.read_text(encoding="utf-8") != text
        for path, others in ((f"{API}/jobs", headers), ("/", {**headers, **HTML}), (f"{API}/worker/x", headers)):
            status, _, body = server.asked("GET", path, headers=others)
            assert (status, b"its tokens" in body) == (503, True)
        file.write_text(text)
        assert server.asked("GET", f"{API}/jobs", headers=headers)[0] == 200


@pytest.mark.integration
def test_request_that_waits_while_the_tokens_are_damaged_is_not_answered_with_their_path(tmp_path: Path) -> None:
    with running(tmp_path, require_tokens=True) as server, ThreadPoolExecutor(1) as pool:
        headers = bearer(server.service.tokens.create("anna"))
        answer = pool.submit(server.asked, "POST", "/foldSequence/v1/pdb/", body=b"MKTAYIAKQR", headers=headers)
        until(lambda: server.service.views.usage("anna").active_jobs == 1)
        (tmp_path / "tokens.json").write_text("{")
        status, _, body = answer.result()
        assert (status, str(tmp_path).encode() in body) == (503, False)


@pytest.mark.integration
def test_service_says_that_its_database_cannot_be_used_now(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.service.database._writer.execute("PRAGMA busy_timeout = 10")
        other = sqlite3.connect(server.service.storage.database, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        status, headers, body = server.asked("POST", f"{API}/jobs", JOB)
        assert (status, headers["retry-after"], b"its database" in body) == (503, "5", True)
        assert server.json("GET", f"{API}/jobs")["jobs"] == []
        other.close()
        assert server.json("POST", f"{API}/jobs", JOB)["state"] == "queued"


@pytest.mark.integration
def test_result_that_is_deleted_while_it_is_fetched_is_not_found(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finished() -> str:
        server.json("POST", f"{API}/jobs", JOB)
        claimed = server.claim()
        server.finish(claimed, {"ranked_0.pdb": b"x"})
        return str(claimed["id"])

    def packed(path: Path, folders: Mapping[str, Path]) -> None:
        write_zip(path, folders)
        shutil.rmtree(path.parent)

    def not_packed(path: Path, folders: Mapping[str, Path]) -> None:
        shutil.rmtree(path.parent)
        write_zip(path, folders)

    write_zip: Any = result_files.write_zip
    for replacement in (packed, not_packed):
        monkeypatch.setattr(result_files, "write_zip", replacement)
        assert server.asked("GET", f"{API}/jobs/{finished()}/archive")[0] == 404
    job = finished()
    found = server.service.storage.result_file

    def then_deleted(*arguments: Any) -> Path | None:
        path = found(*arguments)
        assert path is not None
        os.unlink(path)
        return path

    monkeypatch.setattr(type(server.service.storage), "result_file", lambda _, *arguments: then_deleted(*arguments))
    assert server.asked("GET", f"{API}/jobs/{job}/files/ranked_0.pdb")[0] == 404


def record_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[protocol.TimedProtocol]:
    """The connections for which a method has been called, in order."""
    method, called = getattr(protocol.TimedProtocol, name), []

    def record(self: protocol.TimedProtocol, *arguments: Any) -> None:
        called.append(self)
        method(self, *arguments)

    monkeypatch.setattr(protocol.TimedProtocol, name, record)
    return called


@pytest.mark.integration
@pytest.mark.parametrize("pipelined", [1, 3])
def test_connection_ends_whose_client_does_not_read_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipelined: int
) -> None:
    with running(tmp_path) as server, socket.socket() as connection:
        server.json("POST", f"{API}/jobs", JOB)
        claimed = server.claim()
        server.finish(claimed, {"large.pdb": b"x" * 2**25})  # more than the system takes for a client
        monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.3)
        opened, ended = (record_calls(monkeypatch, name) for name in ("connection_made", "connection_lost"))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", server.port))
        request = f"GET /jobs/{claimed['id']}/files/large.pdb HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        connection.sendall(request.encode() * pipelined)
        until(lambda: len(opened) == 1)
        until(lambda: opened[0] in ended)


@pytest.mark.integration
def test_body_of_an_answer_does_not_wait_for_its_head(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = record_calls(monkeypatch, "connection_made")
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        connection.sendall(b"GET /v1/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert status_of(connection) == 200
        accepted = opened[-1].transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.integration
def test_new_connection_is_taken_where_another_address_has_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS", 3)
    opened = record_calls(monkeypatch, "connection_made")
    with running(tmp_path) as server:
        busy = []
        for _ in range(3):  # none is idle
            connection = socket.socket()
            connection.bind(("127.0.0.2", 0))
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(
                f"POST {API}/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                "Content-Length: 1000\r\n\r\n{".encode()
            )
            busy.append(connection)
        until(lambda: sum(not each.is_idle() for each in opened) == 3)
        assert server.asked("GET", f"{API}/jobs")[0] == 200
        for connection in busy:
            connection.close()


@pytest.mark.integration
def test_description_of_the_interface_is_written_once(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    description = server.json("GET", "/api/openapi.json")
    monkeypatch.setattr(FastAPI, "openapi", lambda _: {})
    assert server.json("GET", "/api/openapi.json") == description
    assert f"{API}/jobs" in description["paths"]
