"""Record what a computation launches on a GPU as a CUDA graph, whose replay needs no time of the host."""

from functools import cache

import torch

from helixfold.benchmark.timing import Action

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
    def recorded() -> tuple[torch.cuda.CUDAGraph, object]:
        beside = torch.cuda.Stream(device)
        beside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(beside):
            for _ in range(_CALLS_BEFORE):
                action()
        torch.cuda.current_stream(device).wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = action()
        return graph, result

    def replay() -> object:
        graph, result = recorded()
        graph.replay()
        return result

    return replay
