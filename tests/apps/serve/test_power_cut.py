"""After a power cut, no acknowledged job is lost or done twice, whatever the disk holds of what was not flushed."""

import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from helixfold.apps.serve.queue.jobs import Job, NewJob
from helixfold.apps.serve.service import Service
from helixfold.apps.serve.settings import ServeSettings
from tests.apps.serve.databases import is_intact
from tests.apps.serve.power_cut import SAID, Event, after_cut, record

ROWS = b">query\nMKTAYIAKQR\n"


@pytest.fixture(scope="module")
def events(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """What a service did that took and finished some jobs; their number is the fixture's parameter."""
    words = ["strace", "-qq", "-o", "/dev/null", "true"]
    if shutil.which("strace") is None or subprocess.run(words, check=False).returncode:
        pytest.skip("needs strace, and the right to trace")
    return record(tmp_path_factory.mktemp("recorded") / "disk", jobs=request.param)


def commits(events: Sequence[Event]) -> list[int]:
    """Where a commit is under way: from the first write to the log or the database up to the end of its flush."""
    found, is_open = [], False
    for number, event in enumerate(events):
        if event.path.startswith("data/service.sqlite") and not event.path.endswith("-shm"):
            is_open = event.kind != "flushed"
        if is_open:
            found.append(number)
    return found


def check_cut(events: Sequence[Event], number: int, seed: int, directory: Path) -> None:
    """Cut the power before an event, and look at what is left."""
    check(after_cut(events, number, random.Random(seed), directory), directory)


def check(said: Sequence[Sequence[str]], directory: Path) -> set[str]:
    """Start the service again, look for what it had said, let it end all jobs and return which there are."""
    (directory / "data").mkdir(exist_ok=True)
    service = Service.open(ServeSettings(data=directory / "data"))
    try:
        assert is_intact(service.database)
        submitted = {words[1]: int(words[2]) for words in said if words[0] == "submitted"}
        done = [words[1] for words in said if words[0] == "done"]
        for known in map(service.views.job, service.views.ids()):  # also jobs of which nobody was told
            assert known is not None
            assert all(service.storage.input_file(known.id, name).is_file() for name in known.request["alignments"])
        for job, index in submitted.items():
            check_submitted(service, job, index)
        for job in done:
            found = service.views.job(job)
            assert found is not None
            assert found.state == "done"
            check_result(service, found)
        service.clock = service.queue._clock = lambda: 10.0**10
        service.queue.recover()
        while (claimed := service.queue.claim("worker", ["prediction"])) is not None:
            assert claimed.id not in done
            assert claimed.lease is not None
            service.queue.finish(claimed.id, claimed.lease, size=1, summary={})
            done.append(claimed.id)
        assert set(submitted) <= {job.id for job in service.views.history("local", limit=200) if job.state == "done"}
        return service.views.ids()
    finally:
        service.close()


def check_submitted(service: Service, job: str, index: int) -> None:
    """An acknowledged job is there with its files, and is the one that its idempotency key has."""
    found = service.views.job(job)
    assert found is not None
    key, digest = f"key-{index}", found.request_digest
    new = NewJob(user="local", name="", request={}, request_digest=digest, residues=1, idempotency_key=key)
    again, is_new = service.queue.submit(new)
    assert (again.id, is_new) == (job, False)
    files = [service.storage.input_file(job, name).read_bytes() for name in found.request["alignments"]]
    assert files == ([ROWS] if index % 3 == 0 else [])


def check_result(service: Service, job: Job) -> None:
    """A result that was acknowledged is whole."""
    found = {path: service.storage.result_file(job, path) for path, _ in service.storage.results(job)}
    assert {path: file.read_bytes() for path, file in found.items() if file is not None} == {
        "ranked_0.pdb": job.id.encode(),
        "msas/rows.a3m": b">q\n",
    }
    assert job.bytes >= sum(size for _, size in service.storage.results(job))


@pytest.mark.parametrize("events", [12], indirect=True)
def test_what_was_acknowledged_survives_power_cuts_during_commits(events: list[Event], tmp_path: Path) -> None:
    assert sum(event.path == SAID for event in events) > 24
    assert any(event.path == "data/service.sqlite" and event.kind == "flushed" for event in events[-200:])
    rng = random.Random(0)
    for seed, number in enumerate(sorted(rng.sample(commits(events), 5))):
        check_cut(events, number, seed, tmp_path / str(seed))


@pytest.mark.long
@pytest.mark.parametrize("events", [24], indirect=True)
def test_what_was_acknowledged_survives_power_cuts_at_any_moment(events: list[Event], tmp_path: Path) -> None:
    rng = random.Random(1)
    for seed in range(1000):
        check_cut(events, rng.randrange(len(events) + 1), seed, tmp_path / "disk")
