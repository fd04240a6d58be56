"""A service that is killed before or after any change of a file or call of its queue loses and repeats nothing."""

from pathlib import Path

import pytest

from helixfold.apps.serve.storage import Storage
from tests.apps.serve.power_cut import SAID
from tests.apps.serve.running import running
from tests.apps.serve.test_power_cut import check
from tests.support.interruptions import State, states

pytestmark = pytest.mark.integration

QUEUE = tuple(f"helixfold.apps.serve.queue.queue:JobQueue.{name}" for name in ("submit", "claim", "finish"))


@pytest.fixture(autouse=True)
def unchecked_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads are checked in a process of their own, which changes no files of the service."""
    monkeypatch.setattr("helixfold.apps.serve.service.check_upload", lambda *_: None)


def serve_jobs(directory: Path, count: int) -> None:
    """Submit, claim and finish jobs one after the other, and note what was answered."""
    rows = [{"name": "rows.a3m", "content": ">query\nMKTAYIAKQR\n"}]
    with running(directory / "data") as server, (directory / SAID).open("a") as said:
        for number in range(count):
            body = {"sequence": "MKTAYIAKQR", "alignments": rows if number % 3 == 0 else []}
            job = server.json("POST", "/api/v1/jobs", body, headers={"Idempotency-Key": f"key-{number}"})["id"]
            print(f"submitted {job} {number}", file=said, flush=True)
            claimed = server.claim()
            server.finish(claimed, {"ranked_0.pdb": claimed["id"].encode(), "msas/rows.a3m": b">q\n"})
            print(f"done {claimed['id']}", file=said, flush=True)


def test_what_was_acknowledged_survives_a_kill_at_every_step(tmp_path: Path) -> None:
    directory = tmp_path / "service"
    directory.mkdir()
    for state in states(directory, lambda: serve_jobs(directory, 2), QUEUE):
        state.restore(directory)
        (directory / "data" / "service.sqlite-shm").unlink(missing_ok=True)  # it ends with the processes that share it
        said = (directory / SAID).read_text() if (directory / SAID).exists() else ""
        whole = said[: said.rfind("\n") + 1]
        try:
            known = check([line.split() for line in whole.splitlines()], directory)
        except AssertionError as error:
            raise AssertionError(state.label) from error
        # Files of jobs that nobody knows are gone.
        assert {path.name for path in (directory / "data" / "jobs").iterdir()} <= known, state.label


def test_a_secret_that_a_killed_server_had_not_finished_is_not_left(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "data")

    def start() -> bytes:
        storage.prepare()
        return storage.secret()

    for state in states(tmp_path / "data", start):
        state.restore(tmp_path / "data")
        secret = start()
        assert len(secret) == 32, state.label
        assert start() == secret, state.label
        names = {path.name for path in (tmp_path / "data").iterdir()}
        assert names == {"jobs", "secret.key"}, state.label


def test_a_job_that_is_removed_is_gone_whenever_the_server_is_killed(tmp_path: Path) -> None:
    directory = tmp_path / "service"
    directory.mkdir()
    serve_jobs(directory, 1)
    begin = State.of(directory, "begin")

    def remove() -> None:
        with running(directory / "data") as server:
            (job,) = server.service.views.ids()
            server.json("DELETE", f"/api/v1/jobs/{job}")

    found = states(directory, remove)
    assert len(found) > 3
    for state in (begin, *found):
        state.restore(directory)
        (directory / "data" / "service.sqlite-shm").unlink(missing_ok=True)
        with running(directory / "data") as server:
            for job in server.service.views.ids():
                server.json("DELETE", f"/api/v1/jobs/{job}")
        assert not list((directory / "data" / "jobs").iterdir()), state.label
