"""Predictions follow sizes, layouts and links as they must, and the fastest layout that fits is picked."""

from dataclasses import replace

import pytest

from data_pipeline.io.config import ConfigError
from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.parallel.mesh import Layout
from helixfold.planning.layouts import axial_summary, best, predict, predictions, table
from helixfold.planning.links import Line
from helixfold.planning.machines import sharings
from helixfold.planning.passes import PARTS, part_costs
from tests.planning.planned import MACHINE, RATES, with_links, workload

LAYOUTS = [Layout(dp=4, dap=2), Layout(dp=4, bp=2), pytest.param(Layout(dp=8), marks=pytest.mark.long)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_faster_links_never_make_a_step_slower(layout: Layout) -> None:
    times = [
        predict(workload("end" if layout.bp > 1 else "middle"), layout, with_links(fixed, slope)).seconds.total
        for fixed, slope in ((1e-3, 1e-9), (1e-4, 1e-9), (1e-4, 1e-11), (0.0, 0.0))
    ]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 4  # gradients at least go over them


@pytest.mark.parametrize("keep", [pytest.param("none", marks=pytest.mark.long), "block"])
def test_over_free_links_more_ranks_for_a_sample_make_steps_shorter_and_peaks_lower(keep: Keep) -> None:
    machine = with_links(0.0, 0.0)
    found = [predict(workload(keep=keep), Layout(dap=dap), machine) for dap in (1, 2, 4)]
    assert [each.seconds.total for each in found] == sorted([each.seconds.total for each in found], reverse=True)
    assert [each.needed for each in found] == sorted([each.needed for each in found], reverse=True)


def test_over_free_links_two_branches_take_less_than_one_rank_and_more_than_half() -> None:
    alone, branches = (predict(workload("end"), layout, with_links(0.0, 0.0)) for layout in (Layout(), Layout(bp=2)))
    assert alone.seconds.total / 2 < branches.seconds.total < alone.seconds.total
    assert branches.needed <= alone.needed


def test_the_time_of_a_step_is_the_sum_of_its_parts() -> None:
    machine = with_links(0.0, 0.0)
    once, twice = (predict(workload(parts=parts, keep="block"), Layout(dp=8), machine).seconds for parts in (8, 16))
    assert twice.passes == pytest.approx(2 * once.passes)
    assert twice.optimizer == once.optimizer
    assert once.total == once.passes + once.messages + once.gradients + once.optimizer
    # One sample more is one rank's second, for which the others wait.
    assert predict(workload(parts=9, keep="block"), Layout(dp=8), machine).seconds.passes == twice.passes
    work, properties, keep = workload(), machine.properties, RecomputeConfig.everywhere("block")
    learning, forward = (sum(RATES.seconds(work, properties, 0, each, part) for part in PARTS) for each in (keep, None))
    assert once.passes == pytest.approx(learning + 1.5 * forward)
    # What learns is computed forward, backward and forward again.
    assert 3 * forward < learning < 6 * forward


def test_the_slower_branch_counts() -> None:
    work, machine = workload("end"), with_links(0.0, 0.0)
    two = replace(work, layout=Layout(bp=2))
    branches = [
        [RATES.seconds(two, machine.properties, rank, work.recompute, part) for part in PARTS] for rank in (0, 1)
    ]
    assert branches[0] != branches[1]
    found = predict(replace(work, micro_batches=1, recycling_iterations=0.0), Layout(bp=2), machine).seconds
    assert found.passes == pytest.approx(sum(map(max, *branches)))


def test_every_message_of_a_pass_is_sent_over_the_links_of_its_kind() -> None:
    work = replace(workload(parts=1), recycling_iterations=0.0)
    layout = Layout(dap=2)
    costs = part_costs(work.model, work.size, "none", MACHINE.properties, layout).values()
    kinds = [kind for cost in costs for way in (cost.forward, cost.backward) for kind, _ in way.messages]
    for kind in ("all_gather", "reduce_scatter", "all_to_all"):
        links = replace(with_links(0.0, 0.0).near, **{kind: Line(fixed=1.0)})
        found = predict(work, layout, replace(MACHINE, near=links, far=links)).seconds.messages
        assert found == kinds.count(kind) > 0  # type: ignore[arg-type]
        # Only what two branches tell each other goes further than to the ranks that follow.
        assert predict(work, layout, replace(MACHINE, near=links, per_node=2)).seconds.messages == found
    assert predict(work, Layout(), MACHINE).seconds.messages == 0


def test_what_fits_recomputes_no_more_than_it_must() -> None:
    memory = {keep: predict(workload(keep=keep), Layout(dp=8), MACHINE).needed for keep in ("none", "inputs", "block")}
    assert memory["none"] > memory["inputs"] > memory["block"]
    work = workload(keep="auto")
    for keep, bytes_ in memory.items():
        found = predict(work, Layout(dp=8), replace(MACHINE, memory=bytes_))
        assert (found.policy.evoformer, found.fits) == (keep, True)
    # Where streams are cut there is room for more.
    tight = replace(MACHINE, memory=memory["none"] - 1)
    assert predict(work, Layout(dp=4, dap=2), tight).policy.evoformer == "none"


def test_no_layout_that_fits_is_one_sentence() -> None:
    found = predictions(workload("middle"), 2, replace(MACHINE, memory=2**20))
    assert not any(each.fits for each in found)
    with pytest.raises(ConfigError, match=r"no layout of 2 ranks fits into memory: dp=1,bp=1,dap=2 needs .* dtype=bf"):
        best(found)
    with pytest.raises(ConfigError, match="more ranks than samples in a batch"):
        best([])


def test_branches_are_divided_only_where_blocks_have_them() -> None:
    assert {each.bp for each in workload("middle").layouts(8)} == {1}
    assert {each.bp for each in workload("end").layouts(8)} == {1, 2}
    assert set(sharings(workload("end"), 4)) == {
        Layout(),
        Layout(dap=2),
        Layout(bp=2),
        Layout(dap=4),
        Layout(bp=2, dap=2),
    }


def test_more_ranks_than_samples_are_shared_or_idle() -> None:
    machine = with_links(1e-6, 0.0)
    found = predictions(workload(parts=1), 4, machine)
    idle = {str(each.work.layout): each.idle for each in found}
    assert idle == {"dp=4,bp=1,dap=1": 3, "dp=2,bp=1,dap=2": 2, "dp=1,bp=1,dap=4": 0}
    chosen = best(found)
    assert chosen.work.layout.dap > 1
    assert chosen.seconds.total == min(each.seconds.total for each in found)
    lines = list(table(found, chosen.work.layout))
    assert len(lines) == 1 + len(found)
    assert [line.startswith(f"> {chosen.work.layout}") for line in lines].count(True) == 1
    statement = axial_summary(found)
    assert statement.startswith(f"4 ranks: axial parallelism pays up to degree {chosen.work.layout.dap} (")
    assert (f"{chosen.idle:,} ranks idle" in statement) == (chosen.idle > 0)
    # With a sample for each of few ranks there is nothing to be gained.
    few = predictions(workload("middle", parts=8), 2, machine)
    assert "does not pay" in axial_summary(few)
