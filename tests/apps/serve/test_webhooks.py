"""The end of a job is told to a receiver that lives: once, again while it refuses, and without waiting for one that
never answers.
"""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.io.errors import RequestError
from helixfold.apps.serve import run
from helixfold.apps.serve.run import Maintenance, call_due_webhooks
from tests.apps.serve.running import Running, running, until

JOBS = "/api/v1/jobs"
OK = b"HTTP/1.1 204 No Content\r\n\r\n"


class Receiver:
    """A server that answers each request with the next answer, or not at all where that is None."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers, self.requests = list(answers), list[bytes]()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        for each in (self._socket, *self._open):
            each.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._open.append(connection)
            head, _, body = connection.recv(2**16).partition(b"\r\n\r\n")
            while not body.endswith(b"}"):
                body += connection.recv(2**16)
            self.requests.append(head + b"\r\n\r\n" + body)
            answer = self.answers.pop(0) if self.answers else OK
            if answer is not None:
                connection.sendall(answer)
                connection.close()


class Told:
    """A service whose clock the test sets, and a receiver that it may call."""

    def __init__(self, server: Running, receiver: Receiver) -> None:
        self.server, self.receiver, self.now = server, receiver, 1_000.0
        server.service.clock = server.service.queue._clock = lambda: self.now

    def end_job(self) -> str:
        """Submit a job with a webhook, and finish it."""
        body = {"sequence": "MKTAYIAKQR", "name": "mine", "webhook": f"http://{self.receiver.host}/done?a=1"}
        job = str(self.server.json("POST", JOBS, body)["id"])
        self.server.finish(self.server.claim(), {"ranked_0.pdb": b"x"})
        return job

    def call(self, after: float = 0.0) -> int:
        """Call what is due so many seconds later; return how many requests have come in all."""
        self.now += after
        call_due_webhooks(self.server.service)
        return len(self.receiver.requests)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@pytest.fixture
def told(tmp_path: Path, receiver: Receiver) -> Iterator[Told]:
    with running(tmp_path, webhook_host=(receiver.host,)) as server:
        yield Told(server, receiver)


def test_the_end_of_a_job_is_told_once(told: Told) -> None:
    job = told.end_job()
    assert told.call() == 1
    assert told.call(10_000) == 1
    head, _, body = told.receiver.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /done?a=1 HTTP/1.1\r\n")
    assert json.loads(body) == {"id": job, "name": "mine", "state": "done", "ended": 1_000.0}


def test_a_receiver_that_refuses_is_asked_again_at_most_four_times(told: Told) -> None:
    elsewhere = f"HTTP/1.1 302 Found\r\nLocation: http://{told.receiver.host}/other\r\n\r\n".encode()
    refused = [b"HTTP/1.1 404 No\r\n\r\n"] * 9
    told.receiver.answers = [b"HTTP/1.1 500 No\r\n\r\n", elsewhere, b"nonsense\r\n\r\n", *refused]
    told.end_job()
    counts = [told.call(after) for after in (0, 9, 2, 59, 2, 599, 2, 3599, 2, 10**6, 10**6)]
    assert counts == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5]
    assert not any(request.startswith(b"POST /other") for request in told.receiver.requests)


def test_a_job_that_is_tried_again_tells_its_last_end_alone(told: Told) -> None:
    told.receiver.answers = [b"HTTP/1.1 500 No\r\n\r\n"]
    body = {"sequence": "MKTAYIAKQR", "webhook": f"http://{told.receiver.host}/"}
    job = told.server.json("POST", JOBS, body)["id"]
    told.server.json("POST", f"{JOBS}/{job}/cancel")
    assert told.call() == 1
    told.server.json("POST", f"{JOBS}/{job}/retry")
    assert told.call(10_000) == 1
    told.server.finish(told.server.claim(), {"ranked_0.pdb": b"x"})
    assert told.call() == 2
    assert [json.loads(each.partition(b"\r\n\r\n")[2])["state"] for each in told.receiver.requests] == [
        "cancelled",
        "done",
    ]


def test_a_host_that_is_named_no_more_is_not_called(told: Told) -> None:
    told.end_job()
    object.__setattr__(told.server.service.settings, "webhook_host", ())
    assert told.call() == 0


def test_a_receiver_that_never_answers_is_asked_again_later(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[float] = []

    def send_in_vain(*_: Any, timeout: float, **__: Any) -> None:
        timeouts.append(timeout)
        raise RequestError(f"no complete answer within {timeout:g} s")

    told.end_job()
    with monkeypatch.context() as unanswered:
        unanswered.setattr(run, "send", send_in_vain)
        assert told.call() == 0
        assert timeouts == [run._WEBHOOK_TIMEOUT]
    assert [told.call(after) for after in (9, 2, 10_000)] == [0, 1, 1]


def test_no_lease_waits_for_a_receiver_that_never_answers(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_WEBHOOK_TIMEOUT", 60.0)
    monkeypatch.setattr(run, "_SECONDS_BETWEEN_ROUNDS", 0.02)
    told.receiver.answers = [None]
    first = told.end_job()
    looks_after = Maintenance(told.server.service)
    looks_after.start()
    try:
        until(lambda: told.receiver.requests)
        other = told.server.json("POST", JOBS, {"sequence": "MKTAYIAKQR"})["id"]
        assert told.server.claim()["id"] == other
        told.now += 61  # the lease of the other job ends
        until(lambda: told.server.json("GET", f"{JOBS}/{other}")["state"] == "queued")
        (row,) = told.server.service.database.rows("SELECT webhook_attempts FROM jobs WHERE id = ?", (first,))
        assert row["webhook_attempts"] == 0  # the call is still under way
    finally:
        told.receiver.close()
        looks_after.stop()
