"""Machines by name."""

from dataclasses import replace

import pytest

from helixfold.execution.recompute import RecomputeConfig
from helixfold.planning.machines import MACHINES
from helixfold.planning.passes import part_costs
from tests.planning.planned import MACHINE, RATES, workload


def test_links_are_those_of_a_node_up_to_its_size() -> None:
    machine = MACHINES["h100"]
    assert machine.links(8) is machine.near
    assert machine.links(9) is machine.far


@pytest.mark.parametrize("name", MACHINES)
def test_a_rank_takes_no_more_than_its_card_has(name: str) -> None:
    machine = MACHINES[name]
    assert 0.9 * machine.properties.memory < machine.memory < machine.properties.memory


def test_the_slower_of_products_and_memory_counts_and_every_call() -> None:
    work, properties = workload(), MACHINE.properties
    whole, block = RecomputeConfig.everywhere("none"), RecomputeConfig.everywhere("block")
    once = part_costs(work.model, work.size, "none", properties, plain=True)["evoformer"]
    cost = part_costs(work.model, work.size, "none", properties)["evoformer"]

    def seconds(keep: RecomputeConfig | None = whole, **rates: float) -> float:
        free = {"product": 1e30, "memory": 1e30}
        return replace(RATES, **{**free, **rates}).seconds(work, properties, 0, keep, "evoformer")

    forward, both = once.forward.products, once.forward.products + once.backward.products
    assert seconds(product=1.0) == both
    assert seconds(None, product=1.0) == forward
    assert seconds(block, product=1.0) == both + forward
    assert seconds(memory=1.0) == cost.forward.moved + cost.backward.moved
    assert seconds(memory=1.0, product=1e-6) == both * 1e6
    assert seconds(call=1.0) == pytest.approx(cost.forward.launches + cost.backward.launches)
