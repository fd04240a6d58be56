"""Parts of a step are timed by running them, and what they count is what ranks really send."""

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.losses.config import LossConfig, initial_training
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import nothing_recycled
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.parallel.collectives import Message
from helixfold.parallel.mesh import Layout, Mesh, join, leave
from helixfold.parallel.parallelize import parallelize
from helixfold.planning import links, machines
from helixfold.planning.layouts import choose_layout
from helixfold.planning.passes import PARTS, PartCost, Pass, part_costs
from helixfold.planning.size import PassSize
from tests.planning.planned import small_config, workload
from tests.training.ranks import Ranks

SIZE = PassSize(residues=10, msa_rows=3, extra_rows=4, templates=0, dtype=torch.float32)
CPU = torch.device("cpu")
# More blocks than are run.
MODEL = small_config("end", blocks=3)
NONE = RecomputeConfig.everywhere("none")


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.long), torch.bfloat16])
def test_every_part_of_every_rank_is_read(dtype: torch.dtype) -> None:
    work = replace(workload(), model=MODEL, size=replace(SIZE, dtype=dtype), samples=2)
    before = torch.get_rng_state()
    layouts = [Layout(), Layout(bp=2, dap=2)]
    speeds = machines.measured_steps(work, layouts, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert set(speeds.passes) == {
        (each, rank, keep) for each in layouts for rank in range(each.bp) for keep in (None, NONE)
    }
    for layout, rank, keep in speeds.passes:
        at = replace(work, layout=layout)
        read = {part: speeds.seconds(at, DEVICE_MODELS["cpu"], rank, keep, part) for part in PARTS}
        assert [part for part, seconds in read.items() if seconds == 0] == ["template"]
        assert read == {part: 2 * seconds for part, seconds in speeds.passes[layout, rank, keep].items()}
    assert speeds.optimizer(10**6) > 0


def test_measured_passes_have_the_losses_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[LossConfig] = []

    def recorded(*arguments: Any) -> Any:
        used.append(arguments[-1])
        return total_loss(*arguments)

    monkeypatch.setattr("helixfold.planning.passes.total_loss", recorded)
    loss = replace(initial_training(), smooth_lddt=2.0)
    machines.measured_steps(replace(workload(), model=MODEL, size=SIZE, loss=loss), [Layout()], CPU)
    assert set(used) == {loss}


def test_further_blocks_take_what_the_first_one_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that ticks whenever it is read, a part takes as many ticks as it has stretches."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))

    def evoformer(blocks: int) -> float:
        model = replace(MODEL, evoformer=replace(MODEL.evoformer, blocks=blocks))
        return Pass(model, SIZE, NONE, Mesh.simulated(Layout(), device=CPU)).seconds()["evoformer"]

    assert evoformer(5) - evoformer(2) == 3 * 2  # forward and backward


@pytest.mark.parametrize(("layout", "rank"), [(Layout(dap=2), 0), (Layout(bp=2), 0), (Layout(bp=2), 1)])
def test_what_is_timed_is_what_is_counted(layout: Layout, rank: int) -> None:
    model = replace(MODEL, evoformer=replace(MODEL.evoformer, blocks=1))
    timed = Pass(model, SIZE, NONE, Mesh.simulated(layout, rank, CPU))
    timed.seconds(readings=1)
    counted = part_costs(model, SIZE, "none", DEVICE_MODELS["cpu"], layout, branch_rank=rank)
    sent = [message for way in (timed.forward, timed.backward) for each in way for message in each.work.messages]
    assert Counter(sent) == Counter(message for cost in counted.values() for message in _messages(cost))


def _messages(cost: PartCost) -> Iterator[Message]:
    for way in (cost.forward, cost.backward):
        yield from way.messages


def send(layout: str) -> None:
    """Run passes of the whole network on two ranks, and print what each has sent and what is counted for it."""
    mesh = join("cpu", layout)
    try:
        batch = random_batch(SIZE.residues, SIZE.msa_rows, SIZE.extra_rows, SIZE.templates, CPU)
        sharing, branch = replace(mesh.layout, dp=1), mesh.branch.rank
        keeps: tuple[Keep | None, ...] = ("block", None)
        for keep in keeps:
            model = AlphaFold(MODEL).train()
            messages: list[Message] = []
            run = parallelize(model, mesh, RecomputeConfig.everywhere(keep or "none"), messages=messages)
            with torch.set_grad_enabled(keep is not None):
                previous = nothing_recycled(run, MODEL, batch.seq_mask, SIZE.dtype)
                if keep is None:
                    model.fold(run, [batch], previous, SIZE.dtype)
                else:
                    outputs = model(run, [batch], previous, SIZE.dtype)
                    total_loss(outputs, batch, random_labels(batch), initial_training()).total.sum().backward()
            costs = part_costs(MODEL, SIZE, keep, DEVICE_MODELS["cpu"], sharing, branch_rank=branch)
            counted = [message for cost in costs.values() for message in _messages(cost)]
            assert Counter(messages) == Counter(counted), (keep, mesh.rank)
            assert messages
    finally:
        leave()


@pytest.mark.parametrize("layout", ["dap=2", pytest.param("bp=2", marks=pytest.mark.long)])
def test_ranks_send_the_messages_that_are_counted(layout: str, tmp_path: Path) -> None:
    with Ranks(2, tmp_path / "printed", send, layout) as ranks:
        assert ranks.finish() == [0, 0], ranks.printed()


def choose() -> None:
    """On every rank: all read something, and choose the same."""
    mesh = join("cpu")
    links._READINGS, links._CALLS = 1, 2
    try:
        work = replace(workload("middle", parts=2), recycling_iterations=1.0)
        work = replace(work, size=SIZE)
        read = links.measured_links(mesh, mesh.world)
        lines = (read.all_to_all, read.all_gather, read.reduce_scatter, read.all_reduce)
        assert all(math.isfinite(line.at(1e6)) and line.at(1e6) > 0 for line in lines)
        Pass.seconds = lambda *_, **__: dict.fromkeys(PARTS, 1.0)  # type: ignore[method-assign]
        # By itself the other rank would find no layout that fits.
        memory = 2**40 if mesh.is_first else 1
        layouts = mesh.all_gather(str(choose_layout(work, mesh, memory)))
        if mesh.is_first:
            print(*layouts)
    finally:
        leave()


def test_all_ranks_choose_the_same_layout(tmp_path: Path) -> None:
    with Ranks(2, tmp_path / "printed", choose) as ranks:
        assert ranks.finish() == [0, 0], ranks.printed()
        assert ranks.printed().split() == ["dp=2,bp=1,dap=1"] * 2
