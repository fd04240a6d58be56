"""Ranks may be divided anew whenever a run goes on, be lost, hang, become fewer and more: it stays the same run."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch.distributed import TCPStore

from helixfold.training.checkpoint_files import checkpoint_steps
from tests.support.interruptions import Event, Kill
from tests.training.command_runs import ROOT, STEP, Run, Unbroken


@pytest.mark.long
def test_a_run_goes_on_in_any_layout_also_where_ranks_share_a_batch_unequally(store: Path, tmp_path: Path) -> None:
    alone, divided = (Run(store=store, directory=tmp_path / name) for name in ("alone", "divided"))
    alone.finish(1, steps=4, batch_size=3)
    divided.finish(2, steps=2, batch_size=3)
    replace(divided, options=("--layout=dap=2",)).finish(2, steps=4, batch_size=3)
    np.testing.assert_allclose(divided.losses(), alone.losses(), rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(divided.log(), alone.log(), strict=True):
        assert (ours.names, ours.clipped) == (theirs.names, theirs.clipped)
        assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-4)
    assert "resuming after 2 steps as dp=1,bp=1,dap=2" in (divided.directory / "log.jsonl").read_text()


@pytest.mark.parametrize(
    ("signal_number", "patience"),
    # Others see at once that a rank has ended. That it hangs they see when they have waited for so many seconds, within
    # which a rank of a busy machine may not answer either.
    [(signal.SIGKILL, 600), pytest.param(signal.SIGSTOP, 6, marks=pytest.mark.long)],
)
def test_a_rank_that_hangs_or_dies_is_named_in_time(
    signal_number: signal.Signals, patience: int, store: Path, tmp_path: Path
) -> None:
    run = Run(store=store, directory=tmp_path / "run", options=(f"--timeout={patience}",))
    kill = Kill(signal_number, Event(index=4, call=STEP))
    with run.start(3, kill, 1, steps=10_000, batch_size=3) as processes:
        for process in (processes.processes[0], processes.processes[2]):
            process.join(120)
            assert process.exitcode == 1, processes.printed()
    said = [line for line in processes.printed().splitlines() if "error" in line]
    assert len(said) == 1
    assert said[0].startswith(
        f"helixfold: error: rank 1 of 3 did not answer for {patience} s, or ended; run the same command again"
    )


def test_what_a_layout_needs_is_said(store: Path, tmp_path: Path) -> None:
    run = Run(store=store, directory=tmp_path / "run")
    for layout, said in (
        ("dp=3", "3 ranks, got 2; these fit: dp=2,bp=1,dap=1; dp=1,bp=1,dap=2; dp=1,bp=2,dap=1"),
        ("bp=2", "bp=2 needs blocks whose branches are independent, and evoformer.outer_product is 'middle'"),
    ):
        with replace(run, options=(f"--layout={layout}",)).start(2) as processes:
            assert processes.finish() == [2, 2]
        assert said in processes.printed()
    assert not run.directory.exists()


Launcher = subprocess.Popen[bytes]


@contextmanager
def torchrun(run: Run, ranks: int, output: Path, *options: str, **settings: object) -> Iterator[Launcher]:
    """The launcher of a node, which has so many ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", *options]
    command = [*launcher, "-m", "helixfold.cli.main", "train", *run.arguments(**settings)]
    with output.open("a") as out:
        # Without the second, nodes that join later may wait for addresses that those before them do not write again.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, env=environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def ranks_of(launcher: int) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]
    except FileNotFoundError:
        return []


@pytest.mark.long
def test_twenty_kills_of_one_of_four_ranks_change_no_bit(store: Path, tmp_path: Path) -> None:
    settings = {"steps": 60, "batch_size": 4}
    calm = Run(store=store, directory=tmp_path / "calm")
    calm.finish(4, seconds=600, **settings)
    run = Run(store=store, directory=tmp_path / "run", options=("--timeout=60",))
    random, kills, output = np.random.default_rng(0), 0, tmp_path / "torchrun.txt"
    options = ("--standalone", "--max-restarts=40", "--monitor-interval=0.2")
    with torchrun(run, 4, output, *options, **settings) as launcher:
        seen: set[int] = set()
        while kills < 20:
            assert launcher.poll() is None, output.read_text()[-5000:]
            ranks = ranks_of(launcher.pid)
            if len(ranks) < 4 or seen & {*ranks}:  # those of the last attempt are not all gone yet
                time.sleep(0.05)
                continue
            before = max(checkpoint_steps(run.checkpoints), default=0)
            if kills % 2:  # else while they begin
                while max(checkpoint_steps(run.checkpoints), default=0) == before and launcher.poll() is None:
                    time.sleep(0.005)
            time.sleep(random.uniform(0, 0.5))
            os.kill(int(random.choice(ranks)), signal.SIGKILL)
            seen, kills = {*ranks}, kills + 1
        assert launcher.wait(200) == 0, output.read_text()[-5000:]
    assert run.result() == calm.result()
    log = (run.directory / "log.jsonl").read_text()
    print(f"20 kills, {log.count('resuming after')} times it resumed")


@pytest.mark.long
def test_nodes_leave_and_come_back_and_the_batch_stays_what_it_was(store: Path, tmp_path: Path) -> None:
    # Long steps, so that few are made meanwhile, and small changes: what is summed in another order must not add up.
    settings = {"steps": 40, "batch_size": 16, "optimizer.learning_rate": 1e-5}
    run = Run(store=store, directory=tmp_path / "run", options=("--timeout=60", "--layout=dp=4"))
    # The nodes meet at a store of this process.
    rendezvous = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    options = (
        "--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{rendezvous.port}", "--rdzv-id=shrink",
        "--max-restarts=9", "--monitor-interval=0.2", "--rdzv-conf=is_host=0,last_call_timeout=5,join_timeout=120",
    )  # fmt: skip
    log = run.directory / "log.jsonl"

    def wait(text: str, *launchers: Launcher) -> None:
        """Until the run has gone on so, and has made steps since."""
        deadline = time.monotonic() + 200
        while True:
            said = log.read_text() if log.exists() else ""
            if said[max(0, said.rfind(text)) :].count('"type": "step"') >= 3 and text in said:
                return
            outputs = "".join(path.read_text()[-3000:] for path in tmp_path.glob("node*.txt"))
            assert time.monotonic() < deadline, outputs
            assert all(launcher.poll() is None for launcher in launchers), outputs
            time.sleep(0.05)

    with torchrun(run, 2, tmp_path / "node0.txt", *options, **settings) as first:
        with torchrun(run, 2, tmp_path / "node1.txt", *options, **settings) as second:
            wait('"step": 0', first, second)
            for pid in (second.pid, *ranks_of(second.pid)):
                os.kill(pid, signal.SIGKILL)
            second.wait()
        wait("as dp=2,bp=1,dap=1", first)
        with torchrun(run, 2, tmp_path / "node2.txt", *options, **settings) as third:
            wait("as dp=4,bp=1,dap=1", first, third)
            assert [first.wait(250), third.wait(60)] == [0, 0]
    calm = Run(store=store, directory=tmp_path / "calm")
    calm.finish(4, seconds=600, **settings)
    ours, theirs = run.losses().sum(1), calm.losses().sum(1)
    print(f"largest relative difference of losses {np.abs(ours / theirs - 1).max():.1e}")
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert [step.names for step in run.log()] == [step.names for step in calm.log()]


@pytest.mark.long
def test_torchrun_starts_a_run_again_whose_rank_hangs(unbroken: Unbroken, tmp_path: Path) -> None:
    run = Run(store=unbroken.runs[1].store, directory=tmp_path / "run", options=("--timeout=5",))
    output = tmp_path / "torchrun.txt"
    options = ("--standalone", "--max-restarts=1", "--shutdown-timeout=5", "--monitor-interval=0.2")
    with torchrun(run, 2, output, *options) as launcher:
        while not checkpoint_steps(run.checkpoints):
            assert launcher.poll() is None, output.read_text()
            time.sleep(0.005)
        os.kill(ranks_of(launcher.pid)[1], signal.SIGSTOP)
        assert launcher.wait(250) == 0, output.read_text()
    assert "rank 1 of 2 did not answer for 5 s, or ended" in output.read_text()
    assert run.result() == unbroken.runs[2].result()
