"""Predictions follow sizes, layouts and links as they must, and the fastest layout that fits is picked."""

from dataclasses import replace

import pytest
import torch

from data_pipeline.config import ConfigError
from helixfold.execution.memory import PassSize
from helixfold.execution.recompute import RecomputeConfig
from helixfold.execution.recompute_policy import TrainingNeeds
from helixfold.parallel.layout import Layout
from helixfold.parallel.machine import Line, Links, Machine
from helixfold.parallel.planner import Workload, best, predict, predictions, table, where_axial_stops
from helixfold.parallel.published import PUBLISHED, named
from helixfold.parallel.traffic import axial_bytes, gathered_rest
from helixfold.parallel.work import stacks
from helixfold.presets import model_1

SIZE = PassSize(residues=256, msa_rows=124, extra_rows=1024, templates=4, dtype=torch.bfloat16)
GIB = 2**30


def workload(order: str = "middle", parts: int = 128, keep: str = "block") -> Workload:
    model = model_1().model
    model = replace(
        model,
        evoformer=replace(model.evoformer, outer_product=order),
        extra_msa=replace(model.extra_msa, outer_product=order),
    )
    return Workload(
        needs=TrainingNeeds(model=model, size=SIZE, state=2 * GIB),
        recompute=RecomputeConfig.everywhere(keep),
        parts=parts,
        passes=1.5,
        parameters=93_000_000,
    )


def with_links(machine: Machine, fixed: float, slope: float) -> Machine:
    line = Line(fixed=fixed, slope=slope)
    links = Links(exchange=line, gather=line, scatter=line, reduce=line)
    return replace(machine, near=links, far=links)


LAYOUTS = [Layout(dp=8), Layout(dp=4, dap=2), Layout(dp=4, bp=2), Layout(dp=2, bp=2, dap=2), Layout(bp=1, dap=8)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_faster_links_never_make_a_step_slower(layout: Layout) -> None:
    work, machine = workload("end"), named("h100")
    times = [
        predict(work, layout, with_links(machine, fixed, slope)).seconds.total
        for fixed, slope in ((1e-3, 1e-9), (1e-4, 1e-9), (1e-4, 1e-11), (0.0, 0.0))
    ]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 4  # gradients at least go over them


def test_over_free_links_more_ranks_for_a_sample_make_steps_shorter_and_peaks_lower() -> None:
    work, machine = workload("end"), with_links(named("h100"), 0.0, 0.0)
    for keep in ("none", "inputs", "block"):
        asked = replace(work, recompute=RecomputeConfig.everywhere(keep))
        found = [predict(asked, Layout(dap=dap), machine) for dap in (1, 2, 4, 8)]
        assert [each.seconds.total for each in found] == sorted([each.seconds.total for each in found], reverse=True)
        assert [each.memory for each in found] == sorted([each.memory for each in found], reverse=True)
        branches = predict(asked, Layout(bp=2), machine)
        assert found[0].seconds.total / 2 < branches.seconds.total < found[0].seconds.total
        assert branches.memory <= found[0].memory


def test_the_time_of_a_step_is_the_sum_of_its_parts() -> None:
    machine = with_links(named("h100"), 0.0, 0.0)
    once, twice = (predict(workload(parts=parts), Layout(dp=8), machine).seconds for parts in (8, 16))
    assert twice.updates == pytest.approx(2 * once.updates)
    assert twice.optimizer == once.optimizer
    # Every block is made 1.5 times without gradients, once more with them and again for them.
    stack = stacks(workload().needs.model, SIZE)["evoformer"]
    block = sum(
        2.5 * machine.speeds.update("", name, each, 1.0, learns=False)
        + machine.speeds.update("", name, each, 1.0, learns=True)
        for name, each in stack.block.items()
    )
    assert 48 * block < once.updates < 1.2 * 48 * block


def test_a_block_sends_six_exchanges_and_six_gathers() -> None:
    stack = stacks(model_1().model, SIZE)["evoformer"]
    sent = [axial_bytes(stack, half, 4) for half in ("msa", "pair")]
    assert [sum(map(len, kind)) for kind in zip(*sent, strict=True)] == [6, 6]
    # A quarter of the MSA, three quarters of which go to others.
    assert sent[0][0] == [stack.msa / 4 * 3 / 4] * 2
    assert axial_bytes(stack, "pair", 1) == ([], [])


def test_once_for_every_gather_something_goes_back_where_a_pass_learns() -> None:
    work, machine = workload(parts=1), with_links(named("h100"), 0.0, 0.0)
    links = replace(machine.near, scatter=Line(fixed=1.0, slope=0.0))
    machine = replace(machine, near=links, far=links)
    found = stacks(work.needs.model, SIZE)
    of_blocks = sum(stack.blocks * (len(stack.gathered_msa) + len(stack.gathered_pair)) for stack in found.values())
    of_rest = len(gathered_rest(work.needs.model, SIZE, learns=True))
    assert predict(work, Layout(dap=2), machine).seconds.messages == of_blocks + of_rest
    assert predict(work, Layout(), machine).seconds.messages == 0


def test_what_fits_recomputes_no_more_than_it_must() -> None:
    work = replace(workload(), recompute=RecomputeConfig.everywhere("auto"))
    machine = named("h100")
    needs = {
        keep: predict(replace(work, recompute=RecomputeConfig.everywhere(keep)), Layout(dp=8), machine).memory
        for keep in ("none", "inputs", "block")
    }
    assert needs["none"] > needs["inputs"] > needs["block"]
    for keep, memory in needs.items():
        found = predict(work, Layout(dp=8), replace(machine, memory=memory))
        assert (found.recompute.evoformer, found.fits) == (keep, True)
    # Where streams are cut there is room for more.
    tight = replace(machine, memory=needs["none"] - 1)
    assert predict(work, Layout(dp=4, dap=2), tight).recompute.evoformer == "none"


def test_no_layout_that_fits_is_one_sentence() -> None:
    found = predictions(workload(), 8, replace(named("h100"), memory=GIB))
    assert not any(each.fits for each in found)
    with pytest.raises(ConfigError, match=r"no layout of 8 ranks has room: dp=1,bp=1,dap=8 takes least, .* dtype=bf"):
        best(found)


def test_branches_are_divided_only_where_blocks_have_them() -> None:
    assert {each.layout.bp for each in predictions(workload("middle"), 8, named("h100"))} == {1}
    assert {each.layout.bp for each in predictions(workload("end"), 8, named("h100"))} == {1, 2}


def test_more_ranks_than_samples_are_shared_or_idle() -> None:
    found = predictions(workload(parts=128), 2048, named("h100"))
    idle = {str(each.layout): each.idle for each in found}
    assert idle["dp=2048,bp=1,dap=1"] == 1920
    assert idle["dp=128,bp=1,dap=16"] == 0
    chosen = best(found)
    assert chosen.layout.dap > 1
    assert chosen.seconds.total == min(each.seconds.total for each in found)
    lines = list(table(found, chosen.layout))
    assert len(lines) == 1 + len(found)
    assert [line.startswith(f"> {chosen.layout}") for line in lines].count(True) == 1
    statement = where_axial_stops(found)
    assert statement.startswith(f"2,048 ranks: axial parallelism pays up to degree {chosen.layout.dap} (")
    assert f"{chosen.idle:,} ranks idle" in statement
    # With a sample for each of few ranks there is nothing to be gained.
    few = predictions(workload(parts=128), 16, named("h100"))
    assert "does not pay" in where_axial_stops(few)


def test_published_steps_are_predicted_within_a_quarter() -> None:
    for run in PUBLISHED:
        work = workload(parts=run.layout.dp, keep="block" if run.recomputes else "none")
        assert predict(work, run.layout, named(run.machine)).seconds.total == pytest.approx(run.seconds, rel=0.25)
