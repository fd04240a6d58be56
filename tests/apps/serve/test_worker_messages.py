"""Whatever a worker sends, pages and routes answer, and users get no more than their limits."""

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from helixfold.apps.serve.client import Client
from helixfold.apps.serve.http_client import HttpClient, ServerError
from helixfold.apps.serve.queue import workers
from helixfold.apps.serve.queue.jobs import QueueOptions
from helixfold.apps.serve.queue.queue import JobQueue
from helixfold.apps.serve.web import api_nim, api_worker
from helixfold.apps.serve.worker.process import Outcome, Progress
from helixfold.apps.serve.worker.worker import Worker
from tests.apps.serve.running import OFFERS, WORKER, Running, running

API = "/api/v1"
JOB = {"sequence": "MKTAYIAKQR"}
PAGE = {"Accept": "text/html"}


def assert_all_answer(server: Running) -> None:
    """Pages, submissions, forecasts and metrics are there."""
    for method, path, content, headers in (
        ("GET", "/", None, PAGE),
        ("GET", "/jobs", None, PAGE),
        ("GET", f"{API}/service", None, {}),
        ("GET", "/metrics", None, {}),
        ("POST", f"{API}/forecast", JOB, {}),
        ("POST", f"{API}/forecast", {"sequence": "M" * 4_000}, {}),
        ("POST", f"{API}/jobs", JOB, {}),
    ):
        server.service._offers = (0.0, [])  # what was read within the last second
        assert server.asked(method, path, content, headers=headers)[0] in (200, 201, 422), path


def curve(*points: Any, **others: Any) -> dict[str, Any]:
    return {"models": ["tiny"], "forecasts": {"tiny": {"points": points, **others}}}


@pytest.mark.parametrize(
    "offers",
    [
        5,
        {"models": 5},
        {"models": [5]},
        {"models": ["m" * 101]},
        {"models": ["m"] * 51},
        {"models": ["\ud800"]},
        {"device": {}},
        {"device": "d" * 101},
        {"databases": "many"},
        {"forecasts": 5},
        {"forecasts": {"tiny": 5}},
        curve(5),
        curve([64, 1.0]),
        curve([64, 1.0, 2.0, 3.0]),
        curve([64, 1.0, 1.0], [64, 2.0, 2.0]),
        curve([64, float("nan"), 1.0]),
        curve([64, 1.0, float("inf")]),
        curve([64, -1.0, 1.0]),
        curve([10**400, 1.0, 1.0]),
        curve([1.5, 1.0, 1.0]),
        curve(*([number, 1.0, 1.0] for number in range(1, 10))),
        curve(longest="x"),
        curve(longest=2**70),
        curve(recycles=-1),
        curve(available=None),
    ],
)
def test_offers_of_a_wrong_type_or_size_are_refused_and_break_nothing(server: Running, offers: Any) -> None:
    before = server.service.workers.present()
    with pytest.raises(ServerError) as refused:
        server.as_worker("POST", "/hello", content={"name": "bad", "offers": offers})
    assert refused.value.status == 422
    assert server.service.workers.present() == before
    assert_all_answer(server)


@pytest.mark.parametrize(
    "offers",
    [
        curve([1_000, 1e-12, 1.0], [1_001, 1e12, 2.0**60], longest=2**40),
        curve([1_000, 1e12, 2.0**60], [1_001, 1e-12, 1.0]),
        curve([1, 1.0, 1.0]),
        {"models": ["<script>", "\x1b[2J"], "device": "\x1b[2J"},
        {"models": ["tiny"], "more": {"of a later version": 5}},
        {},
    ],
)
def test_offers_at_the_limits_break_nothing(tmp_path: Path, offers: Any) -> None:
    with running(tmp_path, offers=None) as server:
        server.as_worker("POST", "/hello", content={"name": "odd", "offers": offers})
        assert_all_answer(server)
        assert b"\x1b" not in server.asked("GET", "/", headers=PAGE)[2]


def test_stored_offers_that_cannot_be_read_are_skipped_after_a_restart_too(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.service.database.transaction() as connection:
        for number, text in enumerate(('{"models": 5}', '{"forecasts": {"tiny": {"points": 5}}}', "[]", "{", "")):
            connection.execute("INSERT INTO workers VALUES (?, ?, ?)", (f"node/{number}", text, 2.0**40))
    with running(tmp_path, offers=None) as server:
        assert set(server.service.workers.present()) == {"local/test"}
        assert server.json("GET", f"{API}/service")["models"] == OFFERS["models"]
        assert_all_answer(server)


def test_workers_of_one_user_are_limited_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_MAX_WORKERS", 3, raising=False)
    with running(tmp_path) as server:
        headers = {"Authorization": f"Bearer {server.service.tokens.create('node', 'worker')}"}
        for number in range(5):
            server.json("POST", f"{WORKER}/hello", {"name": str(number), "offers": OFFERS}, headers=headers)
        assert set(server.service.workers.present()) == {"node/2", "node/3", "node/4", "local/test"}


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/claim", {"name": "w", "kinds": ["prediction"], "wait": float("nan")}),
        ("/claim", {"name": "w" * 201, "kinds": ["prediction"]}),
        ("/claim", {"name": "w", "kinds": ["all"]}),
        ("/claim", {"name": "w", "kinds": ["prediction"], "longest": 0}),
        ("/heartbeat", {"progress": 5}),
        ("/heartbeat", {"progress": {"stages": [{"name": "a", "seconds": "x"}]}}),
        ("/heartbeat", {"progress": {"stages": [{"name": "a", "seconds": float("inf")}]}}),
        ("/heartbeat", {"progress": {"stages": [{"name": "a", "seconds": 1}] * 201}}),
        ("/heartbeat", {"progress": {"stages": [{"name": "a" * 101, "seconds": 1}]}}),
        ("/heartbeat", {"progress": {"lines": {"a": "b"}}}),
        ("/heartbeat", {"progress": {"lines": ["a"] * 6}}),
        ("/heartbeat", {"progress": {"lines": ["a" * 401]}}),
        ("/fail", {"error": 5}),
        ("/fail", {"error": "a" * 20_001}),
        ("/fail", {"error": "a", "try_again": "perhaps"}),
        ("/finish", {"summary": 5, "files": 0}),
        ("/finish", {"summary": {"plddt": 1e300}, "files": 0}),
        ("/finish", {"summary": {"plddt": 50, "ptm": []}, "files": 0}),
        ("/finish", {"summary": {"plddt": 50, "model": "m" * 101}, "files": 0}),
        ("/finish", {"summary": {}, "files": -1}),
        ("/finish", {"summary": {}, "files": 0}),
        ("/finish", {"summary": {}, "files": 1}),
    ],
)
def test_a_message_of_a_wrong_type_or_size_is_refused_and_changes_nothing(
    server: Running, path: str, content: Mapping[str, Any]
) -> None:
    server.json("POST", f"{API}/jobs", JOB)
    claimed = server.claim()
    before = server.service.views.job(claimed["id"])
    with pytest.raises(ServerError) as refused:
        server.as_worker("POST", path, None if path == "/claim" else claimed, content=content)
    assert refused.value.status == 422
    assert server.service.views.job(claimed["id"]) == before


def test_text_of_a_worker_is_shown_without_control_characters(server: Running) -> None:
    server.json("POST", f"{API}/jobs", JOB)
    claimed = server.claim()
    progress = {"stages": [{"name": "<b>\x1b[2J", "seconds": 1}], "lines": ["\x1b[2J"]}
    server.as_worker("POST", "/heartbeat", claimed, content={"progress": progress})
    pages = [server.asked("GET", f"/jobs/{claimed['id']}", headers=PAGE)]
    server.as_worker("POST", "/fail", claimed, content={"error": "<script>\x1b[2J"})
    job = server.json("GET", f"{API}/jobs/{claimed['id']}")
    assert job["progress"] == {"stages": [{"name": "<b>\\x1b[2J", "seconds": 1.0}], "lines": ["\\x1b[2J"]}
    assert job["error"] == "<script>\\x1b[2J"
    pages.append(server.asked("GET", f"/jobs/{claimed['id']}", headers=PAGE))
    for status, _, body in pages:
        assert status == 200
        assert b"\x1b" not in body
        assert b"<script>\\" not in body


def test_a_result_is_limited_in_files_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_worker, "MAX_RESULT_FILES", 3)
    with running(tmp_path, queue=QueueOptions(max_user_bytes=100)) as server:
        server.json("POST", f"{API}/jobs", JOB)
        claimed = server.claim()

        def sent(path: str, size: int = 10) -> int:
            try:
                server.as_worker("PUT", f"/results/{path}", claimed, body=b"x" * size)
            except ServerError as error:
                return error.status
            return 204

        assert [sent("a"), sent("b/c"), sent("a", 90)] == [204, 204, 204]
        assert sent("d", 1) == 413
        assert sent("a", 10) == 204
        assert [sent("a/b"), sent("b"), sent("d"), sent("e")] == [422, 422, 204, 422]


@pytest.mark.parametrize(("structure", "status"), [(b"ATOM \xff\n", 200), (b"ATOM" * 100, 502)])
def test_structures_that_are_not_text_or_too_large_do_not_break_the_service(
    server: Running, structure: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_nim, "_MAX_ANSWER_BYTES", 100, raising=False)
    answers: list[tuple[int, Any, bytes]] = []

    def ask() -> None:
        answers.append(server.asked("POST", "/foldSequence/v1/pdb/", body=b"MKTAYIAKQR"))

    for _ in iter(server.claim, None):
        pass  # jobs of other tests
    thread = threading.Thread(target=ask)
    thread.start()
    claimed = server.claim(wait=10)
    server.finish(claimed, {"ranked_0.pdb": structure})
    thread.join(20)
    assert answers[0][0] == status


def test_a_job_that_is_tried_again_counts_as_a_new_one(tmp_path: Path) -> None:
    with running(tmp_path, queue=QueueOptions(max_active_jobs=3)) as server:
        ids = []
        for _ in range(3):
            for _ in range(3):
                ids.append(server.json("POST", f"{API}/jobs", JOB)["id"])
            for job in ids:
                server.json("POST", f"{API}/jobs/{job}/cancel")
        answers = [server.asked("POST", f"{API}/jobs/{job}/retry")[::2] for job in ids]
        assert [status for status, _ in answers] == [200] * 3 + [429] * 6
        assert "you have 3 queued or running jobs" in json.loads(answers[-1][1])["error"]
        assert server.json("GET", f"{API}/service")["queued"] == 3
        states = [server.json("GET", f"{API}/jobs/{job}")["state"] for job in ids]
        assert states == ["queued"] * 3 + ["cancelled"] * 6


def test_a_search_that_is_asked_for_again_counts_as_a_new_one_of_who_asks(tmp_path: Path) -> None:
    offers = {"models": [], "alignments": True}
    with running(tmp_path, offers=offers, require_tokens=True, queue=QueueOptions(max_active_jobs=1)) as server:
        headers = {
            user: {
                "Authorization": f"Bearer {server.service.tokens.create(user)}",
                "Content-Type": "application/x-www-form-urlencoded",
            }
            for user in ("anna", "ben")
        }

        def asked(user: str, sequence: str) -> tuple[int, str]:
            body = f"q=%3E101%0A{sequence}&mode=all".encode()
            status, _, answer = server.asked("POST", "/ticket/msa", body=body, headers=headers[user])
            return status, json.loads(answer)["status"]

        assert asked("anna", "MKTAYIAKQR") == (200, "PENDING")
        failed = server.claim(("alignment",))
        server.as_worker("POST", "/fail", failed, content={"error": "broken"})
        assert asked("anna", "MKTAYIAKQL") == (200, "PENDING")
        assert asked("anna", "MKTAYIAKQR") == (429, "RATELIMIT")
        assert asked("ben", "MKTAYIAKQR") == (200, "PENDING")
        assert asked("ben", "MKTAYIAKQF") == (429, "RATELIMIT")
        assert server.service.views.usage("ben").active_jobs == 1


class Endless:
    """In place of the process that predicts: a job that does not end by itself, while the clock goes on."""

    def __init__(self, pass_time: Callable[[], None]) -> None:
        self.pass_time, self.beats = pass_time, 0

    def do(
        self, kind: str, content: Mapping[str, Any], directory: Path, should_continue: Callable[[Progress], bool]
    ) -> Outcome:
        if kind == "offers":
            return Outcome(result={"device": "none", "models": ["tiny"], "alignments": False, "forecasts": {}})
        while self.beats < 100:
            self.beats += 1
            self.pass_time()
            if not should_continue(Progress(stages=[{"name": "pass", "seconds": 1.0}] * self.beats)):
                return Outcome(error="stopped")
        return Outcome(error="it was never stopped")

    def stop(self) -> None:
        pass


def test_a_job_that_runs_over_the_time_limit_fails_and_its_process_is_ended(tmp_path: Path) -> None:
    with running(tmp_path, offers=None) as server, Client(server.url) as client:
        now = [0.0]
        queue = JobQueue(server.service.database, QueueOptions(max_hours=0.5), clock=lambda: now[0])
        server.service.queue = queue

        def pass_time() -> None:
            now[0] += 50.0
            queue.recover()  # as the server does every two seconds

        process = Endless(pass_time)
        worker = Worker(HttpClient(server.url, server.worker_token), process, name="w", print_line=lambda _: None)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            ended = client.wait(client.submit("MKTAYIAKQR")["id"], seconds=0.02)
        finally:
            worker.stop.set()
            thread.join(20)
        assert ended["state"] == "failed"
        assert "ran for longer than 0.5 h, the limit of this service" in ended["error"]
        assert "--max-hours" in ended["error"]
        assert ended["attempts"] == 1
        assert process.beats == 37  # the first after half an hour
