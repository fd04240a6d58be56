"""A block that is replayed as a CUDA graph is recorded once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from helixfold.benchmark.block import _replayed, random_streams


def test_a_replayed_pass_is_recorded_once_and_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = []

    def record(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[..., Any]:
        recorded.append((arguments, torch.is_grad_enabled()))
        return function

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", record)
    streams = random_streams("tiny", 3, 2, torch.float32, torch.device("cpu"))
    replay = _replayed(lambda *given: given, streams)
    assert not recorded
    assert replay() == replay() == streams
    assert recorded == [(streams, False)]
