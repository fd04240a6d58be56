"""Whatever ends a training run, and whenever: the run that goes on is the run that was never ended."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from helixfold.training.checkpoint_files import checkpoint_steps, read_manifest
from tests.support.interruptions import Event, Kill
from tests.training.command_runs import ROOT, SAVED, STEP, STEPS, Run, Unbroken, check_kills
from tests.training.ranks import Ranks, mistake_on_ranks, restore_on_ranks, save_on_ranks


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), 2])
def test_killed_runs_end_as_the_unbroken_one_bit_for_bit(ranks: int, unbroken: Unbroken, tmp_path: Path) -> None:
    check_kills(2, ranks, unbroken, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_hundred_kills_and_a_hundred_resumes(ranks: int, unbroken: Unbroken, tmp_path: Path) -> None:
    during_saves = check_kills(100, ranks, unbroken, tmp_path, seed=1)
    print(f"on {ranks} ranks 100 kills, {during_saves} of them during a save")
    assert during_saves >= 10


@pytest.mark.parametrize(("before", "after"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.long)])
def test_a_run_goes_on_with_another_number_of_ranks(
    before: int, after: int, unbroken: Unbroken, tmp_path: Path
) -> None:
    run = Run(store=unbroken.runs[1].store, directory=tmp_path / "run")
    assert run.kill(before, Event(index=2, call=SAVED, is_after=True))  # a checkpoint is written after each second step
    begun = max(checkpoint_steps(run.checkpoints))
    assert begun < STEPS
    run.finish(after)
    ours, theirs = run.losses(), unbroken.runs[before].losses()
    assert (ours[:begun] == theirs[:begun]).all()
    # From here on gradients are summed in another order.
    np.testing.assert_allclose(ours.sum(1), theirs.sum(1), rtol=1e-6)
    assert [step.names for step in run.log()] == [step.names for step in unbroken.runs[1].log()]
    assert json.loads((run.directory / "config.json").read_text())["ranks"] == after


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), 2])
def test_asked_to_end_a_run_saves_leaves_with_143_and_goes_on(ranks: int, unbroken: Unbroken, tmp_path: Path) -> None:
    run = Run(store=unbroken.runs[1].store, directory=tmp_path / "run")
    kill = Kill(signal.SIGTERM, Event(index=3, call=STEP))
    with run.start(ranks, kill, ranks - 1, save_every=1000) as processes:
        assert processes.finish() == [143] * ranks, processes.printed()
    (done,) = checkpoint_steps(run.checkpoints)
    assert 2 <= done < STEPS
    assert [step.step for step in run.log()] == list(range(done))
    run.finish(ranks)
    # All but the record, which has the settings of this run.
    assert run.result()[1:] == unbroken.runs[ranks].result()[1:]


def test_a_run_killed_before_its_first_file_was_whole_begins_again(unbroken: Unbroken, tmp_path: Path) -> None:
    run = Run(store=unbroken.runs[1].store, directory=tmp_path / "run")
    run.directory.mkdir()
    (run.directory / ".config.json.0123abcd.partial").write_text("{")
    run.finish(1)
    assert run.result() == unbroken.runs[1].result()


def test_a_damaged_newest_checkpoint_costs_only_the_steps_since_the_one_before(
    unbroken: Unbroken, tmp_path: Path
) -> None:
    run = Run(store=unbroken.runs[1].store, directory=tmp_path / "run")
    assert run.kill(1, Event(index=2, call=SAVED, is_after=True))
    newest = max(checkpoint_steps(run.checkpoints))
    (damaged,) = run.checkpoints.glob(f"step_*{newest}/*1.safetensors")
    os.truncate(damaged, damaged.stat().st_size // 2)
    run.finish(1)
    assert run.result() == unbroken.runs[1].result()
    said = [line for line in (run.directory / "log.jsonl").read_text().splitlines() if '"restore"' in line]
    assert f"the checkpoint of step {newest} in" in said[0]
    assert "is damaged and was skipped" in said[0]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that a run fills."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_disk_keeps_the_last_good_one_and_room_lets_the_run_end(
    unbroken: Unbroken, tiny_disk: Path, tmp_path: Path
) -> None:
    run, ballast = Run(store=unbroken.runs[1].store, directory=tiny_disk / "run"), tiny_disk / "ballast"
    (one, *_) = unbroken.runs[1].checkpoints.glob("step_*")
    fill(ballast)
    # There is room for the first checkpoint and not for a second one.
    os.truncate(ballast, ballast.stat().st_size - 3 * sum(file.stat().st_size for file in one.iterdir()) // 2)
    with run.start(1) as processes:
        codes = processes.finish()
    assert codes == [2]
    assert "No space left" in processes.printed()
    assert list(checkpoint_steps(run.checkpoints)) == [2]
    read_manifest(run.checkpoints, 2)
    ballast.unlink()
    run.finish(1)
    assert run.result() == unbroken.runs[1].result()


def fill(path: Path) -> None:
    """Leave no byte free."""
    with path.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))


def test_ranks_share_one_copy_of_their_state_and_get_the_same_bits_back(tmp_path: Path) -> None:
    for ranks, function in ((2, save_on_ranks), (2, restore_on_ranks), (1, restore_on_ranks), (3, restore_on_ranks)):
        with Ranks(ranks, tmp_path / "out.txt", function, tmp_path / "state") as processes:
            assert processes.finish() == [0] * ranks, processes.printed()


def test_all_ranks_learn_of_the_first_ones_mistake(tmp_path: Path) -> None:
    for function, code in ((save_on_ranks, 0), (mistake_on_ranks, 2)):
        with Ranks(2, tmp_path / "out.txt", function, tmp_path / "state") as processes:
            assert processes.finish() == [code] * 2, processes.printed()
    # Both write to one file, and one may write between the other's sentence and its end of line.
    assert processes.printed().count("has no 'other'; resume with the settings") == 2


@pytest.mark.long
@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGTERM])
def test_torchrun_starts_a_run_again_whose_rank_was_ended(
    ended_by: signal.Signals, unbroken: Unbroken, tmp_path: Path
) -> None:
    run = Run(store=unbroken.runs[1].store, directory=tmp_path / "run")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    command = [*torchrun, "-m", "helixfold.cli.main", "train", *run.arguments()]
    with (tmp_path / "out.txt").open("w") as out:
        launcher = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=out, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        while not checkpoint_steps(run.checkpoints):
            assert launcher.poll() is None, (tmp_path / "out.txt").read_text()
            time.sleep(0.005)
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        os.kill(int(children[-1]), ended_by)
        assert launcher.wait(240) == 0, (tmp_path / "out.txt").read_text()
    assert run.result() == unbroken.runs[2].result()
    assert "resuming after" in (run.directory / "log.jsonl").read_text()
