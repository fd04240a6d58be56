"""One user, or somebody without a token, cannot take the service away from the others."""

import asyncio
import gzip
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.io.errors import InputError
from helixfold.apps.serve import service
from helixfold.apps.serve.queue.jobs import QueueOptions
from helixfold.apps.serve.queue.queue import QueueViews
from helixfold.apps.serve.submission import read_submissions
from helixfold.apps.serve.upload_check import check_upload
from helixfold.apps.serve.web import api_esm, api_jobs, api_nim, forms, protocol, request_limits, threads
from helixfold.apps.serve.web.request_limits import network_of
from tests.apps.serve.running import WORKER, Running, running

API = "/api/v1"
NIM = "/protein-structure/alphafold2"
JOB = {"sequence": "MKTAYIAKQR"}
UPLOAD = {**JOB, "alignments": [{"name": "a.a3m", "content": ">query\nMKTAYIAKQR\n"}]}
LARGE = 31 * 2**20


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def start_request(
    server: Running, method: str, path: str, size: int = 0, headers: Mapping[str, str] | None = None
) -> socket.socket:
    """A connection on which the head of a request was sent, and nothing of its body."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=120)
    sent = {"Host": "127.0.0.1", "Content-Length": size, **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    return connection


def status_of(connection: socket.socket) -> int:
    """The status of the answer that comes on a connection."""
    return int(connection.recv(12).split()[1])


@pytest.fixture
def tokens(guarded: Running) -> dict[str, str]:
    return {name: guarded.service.tokens.create(name) for name in ("anna", "ben", "carl", "dora", "emil")}


# Uploads


@pytest.mark.integration
def test_heartbeats_and_pages_go_on_while_uploads_are_checked(
    guarded: Running, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_released, checked = threading.Event(), threading.Semaphore(0)

    def slow_check(*_: object) -> None:
        checked.release()
        is_released.wait(60)

    monkeypatch.setattr(service, "check_upload", slow_check)
    guarded.json("POST", f"{API}/jobs", JOB, headers=bearer(tokens["anna"]))
    claimed = guarded.claim()
    with ThreadPoolExecutor(44) as pool:
        users = [list(tokens.values())[number % len(tokens)] for number in range(44)]
        uploads = [pool.submit(guarded.asked, "POST", f"{API}/jobs", UPLOAD, headers=bearer(each)) for each in users]
        try:
            refused = [each.result() for _, each in zip(range(42), as_completed(uploads, timeout=120), strict=False)]
            assert {(status, headers["retry-after"]) for status, headers, _ in refused} == {(429, "5")}
            assert checked.acquire(timeout=120)
            assert checked.acquire(timeout=120)
            guarded.as_worker("POST", "/heartbeat", claimed, content={})
            assert guarded.json("GET", f"{API}/jobs", headers=bearer(tokens["ben"])) is not None
        finally:
            is_released.set()
        assert sorted(each.result()[0] for each in uploads) == [201] * 2 + [429] * 42


@pytest.mark.integration
def test_a_user_has_one_upload_checked_at_a_time(
    guarded: Running, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_released, is_checking = threading.Event(), threading.Event()

    def slow_check(*_: object) -> None:
        is_checking.set()
        is_released.wait(60)

    monkeypatch.setattr(service, "check_upload", slow_check)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(guarded.asked, "POST", f"{API}/jobs", UPLOAD, headers=bearer(tokens["anna"]))
        assert is_checking.wait(10)
        status, _, body = guarded.asked("POST", f"{API}/jobs", UPLOAD, headers=bearer(tokens["anna"]))
        is_released.set()
        assert (status, b"another upload of yours" in body) == (429, True)
        assert first.result()[0] == 201
    assert guarded.asked("POST", f"{API}/jobs", UPLOAD, headers=bearer(tokens["anna"]))[0] == 201


@pytest.mark.integration
def test_the_quota_is_checked_before_the_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(service, "check_upload", lambda *arguments: checked.append(arguments))
    with running(tmp_path, queue=QueueOptions(max_active_jobs=1)) as server:
        first = server.json("POST", f"{API}/jobs", UPLOAD, headers={"Idempotency-Key": "a"})
        assert len(checked) == 1
        assert server.asked("POST", f"{API}/jobs", UPLOAD)[0] == 429
        again = server.asked("POST", f"{API}/jobs", UPLOAD, headers={"Idempotency-Key": "a"})
        assert (again[0], json.loads(again[2])["id"]) == (200, first["id"])
        assert len(checked) == 1
        assert len(list((tmp_path / "jobs").iterdir())) == 1


def check_file(directory: Path, kind: str, name: str, content: bytes) -> None:
    request = read_submissions("MKTAYIAKQR")[0].request()
    request[kind] = [name]
    (directory / name).write_bytes(content)
    check_upload(request, directory)


@pytest.mark.integration
def test_a_reader_that_takes_too_much_memory_is_ended(tmp_path: Path) -> None:
    values = b"loop_\n_entity_poly_seq.entity_id\n_entity_poly_seq.num\n_entity_poly_seq.mon_id\n"
    values += b"1 1 A\n" * 4_000_000  # 12 million values of over 50 bytes each
    with pytest.raises(InputError, match="too much memory"):
        check_file(tmp_path, "templates", "template_0.cif", b"data_x\n" + values)


@pytest.mark.integration
def test_files_that_unpack_to_too_much_are_refused(tmp_path: Path) -> None:
    rows = b">query\nMKTAYIAKQR\n" + b"".join(b">%d\nMKTAYIAKQR\n" % number for number in range(3_600_000))
    with pytest.raises(InputError, match="longer than the maximum of 67,108,864 bytes"):
        check_file(tmp_path, "alignments", "alignment_0.a3m.gz", gzip.compress(rows, 1))


# Bodies


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{API}/jobs", 401),
        (f"{WORKER}/hello", 401),
        ("/foldSequence/v1/pdb/", 401),
        ("/ticket/msa", 401),
        ("/submit", 303),
        ("/login", 413),
    ],
)
def test_no_body_is_read_without_a_token(guarded: Running, path: str, status: int) -> None:
    for headers in ({}, bearer("hf_0"), {"Cookie": "helixfold_session=x"}):
        with closing(start_request(guarded, "POST", path, LARGE, headers)) as connection:
            assert status_of(connection) == status


@pytest.mark.parametrize("host", ["x/login?", "x/login#", "x/shared/?", "x/v1/health/#"])
def test_no_host_makes_a_path_public(guarded: Running, host: str) -> None:
    assert guarded.asked("GET", f"{API}/jobs", headers={"Host": host})[0] == 401
    with closing(start_request(guarded, "POST", f"{API}/jobs", 100, {"Host": host})) as connection:
        assert status_of(connection) == 401


@pytest.mark.integration
def test_the_rate_is_limited_before_the_body_is_read(tmp_path: Path) -> None:
    with running(tmp_path, require_tokens=True, max_requests=1) as server:
        token = server.service.tokens.create("anna")
        assert server.asked("GET", f"{API}/jobs", headers=bearer(token))[0] == 200
        with closing(start_request(server, "POST", f"{API}/jobs", LARGE, bearer(token))) as connection:
            assert status_of(connection) == 429


@pytest.mark.integration
def test_bodies_in_flight_are_limited_by_user_and_in_all(guarded: Running, tokens: dict[str, str]) -> None:
    anna, ben, carl = (bearer(tokens[name]) for name in ("anna", "ben", "carl"))
    with ExitStack() as stack:

        def begin(user: dict[str, str], size: int = LARGE) -> socket.socket:
            return stack.enter_context(closing(start_request(guarded, "POST", f"{API}/jobs", size, user)))

        begin(anna)
        assert status_of(begin(anna, 2**21)) == 429
        assert status_of(begin(ben, LARGE // 2)) == 503
        begin(ben, LARGE // 3)  # nobody takes all that is left
        assert status_of(begin(ben, 2**21)) == 503
        assert status_of(begin(carl, 5 * 2**20)) == 503
        large = json.dumps(JOB).encode().ljust(2**21)
        sent = {**carl, "Content-Type": "application/json"}
        assert guarded.asked("POST", f"{API}/jobs", body=large, headers=sent)[0] == 201
        assert guarded.asked("POST", f"{API}/jobs", JOB, headers=anna)[0] == 201  # small ones are not counted
    until = time.monotonic() + 120  # by when the server has seen that these connections have ended
    while time.monotonic() < until:
        with closing(start_request(guarded, "POST", f"{API}/jobs", LARGE, carl)) as connection:
            connection.settimeout(0.2)
            try:
                assert status_of(connection) == 503
            except TimeoutError:
                return  # it waits for the body
        time.sleep(0.05)
    raise AssertionError("the bytes of requests that have ended still count")


# Parsing


@pytest.mark.integration
def test_a_body_of_too_many_values_is_not_validated(server: Running) -> None:
    keys = json.dumps({f"key{number}": 1 for number in range(300_000)}).encode()
    lists = b"[" + b"[]," * 1_000_000 + b"[]]"
    for path in (f"{API}/jobs", f"{API}/forecast", f"{NIM}/predict-structure-from-MSA"):
        for body in (keys, lists):
            status, _, answer = server.asked("POST", path, body=body, headers={"Content-Type": "application/json"})
            assert (status, b"more than 2,000 values" in answer) == (413, True)


def count_by_walking(value: Any) -> int:
    """The containers and commas of a JSON text, and one."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(0, len(value) - 1) + sum(count_by_walking(each) - 1 for each in inner) + 1
    return 1


@pytest.mark.parametrize("size", [1, 2, 3, 7, 2**16])
def test_values_are_counted_outside_of_strings(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_SLICE_BYTES", size)
    for value in (
        *(1, "a,b", '"', "\\", '\\"', "[,{", [], {}, [1], [1, 2], {"a,": [{}, "\\\\", '",['], '\\"': "é,\n"}),
        {"name": '[",', "files": [{"content": ">a [Homo]\n,,\\"}, {"content": '"\\"'}]},
    ):
        for is_ascii in (True, False):
            assert threads.count_values(json.dumps(value, ensure_ascii=is_ascii).encode()) == count_by_walking(value), (
                value
            )


@pytest.mark.parametrize("body", [b"", b"{", b'"\\ud800"', b"\xff", b"[" * 1_000, b"1" * 100_000, b'{"sequence": "MK'])
def test_a_damaged_body_is_answered_with_a_sentence(server: Running, body: bytes) -> None:
    status, _, answer = server.asked("POST", f"{API}/jobs", body=body, headers={"Content-Type": "application/json"})
    assert status == 422
    assert json.loads(answer)["error"]


def noting_thread(function: Callable[..., Any], seen: list[bool]) -> Callable[..., Any]:
    """A function that notes whether it is called by the thread of an event loop."""

    def called(*arguments: Any, **others: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            seen.append(False)
        else:
            seen.append(True)
        return function(*arguments, **others)

    return called


@pytest.mark.integration
def test_nothing_is_parsed_by_the_thread_of_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    for module in (api_esm, api_nim, forms):
        monkeypatch.setattr(module, "read_submissions", noting_thread(read_submissions, seen))
    monkeypatch.setattr(threads, "read_json", noting_thread(threads.read_json, seen))
    text = "".join(f">{number}\nMK\n" for number in range(3))
    with running(tmp_path, wait_seconds=0.01) as server:
        _, headers, page = server.asked("GET", "/")
        csrf = page.partition(b'name="csrf" value="')[2].partition(b'"')[0].decode()
        form = {
            "Cookie": headers["set-cookie"].partition(";")[0],
            "Content-Type": "application/x-www-form-urlencoded",
        }
        as_json = {"Content-Type": "application/json"}
        for path, body, others in (
            ("/foldSequence/v1/pdb/", text, {"Content-Type": "text/plain"}),
            (f"{NIM}/predict-MSA-from-sequence", json.dumps({"sequence": text}), as_json),
            (f"{NIM}/predict-structure-from-sequence", json.dumps({"sequence": "MK"}), as_json),
            ("/submit", f"csrf={csrf}&sequence=MK", form),
        ):
            before = len(seen)
            status, _, answer = server.asked("POST", path, body=body.encode(), headers=others)
            assert status in (303, 422, 504), (path, answer)
            assert len(seen) - before == (2 if others is as_json else 1), path
    assert not any(seen)


# Connections and requests


@pytest.mark.integration
def test_idle_connections_of_an_address_shut_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_CONNECTIONS", "MAX_CONNECTIONS_OF_ADDRESS"):
        monkeypatch.setattr(protocol, name, 5, raising=False)
    with running(tmp_path) as server, ExitStack() as stack:
        address = ("127.0.0.1", server.port)
        idle = [stack.enter_context(closing(socket.create_connection(address, timeout=120))) for _ in range(20)]
        for _ in range(3):
            assert server.asked("GET", "/v1/health/live")[0] == 200
        # The oldest ones were closed for those that came later.
        assert [each.recv(1) for each in idle[:15]] == [b""] * 15
        idle[-1].sendall(b"GET /v1/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert status_of(idle[-1]) == 200


@pytest.mark.integration
@pytest.mark.parametrize("limit", ["MAX_CONNECTIONS", "MAX_CONNECTIONS_OF_ADDRESS"])
def test_connections_that_are_answered_are_not_closed_for_others(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, limit, 3)
    with running(tmp_path) as server, ExitStack() as stack:
        job = server.json("POST", f"{API}/jobs", JOB)["id"]
        streams = [
            stack.enter_context(closing(start_request(server, "GET", f"{API}/jobs/{job}/events"))) for _ in range(3)
        ]
        assert [status_of(each) for each in streams] == [200] * 3
        refused = stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.port), timeout=120)))
        assert refused.recv(1) == b""


@pytest.mark.integration
def test_behind_a_proxy_connections_are_not_limited_by_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS_OF_ADDRESS", 1)
    with running(tmp_path, behind_proxy=True) as server, ExitStack() as stack:
        idle = [stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.port)))) for _ in range(3)]
        assert server.asked("GET", "/v1/health/live")[0] == 200
        for each in idle:
            each.sendall(b"GET /v1/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert status_of(each) == 200


@pytest.mark.integration
def test_a_user_watches_a_limited_number_of_jobs(
    guarded: Running, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_jobs, "_MAX_STREAMS_OF_USER", 2, raising=False)
    with ExitStack() as stack:

        def watch(name: str) -> socket.socket:
            user = bearer(tokens[name])
            job = guarded.json("POST", f"{API}/jobs", JOB, headers=user)["id"]
            return stack.enter_context(closing(start_request(guarded, "GET", f"{API}/jobs/{job}/events", headers=user)))

        watched = [watch("anna") for _ in range(2)]
        assert [status_of(each) for each in watched] == [200, 200]
        assert status_of(watch("anna")) == 429
        assert status_of(watch("ben")) == 200
        watched[0].close()
        until = time.monotonic() + 120  # by when the server has seen it
        while status_of(watch("anna")) != 200:
            assert time.monotonic() < until
            time.sleep(0.1)


@pytest.mark.integration
def test_requests_in_progress_are_limited_by_user(
    guarded: Running, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_limits, "MAX_REQUESTS", 2, raising=False)
    anna, ben = bearer(tokens["anna"]), bearer(tokens["ben"])
    job = guarded.json("POST", f"{API}/jobs", JOB, headers=anna)["id"]
    with ExitStack() as stack:
        for _ in range(2):
            stream = stack.enter_context(
                closing(start_request(guarded, "GET", f"{API}/jobs/{job}/events", headers=anna))
            )
            assert status_of(stream) == 200
        assert guarded.asked("GET", f"{API}/jobs", headers=anna)[0] == 429
        assert guarded.asked("GET", f"{API}/jobs", headers=ben)[0] == 200


@pytest.mark.integration
def test_one_user_has_few_of_the_threads(
    guarded: Running, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_released, entered = threading.Event(), []
    history = QueueViews.history

    def slow_history(views: QueueViews, user: str, **others: Any) -> Any:
        if user == "anna":
            entered.append(user)
            is_released.wait(60)
        return history(views, user, **others)

    monkeypatch.setattr(QueueViews, "history", slow_history)
    with ThreadPoolExecutor(50) as pool:
        waiting = [pool.submit(guarded.asked, "GET", f"{API}/jobs", headers=bearer(tokens["anna"])) for _ in range(50)]
        try:
            until = time.monotonic() + 120
            while len(entered) < 3 and time.monotonic() < until:
                time.sleep(0.01)
            for path in (f"{API}/jobs", "/jobs", "/metrics", f"{API}/service"):
                assert guarded.asked("GET", path, headers=bearer(tokens["ben"]))[0] == 200
            assert len(entered) == 3
        finally:
            is_released.set()
        assert [each.result()[0] for each in waiting] == [200] * 50


@pytest.mark.integration
def test_a_user_who_parses_much_leaves_threads_to_others() -> None:
    async def parse() -> None:
        parsers, is_released = threads.Threads(2, per_user=1), threading.Event()
        slow = [asyncio.create_task(parsers.run("anna", is_released.wait, 60)) for _ in range(5)]
        try:
            assert await asyncio.wait_for(parsers.run("ben", len, "MK"), 10) == 2
        finally:
            is_released.set()
        assert await asyncio.gather(*slow) == [True] * 5

    asyncio.run(parse())


@pytest.mark.integration
def test_a_slow_body_keeps_nobody_of_its_address_waiting(guarded: Running) -> None:
    with ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(closing(start_request(guarded, "POST", "/login", 100)))
        assert guarded.asked("GET", "/login")[0] == 200


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server behind a proxy that names any client's address, with three requests in a minute."""
    with running(tmp_path_factory.mktemp("proxied"), behind_proxy=True, max_requests=3) as found:
        yield found


@pytest.mark.integration
@pytest.mark.parametrize("path", ["/login", "/static/service.css", "/shared/x", "/shared/x/archive", "/v1/health/live"])
def test_public_paths_are_limited_by_address(proxied: Running, path: str) -> None:
    address = f"10.0.0.{len(path)}"
    statuses = [proxied.asked("GET", path, headers={"X-Forwarded-For": address})[0] for _ in range(5)]
    assert statuses[0] != 429
    assert statuses[3:] == [429, 429]
    assert proxied.asked("GET", path, headers={"X-Forwarded-For": f"{address}0"})[0] == statuses[0]


def test_an_ipv6_host_has_one_address(proxied: Running) -> None:
    addresses = [f"2001:db8::{number}" for number in range(1, 6)]
    statuses = [proxied.asked("GET", "/login", headers={"X-Forwarded-For": each})[0] for each in addresses]
    assert statuses == [200, 200, 200, 429, 429]


def test_addresses_count_by_network() -> None:
    assert network_of("10.0.0.1") == "10.0.0.1"
    assert network_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert network_of("2001:db8:0:1:2:3:4:5") == network_of("2001:db8:0:1::") != network_of("2001:db8:0:2::")
    assert network_of("unknown") == "unknown"


@pytest.mark.integration
def test_a_server_may_open_as_many_files_as_it_has_connections() -> None:
    code = (
        "import resource; from helixfold.apps.serve.run import allow_connections\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))\n"
        "allow_connections()\n"
        "soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]\n"
        "assert soft == (2_000 if hard == resource.RLIM_INFINITY else min(2_000, hard)), (soft, hard)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
