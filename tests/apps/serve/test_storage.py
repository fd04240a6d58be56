"""The data directory of a service: only its owner can read it, and what is deleted is gone."""

import fcntl
import os
import random
import signal
import stat
import subprocess
import sys
import time
from datetime import date, datetime, timedelta
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from helixfold.apps.serve.client import Client
from helixfold.apps.serve.queue.database import Database
from helixfold.apps.serve.queue.jobs import JobKind, NewJob, QueueOptions
from helixfold.apps.serve.queue.queue import JobQueue
from helixfold.apps.serve.run import only_server
from helixfold.apps.serve.storage import Storage, make_private
from helixfold.apps.serve.tokens import TokenFile
from helixfold.cli.main import main
from tests.apps.serve.databases import is_intact
from tests.apps.serve.running import Running, running

COMMAND = (sys.executable, "-m", "helixfold.cli.main", "serve")


def modes_of(directory: Path) -> dict[str, str]:
    paths = [directory, *directory.rglob("*")]
    return {path.relative_to(directory).as_posix(): oct(stat.S_IMODE(path.stat().st_mode)) for path in paths}


def private(modes: dict[str, str], directories: set[str]) -> dict[str, str]:
    return {name: "0o700" if name in directories else "0o600" for name in modes}


def test_token_ends_with_its_last_day(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["serve", "token", "create", "anna", "--data", str(tmp_path), "--until"]
    today = date.today()
    for last in (today + timedelta(days=1), today + timedelta(days=200)):
        assert main([*command, str(last)]) == 0
        midnight = datetime.combine(last + timedelta(days=1), datetime.min.time()).timestamp()
        assert TokenFile(tmp_path).all()[-1].expires == pytest.approx(midnight, abs=60)
    assert main([*command, str(today - timedelta(days=1))]) == 2
    assert "--until must be today or later" in capsys.readouterr().err


@pytest.mark.integration
def test_directory_is_private_when_a_token_is_created_before_the_server_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"

    def create(*words: str, umask: int) -> str:
        before = os.umask(umask)
        try:
            assert main(["serve", "token", "create", *words, "--data", str(data)]) == 0
        finally:
            os.umask(before)
        return capsys.readouterr().out.strip()

    create("anna", umask=0)
    assert modes_of(data) == {".": "0o700", "tokens.json": "0o600", "tokens.lock": "0o600"}
    token = create("node", "--worker", umask=0o022)
    options = ["--data", data, "--port", "0", "--workers", "0"]
    with subprocess.Popen([*COMMAND, *map(str, options)], umask=0, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            with Client(url) as client:
                client.service()  # asked again until the server answers
            server = Running(None, int(url.rpartition(":")[2]), token, {})  # type: ignore[arg-type]
            rows = {"name": "rows.a3m", "content": ">query\nMKTAYIAKQR\n"}
            job = server.json("POST", "/api/v1/jobs", {"sequence": "MKTAYIAKQR", "alignments": [rows]})["id"]
            server.finish(server.claim(), {"report.html": b"x", "msas/rows.a3m": b"x"})
            assert server.asked("GET", f"/api/v1/jobs/{job}/archive")[0] == 200
            modes = modes_of(data)
        finally:
            process.send_signal(signal.SIGTERM)
    folders = {".", "jobs", *(f"jobs/{job}{path}" for path in ("", "/1", "/1/msas", "/inputs"))}
    assert folders | {f"jobs/{job}/{path}" for path in ("inputs/alignment_0.a3m", "1/report.html")} <= set(modes)
    assert {"server.lock", "secret.key", "service.sqlite", "service.sqlite-wal", "service.sqlite-shm"} <= set(modes)
    assert modes == private(modes, folders)


def test_modes_of_an_existing_directory_are_repaired(tmp_path: Path) -> None:
    data = tmp_path / "data"
    inputs = data / "jobs" / ("0" * 32) / "inputs"
    inputs.mkdir(parents=True)
    files = [data / "service.sqlite", data / "tokens.json", data / "secret.key", inputs / "template_0.cif"]
    for path in files:
        path.touch()
    other = tmp_path / "other"
    other.touch(0o644)
    (data / "server.lock").symlink_to(other)
    before = stat.S_IMODE(other.stat().st_mode)
    for path in (data, data / "jobs", inputs.parent, inputs, *files):
        path.chmod(0o777 if path.is_dir() else 0o666)
    (data / "drafts" / "anna").mkdir(parents=True)  # of an earlier version
    Storage(data).prepare()
    modes = modes_of(data)
    link = modes.pop("server.lock")
    assert modes == private(modes, {".", "jobs", f"jobs/{'0' * 32}", f"jobs/{'0' * 32}/inputs"})
    assert link == oct(before)  # what a link leads to is left alone


@pytest.mark.integration
def test_revoke_does_not_wait_for_a_lock_that_another_user_opened_earlier(tmp_path: Path) -> None:
    TokenFile(tmp_path).create("anna")
    lock = tmp_path / "tokens.lock"
    lock.chmod(0o644)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        revoke = [*COMMAND, "token", "revoke", "anna", "--data", str(tmp_path)]
        with subprocess.Popen(revoke, stdout=subprocess.PIPE, text=True) as process:
            until = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            process.kill()
            assert process.stdout is not None
            assert "of anna is revoked" in process.stdout.read()
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600


def test_secret_is_made_once_and_private(tmp_path: Path) -> None:
    left = tmp_path / ".secret.key.0123abcd.partial"  # of a server that was killed
    left.touch()
    Storage(tmp_path).prepare()
    secret = Storage(tmp_path).secret()
    assert len(secret) == 32
    assert Storage(tmp_path).secret() == secret
    assert modes_of(tmp_path)["secret.key"] == "0o600"
    assert not left.exists()
    (tmp_path / "secret.key").write_bytes(b"short")  # of a machine that lost its power
    assert len(Storage(tmp_path).secret()) == 32


def test_second_server_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    refused = pytest.raises(InputError, match="another server uses this directory")
    with only_server(tmp_path), refused, only_server(tmp_path):
        pass
    with only_server(tmp_path):
        assert modes_of(tmp_path)["server.lock"] == "0o600"


def test_directory_that_all_users_share_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(InputError, match="all users of this machine share it"):
        make_private(tmp_path)
    assert os.stat(tmp_path).st_mode & 0o7777 == 0o1777


@pytest.mark.integration
def test_nothing_of_what_was_asked_for_is_left_on_the_disk_after_a_job_is_deleted(tmp_path: Path) -> None:
    draw = random.Random(1)
    sequences = ["".join(draw.choices("ACDEFGHIKLMNPQRSTVWY", k=k)) for k in (30, 3_000, 300, 1_000, 60, 400, 2_000)]
    with running(tmp_path, offers=None) as server:

        def submitted(sequence: str) -> str:
            key = {"Idempotency-Key": sequence[:30]}
            return str(server.json("POST", "/api/v1/jobs", {"sequence": sequence}, headers=key)["id"])

        def on_disk(sequence: str) -> bool:
            content = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
            return any(part.encode() in content for part in (sequence[:20], sequence[-20:]))

        jobs = [submitted(sequence) for sequence in sequences]
        for _ in jobs:
            claimed = server.claim()
            text = claimed["request"]["sequence"]
            progress = {"progress": {"stages": [], "lines": [text[:100]]}}
            server.as_worker("POST", "/heartbeat", claimed, content=progress)
            server.as_worker("POST", "/fail", claimed, content={"error": f"no room for {text}"})
        assert all(map(on_disk, sequences))
        for job in jobs[:-1]:
            server.json("DELETE", f"/api/v1/jobs/{job}")
        assert [on_disk(sequence) for sequence in sequences] == [False] * 6 + [True]
        assert server.json("GET", f"/api/v1/jobs/{jobs[-1]}")["sequence"] == sequences[-1]
        deleted = server.json("GET", f"/api/v1/jobs/{jobs[0]}")
        assert (deleted["state"], deleted["sequence"], deleted["residues"]) == ("expired", "", 30)
        assert server.asked("GET", f"/jobs/{jobs[0]}", headers={"Accept": "text/html"})[0] == 200
        assert is_intact(server.service.database)
        # The same key may be used again.
        assert server.json("GET", f"/api/v1/jobs/{submitted(sequences[0])}")["state"] == "queued"


def test_expired_jobs_and_searches_leave_nothing_of_what_they_asked_for(tmp_path: Path) -> None:
    now = [0.0]
    database = Database(tmp_path / "service.sqlite")
    queue = JobQueue(database, QueueOptions(keep_days=1), clock=lambda: now[0])
    kinds: tuple[JobKind, ...] = ("prediction", "alignment")
    for kind in kinds:
        content = {"sequence": f"MKTAYIAKQR{kind}"}
        new = NewJob(user="anna", name=kind, request=content, request_digest="d", residues=10, kind=kind)
        queue.cancel(queue.submit(new)[0].id)
    now[0] = 90_000
    assert [job.kind for job in queue.expire()] == list(kinds)
    database.empty_log()
    assert b"MKTAYIAKQR" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert [(row["kind"], row["state"]) for row in database.rows("SELECT * FROM jobs")] == [("prediction", "expired")]
    database.close()
