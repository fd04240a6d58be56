"""A worker claims what is free and fits, and the claims say what is tried again, where, and how often."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_pipeline.io.claims import ClaimFiles, Claims
from data_pipeline.pipeline import Target
from helixfold.apps.cluster import worker
from helixfold.apps.cluster.worker import MAX_RETRIES, Candidate, Standing, Work, claim_lot
from helixfold.apps.options import PredictOptions


class Clock:
    """Claims of processes that share a directory; a process that dies leaves its claims behind."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.began = self.process().began

    def process(self) -> Claims:
        return Claims(ClaimFiles(self.directory), began=getattr(self, "began", None))

    def lose(self, target: str, *, retry: bool = False) -> None:
        """Claim a target by a process that dies."""
        claims = self.process()
        claims._owner = f"{claims._owner.rpartition(' ')[0]} another-start"
        assert claims.take(target, retry=retry) == "taken"

    def fail(self, target: str, reason: str) -> None:
        claims = self.process()
        assert claims.take(target, retry=True) == "taken"
        claims.end(target, "failed", reason)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / ".claims")


def standing(clock: Clock, target: str = "t") -> Standing:
    return Standing.of(target, clock.process())


def given(*sequences: str, seconds: float = 20.0, share: float = 1.0, has_max_memory: bool = False) -> Work:
    candidates = [
        Candidate(target=Target(name=f"t{number}", sequence=each), claim=f"t{number}", seconds=10.0)
        for number, each in enumerate(sequences)
    ]
    here = Path("here")
    return Work(
        working_directory=here,
        output=here,
        options=PredictOptions(),
        candidates=candidates,
        share=share,
        max_seconds=seconds,
        has_max_memory=has_max_memory,
        began=0.0,
        lot_file=here,
    )


def claimed(work: Work, claims: Claims) -> tuple[str, str]:
    """The targets of a lot, and those that are still candidates afterwards."""
    candidates = list(work.candidates)
    lot = claim_lot(work, candidates, claims)
    return tuple("".join(each.claim.removeprefix("t") for each in found) for found in (lot, candidates))  # type: ignore[return-value]


def test_what_runs_out_of_memory_is_tried_again_with_most_memory_and_then_fails(clock: Clock) -> None:
    assert standing(clock) == Standing("open")
    for tries in range(1, MAX_RETRIES + 1):
        clock.fail("t", "OutOfMemoryError: CUDA")
        assert standing(clock) == Standing("open", tries=tries, needs_max_memory=True)
    clock.fail("t", "OutOfMemoryError: CUDA")
    assert standing(clock) == Standing("ended", "OutOfMemoryError: CUDA (tried 3 times)")
    clock.fail("other", "RuntimeError: broken")
    assert standing(clock, "other") == Standing("ended", "RuntimeError: broken")


def test_what_loses_its_workers_is_tried_again_and_then_fails(clock: Clock) -> None:
    clock.lose("t")
    assert standing(clock) == Standing("open", tries=1)
    clock.lose("t")
    assert standing(clock) == Standing("open", tries=2, needs_max_memory=True)  # perhaps for want of memory
    clock.lose("t")
    assert standing(clock) == Standing("ended", "its worker was lost (tried 3 times)")


def test_what_is_given_back_is_open_and_has_not_been_tried(clock: Clock) -> None:
    claims = clock.process()
    claims.take("t")
    assert standing(clock) == Standing("held")
    claims.end("t", "released")
    assert standing(clock) == Standing("open")
    claims.take("t")
    claims.end("t", "finished")
    assert standing(clock) == Standing("ended")


def test_what_happened_before_the_batch_began_does_not_count(clock: Clock) -> None:
    clock.lose("t")
    clock.fail("u", "MemoryError")
    for path in clock.directory.iterdir():
        os.utime(path, (clock.began - 50, clock.began - 50))
    assert standing(clock) == Standing("open")
    assert standing(clock, "u") == Standing("open")
    clock.lose("t")
    assert standing(clock) == Standing("open", tries=1)


def test_a_worker_gives_back_what_it_has_claimed_when_it_is_told_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.threading, "Timer", lambda *_: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(worker, "_do", lambda *_: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(tmp_path)
    clock = Clock(tmp_path / ".claims")
    work = replace(
        given("AAA", "CCC"), working_directory=tmp_path, output=tmp_path, began=clock.began, lot_file=tmp_path / "lot"
    )
    try:
        with pytest.raises(SystemExit):
            worker.work(work)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (tmp_path / "lot").read_text() == "2"
    assert [claim.state for claim in clock.process().history("t0")] == ["released"]


def test_a_lot_has_the_first_free_candidates_and_equal_sequences_stay_together(clock: Clock) -> None:
    other, claims = clock.process(), clock.process()
    other.take("t0")
    other.take("t1")
    other.end("t1", "finished")
    clock.fail("t2", "RuntimeError: broken")
    work = given("AAA", "CCC", "DDD", "EEE", "FFF", "FFF", "GGG")
    assert claimed(work, claims) == ("345", "03456")
    assert claimed(work, other) == ("6", "03456")
    assert claimed(work, clock.process()) == ("", "03456")


@pytest.mark.parametrize(("share", "lot"), [(1.0, "0123"), (0.25, "01"), (0.01, "0")])
def test_a_lot_is_a_share_of_what_is_left(share: float, lot: str, clock: Clock) -> None:
    assert claimed(given(*"ACDEFGHI", seconds=40.0, share=share), clock.process())[0] == lot


def test_what_is_tried_again_is_alone_in_its_lot_and_waits_for_the_pool_with_most_memory(clock: Clock) -> None:
    clock.fail("t1", "OutOfMemoryError: CUDA")
    work = given("AAA", "CCC", "DDD")
    assert claimed(replace(work, candidates=work.candidates[1:]), clock.process())[0] == "2"
    assert claimed(replace(work, has_max_memory=True), clock.process())[0] == "1"
    clock.lose("t0")
    assert claimed(work, clock.process())[0] == "0"
