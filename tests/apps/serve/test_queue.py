"""Whatever users, workers, crashes and the clock do to the queue: no job is lost, and none is done twice."""

import os
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("hypothesis")

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from data_pipeline.io.errors import InputError
from helixfold.apps.serve.queue.access import Shares
from helixfold.apps.serve.queue.database import Database
from helixfold.apps.serve.queue.jobs import Job, NewJob, QueueOptions, QuotaError
from helixfold.apps.serve.queue.queue import DuplicateKeyError, JobQueue, JobStateError, LostLeaseError, QueueViews
from tests.apps.serve.databases import audit_lines, is_intact

# Commits wait for the disk, and hypothesis makes thousands of them.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
OPTIONS = QueueOptions(max_attempts=2, lease_seconds=10, keep_days=1)


def new(user: str = "anna", residues: int = 10, key: str | None = None, digest: str = "d", size: int = 0) -> NewJob:
    return NewJob(
        user=user,
        name="protein",
        request={"sequence": "A" * residues},
        request_digest=digest,
        residues=residues,
        idempotency_key=key,
        bytes=size,
    )


class Queue(RuleBasedStateMachine):
    """Users and workers, some of whose leases have ended, and a server that is started again at any time."""

    jobs: Bundle[str] = Bundle("jobs")
    leases: Bundle[tuple[str, str]] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.now = 0.0
        self.submitted: dict[str, str] = {}  # job by idempotency key
        self.done: dict[str, str] = {}  # lease by job
        self.open()

    def open(self) -> None:
        self.database = Database(Path(self.folder.name) / "service.sqlite")
        self.queue = JobQueue(self.database, OPTIONS, clock=lambda: self.now)
        self.views = QueueViews(self.database)

    def teardown(self) -> None:
        assert is_intact(self.database)
        self.database.close()
        self.folder.cleanup()

    @rule(target=jobs, key=st.sampled_from(["a", "b", "c", "d", "e"]))
    def submit(self, key: str) -> str:
        job, is_new = self.queue.submit(new(key=key))
        assert is_new == (key not in self.submitted)
        assert self.submitted.setdefault(key, job.id) == job.id
        return job.id

    @rule(target=leases)
    def claim(self) -> object:
        waiting = self.database.rows("SELECT id FROM jobs WHERE state = 'queued' ORDER BY number")
        job = self.queue.claim("worker", ["prediction"])
        if job is None:
            assert not waiting
            return multiple()
        assert job.id == waiting[0]["id"]  # the first that came
        assert job.id not in self.done
        assert job.lease is not None
        return job.id, job.lease

    @rule(held=leases)
    def heartbeat(self, held: tuple[str, str]) -> None:
        self.expect_held(held, lambda: self.queue.heartbeat(*held, {"stages": []}))

    @rule(held=leases)
    def finish(self, held: tuple[str, str]) -> None:
        job, lease = held
        if self.done.get(job) == lease:
            self.queue.finish(*held, size=5, summary={})  # asked again, for the answer was lost
            return
        if self.expect_held(held, lambda: self.queue.finish(*held, size=5, summary={})):
            assert job not in self.done
            self.done[job] = lease

    @rule(held=leases, try_again=st.booleans())
    def fail(self, held: tuple[str, str], try_again: bool) -> None:
        self.expect_held(held, lambda: self.queue.fail(*held, "broken", try_again=try_again))

    @rule(held=consumes(leases))
    def release(self, held: tuple[str, str]) -> None:
        self.expect_held(held, lambda: self.queue.release(*held))

    def expect_held(self, held: tuple[str, str], action: object) -> bool:
        """Whether the lease was good; an action is refused exactly if it is not."""
        job = self.views.job(held[0])
        assert job is not None
        is_held = job.state == "running" and job.lease == held[1]
        if is_held:
            action()  # type: ignore[operator]
        else:
            with pytest.raises(LostLeaseError):
                action()  # type: ignore[operator]
        return is_held

    @rule(job=jobs)
    def cancel(self, job: str) -> None:
        before = self.views.job(job)
        assert before is not None
        assert self.queue.cancel(job).state == ("cancelled" if not before.has_ended else before.state)

    @rule(job=jobs)
    def retry(self, job: str) -> None:
        before = self.views.job(job)
        assert before is not None
        if before.state in ("failed", "cancelled"):
            assert self.queue.retry(job).state == "queued"
        else:
            with pytest.raises(JobStateError):
                self.queue.retry(job)

    @rule(seconds=st.sampled_from([1, 11, 40_000]))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def recover(self) -> None:
        for job in self.queue.recover():
            assert job.state in ("queued", "failed")
            assert job.lease is None

    @rule()
    def expire(self) -> None:
        for job in self.queue.expire():
            assert job.ended is not None
            assert self.now - job.ended > 86_400
            # Its key may be used again, for a new job.
            self.submitted = {key: each for key, each in self.submitted.items() if each != job.id}

    @rule()
    def start_again(self) -> None:
        self.database.close()
        self.open()
        self.queue.extend_all()

    @invariant()
    def nothing_is_lost(self) -> None:
        for job_id in self.submitted.values():
            job = self.views.job(job_id)
            assert job is not None
            assert job.losses <= OPTIONS.max_attempts
            if job_id in self.done:
                assert job.state in ("done", "expired")
            assert (job.lease is not None) >= (job.state == "running")


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestQueue.pytestmark = [pytest.mark.integration]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "service.sqlite")


def test_a_key_that_is_used_for_something_else_is_refused(database: Database) -> None:
    queue = JobQueue(database, OPTIONS)
    first, _ = queue.submit(new(key="k"))
    assert queue.submit(new("ben", key="k"))[1]  # of another user
    with pytest.raises(DuplicateKeyError):
        queue.submit(new(key="k", digest="other"))
    assert len(QueueViews(database).history("anna")) == 1
    assert audit_lines(database)[-1]["job"] == first.id


@pytest.mark.parametrize(
    ("limits", "more", "error"),
    [
        ({"max_active_jobs": 2}, new(), QuotaError),
        ({"max_active_residues": 25}, new(), QuotaError),
        ({"max_active_jobs": 3}, new(residues=2_981), QuotaError),  # 1,000 residues for each job
        ({"max_user_bytes": 100}, new(size=101), QuotaError),
        ({"max_residues": 99}, new(residues=100), InputError),
    ],
)
def test_a_user_gets_no_more_than_the_limits(
    database: Database, limits: dict[str, int], more: NewJob, error: type[Exception]
) -> None:
    queue = JobQueue(database, QueueOptions(**limits))
    assert queue.submit(new())[1]
    assert queue.submit(new())[1]
    with pytest.raises(error):
        queue.submit(more)
    assert queue.submit(new("ben"))[1]


def test_jobs_of_dead_workers_are_tried_again_and_then_fail(database: Database) -> None:
    now = [0.0]
    queue = JobQueue(database, OPTIONS, clock=lambda: now[0])
    queue.submit(new())
    for state in ("queued", "failed"):
        assert queue.claim("worker", ["prediction"]) is not None
        now[0] += OPTIONS.lease_seconds + 1
        (job,) = queue.recover()
        assert job.state == state
    assert "2 times" in (job.error or "")


def test_a_job_that_is_tried_again_needs_room_as_a_new_one_does(database: Database) -> None:
    queue = JobQueue(database, QueueOptions(max_active_jobs=2, max_active_residues=25, max_user_bytes=100))
    first, second = (queue.submit(new(size=40))[0] for _ in range(2))
    queue.cancel(first.id)
    third, _ = queue.submit(new())
    for again in (lambda: queue.retry(first.id), lambda: queue.resubmit(first.id, "anna")):
        with pytest.raises(QuotaError, match="2 queued or running jobs"):
            again()
    assert QueueViews(database).job(first.id).state == "cancelled"  # type: ignore[union-attr]
    queue.cancel(third.id)
    assert queue.retry(first.id).state == "queued"  # its bytes are not counted twice
    queue.cancel(second.id)
    large, _ = queue.submit(new(residues=15))
    with pytest.raises(QuotaError, match="2 queued or running jobs"):
        queue.retry(second.id)
    queue.cancel(large.id)
    assert queue.resubmit(second.id, "ben").user == "ben"
    assert QueueViews(database).usage("anna").active_jobs == 1


def test_no_heartbeat_extends_a_lease_beyond_the_time_limit(database: Database) -> None:
    now = [0.0]
    queue = JobQueue(database, QueueOptions(max_hours=0.1), clock=lambda: now[0])
    queue.submit(new())
    claimed = queue.claim("worker", ["prediction"])
    assert claimed is not None
    assert claimed.lease is not None
    while now[0] < 350:
        now[0] += 50
        queue.heartbeat(claimed.id, claimed.lease)
        assert queue.recover() == []
    now[0] = 361.0
    queue.heartbeat(claimed.id, claimed.lease)
    (job,) = queue.recover()
    assert (job.state, job.attempts) == ("failed", 1)
    assert "longer than 0.1 h," in (job.error or "")
    with pytest.raises(LostLeaseError):
        queue.heartbeat(claimed.id, claimed.lease)
    assert queue.retry(job.id).state == "queued"


def test_the_time_of_a_server_that_was_away_is_not_the_time_of_a_job(database: Database) -> None:
    now = [0.0]
    queue = JobQueue(database, QueueOptions(max_hours=1), clock=lambda: now[0])
    queue.submit(new())
    assert queue.claim("worker", ["prediction"]) is not None
    now[0] = 10 * 86_400.0
    queue.extend_all()
    assert queue.recover() == []
    now[0] += 61
    assert [job.state for job in queue.recover()] == ["queued"]


def test_a_server_that_was_away_lets_workers_keep_their_jobs(database: Database) -> None:
    now = [0.0]
    queue = JobQueue(database, OPTIONS, clock=lambda: now[0])
    queue.submit(new())
    claimed = queue.claim("worker", ["prediction"])
    assert claimed is not None
    assert claimed.lease is not None
    now[0] += OPTIONS.lease_seconds + 1
    queue.extend_all()
    assert queue.recover() == []
    queue.heartbeat(claimed.id, claimed.lease)


def test_a_worker_gets_the_first_job_that_its_memory_has_room_for(database: Database) -> None:
    queue = JobQueue(database, OPTIONS)
    long, short = (queue.submit(new(residues=residues))[0].id for residues in (100, 10))
    claimed = [queue.claim("worker", ["prediction"], longest) for longest in (50, 50, 100)]
    assert [None if job is None else job.id for job in claimed] == [short, None, long]


def test_results_stay_for_their_time_and_no_longer(database: Database) -> None:
    now = [0.0]
    queue = JobQueue(database, OPTIONS, clock=lambda: now[0])
    job, _ = queue.submit(new())
    queue.cancel(job.id)
    now[0] = 86_400
    assert queue.expire() == []
    now[0] += 1
    assert [each.id for each in queue.expire()] == [job.id]


def test_shared_links_end_and_their_secrets_are_not_stored(database: Database, tmp_path: Path) -> None:
    now = [0.0]
    shares = Shares(database, clock=lambda: now[0])
    secret = shares.create("a" * 32, 100)
    assert shares.find(secret) == ("a" * 32, None)
    assert shares.find(secret[:-1]) is None
    assert secret.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    now[0] = 101
    assert shares.find(secret) is None


def test_a_job_is_read_as_it_was_written(database: Database) -> None:
    queue = JobQueue(database, OPTIONS)
    job, _ = queue.submit(new())
    assert isinstance(job, Job)
    assert QueueViews(database).job(job.id) == job
