"""Short readings of a device and of links: made for every update, and agreed on by all ranks."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helixfold.execution.memory import PassSize
from helixfold.execution.random_inputs import random_batch
from helixfold.execution.recompute import RecomputeConfig
from helixfold.execution.recompute_policy import TrainingNeeds
from helixfold.model.alphafold import AlphaFold
from helixfold.parallel import links, probe
from helixfold.parallel.axial import Axial
from helixfold.parallel.mesh import join, leave
from helixfold.parallel.planner import Workload, chosen_layout
from helixfold.parallel.traffic import axial_bytes
from helixfold.parallel.work import stacks
from helixfold.presets import tiny
from tests.training.ranks import Ranks

SIZE = PassSize(residues=10, msa_rows=3, extra_rows=4, templates=1, dtype=torch.float32)
CPU = torch.device("cpu")


def once(action: Callable[[], object], device: torch.device) -> float:
    """Instead of a reading: that it can be made."""
    action()
    return 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_update_and_the_rest_are_read(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(probe, "least_seconds", once)
    model = tiny().model
    size = PassSize(residues=10, msa_rows=3, extra_rows=4, templates=1, dtype=dtype)
    before = torch.get_rng_state()
    speeds = probe.measured_speeds(model, size, RecomputeConfig.everywhere("auto"), CPU)
    assert torch.equal(torch.get_rng_state(), before)
    for name, stack in stacks(model, size).items():
        for update, work in stack.block.items():
            for learns in (False, True):
                assert speeds.update(name, update, work, 0.5, learns=learns) == pytest.approx(1.0)
    assert speeds.rest(0.5, learns=True) == pytest.approx(1.0)
    assert speeds.optimizer(10**6) > 0


def test_a_share_of_an_update_is_its_first_rows() -> None:
    calls = probe.updates_of(AlphaFold(tiny().model).eval(), SIZE, CPU)
    seen: list[tuple[int, ...]] = []
    call = calls["evoformer"]["triangle_incoming"]
    call.update.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
    for share in (1.0, 0.5, 0.25):
        call.on(share, learns=False)()
    # Columns are what it is independent along, and come first to it.
    assert [shape[1:3] for shape in seen] == [(10, 10), (5, 10), (3, 10)]


def test_the_shortest_of_some_readings_counts() -> None:
    calls: list[int] = []
    assert 0 < probe.least_seconds(lambda: calls.append(0), CPU) < 1e-2
    assert len(calls) > 100  # what is short is repeated


def sent_in_a_block() -> None:
    """What ranks send in one block's forward pass: what a network of two blocks sends more than one of one."""
    mesh = join("cpu", "dap=2")
    try:
        found = []
        for blocks in (1, 2):
            config = tiny().model
            model = AlphaFold(replace(config, evoformer=replace(config.evoformer, blocks=blocks))).eval()
            run = Axial(mesh.axial)
            batch = random_batch(SIZE.residues, SIZE.msa_rows, SIZE.extra_rows, SIZE.templates, CPU)
            with torch.no_grad():
                model.fold(run, [batch])
            found.append(run.channel.traffic.sent)
        if mesh.is_first:
            print(*(found[1][kind] - found[0][kind] for kind in ("all_to_all", "all_gather")))
    finally:
        leave()


@pytest.mark.distributed
def test_ranks_send_the_bytes_that_are_planned_for(tmp_path: Path) -> None:
    stack = stacks(tiny().model, SIZE)["evoformer"]
    planned = [axial_bytes(stack, half, 2) for half in ("msa", "pair")]
    with Ranks(2, tmp_path / "printed", sent_in_a_block) as ranks:
        assert ranks.finish() == [0, 0], ranks.printed()
        sent = [float(number) for number in ranks.printed().split()]
    assert sent == [sum(map(sum, kind)) for kind in zip(*planned, strict=True)]


def choose() -> None:
    """On every rank: all read something, and choose the same."""
    mesh = join("cpu")
    try:
        work = Workload(
            needs=TrainingNeeds(model=tiny().model, size=SIZE),
            recompute=RecomputeConfig.everywhere("none"),
            parts=2,
            passes=1.0,
            parameters=1000,
        )
        read = links.measured_links(mesh, mesh.world)
        assert all(
            math.isfinite(line.at(1e6)) and line.at(1e6) > 0
            for line in (read.exchange, read.gather, read.scatter, read.reduce)
        )
        probe.least_seconds = lambda action, device: 1.0  # type: ignore[assignment]
        # By itself the other rank would find no layout that fits.
        memory = 2**40 if mesh.is_first else 1
        layouts = mesh.gather(str(chosen_layout(work, mesh, memory)))
        if mesh.is_first:
            print(*layouts)
    finally:
        leave()


@pytest.mark.distributed
def test_all_ranks_choose_the_same_layout(tmp_path: Path) -> None:
    with Ranks(2, tmp_path / "printed", choose) as ranks:
        assert ranks.finish() == [0, 0], ranks.printed()
        assert ranks.printed().split() == ["dp=2,bp=1,dap=1"] * 2
