"""Replayed computations are recorded once, and rates of a machine are measured in little time."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from helixfold.benchmark import measurement
from helixfold.benchmark.measurement import BenchmarkDevice, Cost, Readings, Work, peak_rate, product_rate, replayed
from helixfold.ops.cpu.loops import unsupported_reason

GPU = torch.device("cuda", 0)


def test_a_recording_is_made_once_and_then_replayed() -> None:
    calls = []
    with (
        mock.patch.multiple(
            torch.cuda, Stream=mock.DEFAULT, current_stream=mock.DEFAULT, CUDAGraph=mock.DEFAULT,
            graph_pool_handle=mock.DEFAULT, stream=lambda _: nullcontext(), graph=lambda *_, **__: nullcontext(),
        ) as made,
    ):  # fmt: skip

        def action() -> int:
            calls.append(torch.is_grad_enabled())
            return len(calls)

        replay = replayed(action, GPU)
        assert not calls
        assert replay() == replay() == 4
    graphs: Any = made["CUDAGraph"]
    assert graphs.call_count == 1
    assert graphs.return_value.replay.call_count == 2
    assert len(calls) == 4


def test_on_a_cpu_the_action_is_called() -> None:
    def action() -> int:
        return 3

    assert replayed(action, torch.device("cpu")) is action


@pytest.mark.parametrize(("rate", "sizes"), [(1e11, {256, 2048}), (1e9, {256})])
def test_a_large_product_is_not_measured_where_it_takes_long(
    rate: float, sizes: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set[int]()

    def seconds(way: partial[Tensor], device: torch.device, repeats: int) -> float:
        size = len(way.args[0])
        found.add(size)
        return 2 * size**3 / rate

    monkeypatch.setattr(measurement, "median_seconds", seconds)
    assert product_rate(torch.device("cpu"), torch.bfloat16, 5) == pytest.approx(rate)
    assert found == sizes


def test_the_peak_is_measured_with_a_loop_that_computes_every_row() -> None:
    reason = unsupported_reason()
    if reason is not None:
        pytest.skip(reason)
    peak = import_module("helixfold.ops.cpu.compiled.peak")
    out = torch.zeros(5)
    peak.multiply_add(out)
    # x / 2 + 1 converges to 2 in each of the vectors.
    assert out.tolist() == [2.0 * peak._SUMS] * 5


@pytest.mark.parametrize("is_supported", [False, True])
def test_the_peak_is_the_rate_of_all_threads(is_supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = SimpleNamespace(FLOPS=1e6, IS_SUPPORTED=is_supported, multiply_add=len)
    monkeypatch.setattr(measurement, "compiled", lambda *_: loops)
    monkeypatch.setattr(measurement, "median_seconds", lambda action, *_: action() / 1e3)
    assert peak_rate(torch.device("cpu"), 5) == (pytest.approx(1e9) if is_supported else None)
    monkeypatch.setattr(measurement, "compiled", lambda *_: None)
    assert peak_rate(torch.device("cpu"), 5) is None


def test_float32_is_compared_with_the_peak() -> None:
    machine = BenchmarkDevice(
        device=torch.device("cpu"), name="", threads=1, versions={}, load=0.0, allocator="", peak=2e9
    )
    for dtype, share in ((torch.float32, 0.25), (torch.bfloat16, None)):
        reading = Readings(
            part="ops",
            name="",
            dtype=dtype,
            passes="",
            costs={"ours": Cost(seconds=2.0)},
            work=Work(flops=10**9, bytes=0),
        )
        assert reading.row("ours", machine)["share_of_peak"] == share
    assert "at best 2 GFLOP/s in multiply-adds of float32 in registers" in machine.lines()[2]
    assert "registers" not in replace(machine, peak=None).lines()[2]
