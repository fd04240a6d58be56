"""Replay a computation that is measured as a CUDA graph, which takes no time of the host."""

from functools import cache

import torch

from helixfold.benchmark.timing import Action
from helixfold.execution.graphs import GraphRecorder, Recording

# Calls before the recording, in which kernels are compiled and libraries allocate what they keep.
_CALLS_BEFORE = 3


def replayed(action: Action, device: torch.device) -> Action:
    """Return a call that records `action` the first time, and from then on replays it and returns the same tensors.

    The action may compute gradients. It must read and write the same memory at each call: values that are changed in
    place are seen by the next replay. On a CPU there are no graphs, and the action itself is returned.
    """
    if device.type != "cuda":
        return action

    @cache
    def recorded() -> Recording[object]:
        recorder = GraphRecorder(device)
        for _ in range(_CALLS_BEFORE):
            recorder.launch(action)
        return recorder.record(action)

    def replay() -> object:
        recording = recorded()
        recording.replay()
        return recording.result

    return replay
