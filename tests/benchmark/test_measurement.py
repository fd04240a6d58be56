"""Replayed computations are recorded once, and rates of a machine are measured in little time."""

from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from helixfold.benchmark import measurement
from helixfold.benchmark.measurement import product_rate, replayed

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
