"""A computation that is replayed as a CUDA graph is recorded once; on a CPU it is simply computed."""

from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch

from helixfold.benchmark.measurement import replayed

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
