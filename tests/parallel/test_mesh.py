"""Processes find each other and tell each other what they have; a process alone needs no one."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from data_pipeline.io.config import ConfigError
from data_pipeline.io.errors import InputError
from helixfold.parallel import mesh as mesh_module
from helixfold.parallel.mesh import Group, Layout, Mesh, join, layouts, make_mesh
from tests.support.networks import tiny_config


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
    with pytest.raises(ConfigError, match="layout dp=4,bp=1,dap=2 needs 8 ranks, got 4"):
        Layout.parse("dp=4,dap=2", 4)
    for ranks, text in ((5, "5 ranks cannot be divided into groups of 2"), (1, "1 rank cannot be divided")):
        with pytest.raises(ConfigError, match=text):
            Layout.parse("dp=4,dap=2", ranks, any_dp=True)


@pytest.mark.long
def test_two_processes_meet() -> None:
    script = Path(__file__).with_name("rendezvous_ranks.py")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=120, check=False, cwd=script.parents[2])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{rank} rank {rank} of 2 has met the other" for rank in range(2)]


def test_under_torchrun_every_process_takes_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(InputError, match="each process uses its own"):
        join("cuda:1")


def test_layouts_of_a_number_of_ranks_are_all_its_divisions() -> None:
    alone = [str(each) for each in layouts(4, branches=False)]
    assert alone == ["dp=4,bp=1,dap=1", "dp=2,bp=1,dap=2", "dp=1,bp=1,dap=4"]
    assert [str(each) for each in layouts(4, branches=True)] == [*alone, "dp=2,bp=2,dap=1", "dp=1,bp=2,dap=2"]
    assert max(each.dap for each in layouts(64, branches=False)) == 16
    for each in layouts(12, branches=True):
        assert Layout.parse(str(each), 12) == each
        assert (each.ranks, each.sharing) == (12, each.bp * each.dap)


def test_a_layout_without_dp_has_as_many_groups_as_there_are_ranks_for() -> None:
    assert Layout.parse("bp=2, dap=2", 12) == Layout(dp=3, bp=2, dap=2)
    with pytest.raises(ConfigError) as caught:
        Layout.parse("dap=4", 6)
    assert "6 ranks cannot be divided into groups of 4 (dap=4); these fit: dp=6,bp=1,dap=1; dp=3,bp=1,dap=2; " in str(
        caught.value
    )
    assert "dap=3" not in str(caught.value)  # powers of two alone are proposed
    for wrong in ("dp=2,dp=2", "ranks=4", "dp=x", "dp=", "dp=2;dap=2"):
        with pytest.raises(ConfigError, match="a layout must be like dp=16,bp=2,dap=2 with each name once"):
            Layout.parse(wrong, 4)
    for wrong, message in (("bp=3", "be 1 or 2"), ("dap=0", "be at least 1")):
        with pytest.raises(ConfigError, match=message):
            Layout.parse(wrong, 6)


def test_branches_need_blocks_whose_outer_product_is_at_the_end() -> None:
    middle, end = tiny_config("middle"), tiny_config("end")
    Layout(bp=1).require_blocks(middle)
    Layout(bp=2).require_blocks(end)
    with pytest.raises(ConfigError, match=r"bp=2 .* evoformer\.outer_product is 'middle'"):
        Layout(bp=2).require_blocks(middle)


def test_a_simulated_rank_has_the_place_of_the_first_of_its_branch() -> None:
    mesh = Mesh.simulated(Layout(dp=3, bp=2, dap=4), branch_rank=1)
    assert (mesh.rank, mesh.size, mesh.device.type) == (4, 24, "meta")
    assert (mesh.branch, mesh.axial) == (Group(rank=1, size=2), Group(rank=0, size=4))
    assert mesh.sample == Group(rank=4, size=8)
    assert not mesh.is_first
    assert Mesh.simulated(Layout(dap=2)).is_first
    assert mesh.axial.has_collectives
    assert not mesh.data.has_collectives


@pytest.mark.parametrize("rank", range(12))
def test_ranks_are_neighbours_along_dap_then_bp_then_dp(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are made of the right ranks: their handles are replaced by the ranks in them."""
    made: list[list[int]] = []
    handles = {"group": type("Group", (), {"WORLD": "world"})}
    monkeypatch.setattr(
        mesh_module,
        "dist",
        SimpleNamespace(
            get_rank=lambda: rank,
            get_world_size=lambda: 12,
            barrier=lambda: None,
            new_group=lambda ranks, timeout: made.append(ranks) or tuple(ranks),
            **handles,
        ),
    )
    monkeypatch.setattr(mesh_module, "_set_pg_timeout", lambda *_: None)
    mesh = make_mesh(Layout(dp=3, bp=2, dap=2), torch.device("cpu"), 5.0)
    dp, bp, dap = rank // 4, rank // 2 % 2, rank % 2
    assert mesh.data.handle == tuple(4 * group + rank % 4 for group in range(3))
    assert mesh.branch.handle == tuple(4 * dp + 2 * branch + dap for branch in range(2))
    assert mesh.axial.handle == (rank - dap, rank - dap + 1)
    assert mesh.sample.handle == tuple(range(4 * dp, 4 * dp + 4))
    assert (mesh.data.rank, mesh.branch.rank, mesh.axial.rank, mesh.sample.rank) == (dp, bp, dap, rank % 4)
    assert (mesh.rank, mesh.size, mesh.timeout, mesh.world.handle) == (rank, 12, 5.0, "world")
    # Every rank makes the groups of all ranks, in one order.
    assert sorted(each for ranks in made for each in ranks) == sorted(4 * [*range(12)])
