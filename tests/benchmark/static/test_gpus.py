"""Estimates follow from the rates of a GPU and from what a multiprocessor holds."""

import pytest

from helixfold.benchmark.static.gpus import GPUS, LAUNCH_SECONDS, MATRIX_SHARE, MEMORY_SHARE, estimated_seconds
from helixfold.planning.machines import MACHINES, Rates

H200 = GPUS["sm_90"]


def seconds(grid: int = 132 * 4, warps: int = 8, blocks_at_once: int = 2, **work: float) -> float:
    given = {"moved": 0.0, "asked": 0.0, "flop": 0.0, "instructions": 0.0} | work
    return estimated_seconds(H200, (grid,), warps=warps, blocks_at_once=blocks_at_once, **given)


@pytest.mark.parametrize(
    ("warps", "registers", "shared_kib", "blocks"),
    [
        (8, 128, 24, 2),
        (8, 129, 24, 1),
        (4, 32, 0, 16),
        (8, 64, 112, 2),
        (8, 64, 114, 1),
        (1, 16, 0, 32),
        (16, 255, 0, 0),
    ],
)
def test_blocks_at_once_are_limited_by_the_scarcest(warps: int, registers: int, shared_kib: int, blocks: int) -> None:
    assert H200.blocks_at_once(warps, registers, 1024 * shared_kib) == blocks


def test_rates_are_those_of_the_planned_machines() -> None:
    speeds = MACHINES["h200"].speeds
    assert isinstance(speeds, Rates)
    assert (H200.matrix, H200.memory) == (speeds.product, speeds.memory)


def test_the_slowest_of_memory_and_arithmetic_counts() -> None:
    by_memory = seconds(moved=1e9, flop=1.0)
    assert by_memory == pytest.approx(1e9 / (MEMORY_SHARE * 4.8e12))
    by_products = seconds(moved=1.0, flop=1e12)
    assert by_products == pytest.approx(1e12 / (MATRIX_SHARE * 989e12))
    assert seconds(moved=1e9, flop=1e12) == max(by_memory, by_products)
    assert seconds() == LAUNCH_SECONDS


def test_idle_multiprocessors_stretch_the_arithmetic_and_not_the_memory() -> None:
    full = seconds(flop=1e12)
    assert seconds(flop=1e12, grid=132 * 4 + 1) == pytest.approx(full * 5 / (4 + 1 / 132))
    assert seconds(flop=1e12, grid=66) == pytest.approx(2 * full)
    assert seconds(moved=1e9, grid=66) == seconds(moved=1e9)


def test_few_warps_hide_less_latency() -> None:
    assert seconds(instructions=1e9, blocks_at_once=1) == pytest.approx(2**0.5 * seconds(instructions=1e9))
    assert seconds(instructions=1e9, blocks_at_once=4) == seconds(instructions=1e9)
