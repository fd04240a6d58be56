"""Processes find each other and tell each other what they have; a process alone needs no one."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from data_pipeline.config import ConfigError
from data_pipeline.errors import InputError
from helixfold.parallel.mesh import Group, Layout, Mesh, join


def test_a_process_alone_has_all_and_changes_nothing() -> None:
    mesh = Mesh.alone()
    tensor = torch.arange(3.0)
    mesh.all_reduce(tensor)
    assert tensor.tolist() == [0.0, 1.0, 2.0]
    assert mesh.broadcast({"a": 1}) == {"a": 1}
    assert mesh.all_gather("own") == ["own"]
    assert list(mesh.micro_batches(3)) == [0, 1, 2]
    mesh.barrier()
    assert join("cpu") == mesh


def test_parts_are_shared_out_in_order() -> None:
    cpu = torch.device("cpu")
    ranks = [Mesh(rank=2 * rank, size=6, device=cpu, data=Group(rank=rank, size=3)) for rank in range(3)]
    assert [list(mesh.micro_batches(6)) for mesh in ranks] == [[0, 1], [2, 3], [4, 5]]
    assert [list(mesh.micro_batches(5)) for mesh in ranks] == [[0], [1, 2], [3, 4]]


def test_a_run_that_goes_on_has_as_many_groups_as_there_are_ranks_for() -> None:
    assert Layout.parse("dp=4,dap=2", 4, any_dp=True) == Layout(dp=2, dap=2)
    with pytest.raises(ConfigError, match="dp=4,bp=1,dap=2 is for 8 ranks and there are 4"):
        Layout.parse("dp=4,dap=2", 4)
    with pytest.raises(ConfigError, match="5 ranks cannot be divided into groups of 2"):
        Layout.parse("dp=4,dap=2", 5, any_dp=True)


def test_two_processes_meet() -> None:
    script = Path(__file__).with_name("rendezvous_ranks.py")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=120, check=False, cwd=script.parents[2])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{rank} rank {rank} of 2 has met the other" for rank in range(2)]


def test_under_torchrun_every_process_takes_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(InputError, match="each process takes its own"):
        join("cuda:1")
