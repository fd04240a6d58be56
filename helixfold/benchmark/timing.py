"""Measure seconds and peak memory of several ways to do the same work, alternately, on one device."""

import gc
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from helixfold.execution.allocator import return_free_memory, returning_freed_memory
from helixfold.execution.graphs import GraphRecorder, Recording
from helixfold.execution.stages import mean_seconds, peak_memory, reset_peak_memory, synchronize

Action = Callable[[], object]
# A reading on a CPU lasts at least so long; shorter work is repeated.
_LEAST_SECONDS = 5e-3
_LINE_LENGTH = 200
# Calls before a recording, in which kernels are compiled and libraries allocate what they keep.
_CALLS_BEFORE = 3
PLAIN, WHOLE = "plain", "whole"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Median seconds of a computation, and its peak memory in bytes beyond what was held before.

    `failure` is the error if it failed; seconds are then NaN.
    """

    seconds: float = math.nan
    memory: int = 0
    failure: str | None = None


def measure(ways: Mapping[str, Action], device: torch.device, repeats: int) -> dict[str, Cost]:
    """Return the cost of each way from `repeats` readings; a way that raises an error has that as its failure.

    Readings of the ways alternate, so that none of them alone has the times in which the machine is faster.
    """
    memory: dict[str, int] = {}
    failures: dict[str, str] = {}
    for name, action in ways.items():
        try:
            action()
            memory[name] = peak_of(action, device)
        # Any error of a kernel or a peer on this machine is its result; the others are still measured.
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {str(error).strip()[:_LINE_LENGTH]}"
    running = {name: action for name, action in ways.items() if name in memory}
    seconds: dict[str, list[float]] = {name: [] for name in running}
    # This call gets back the pages that the measurement of memory gave away, and is not counted.
    times = {name: max(1, math.ceil(_LEAST_SECONDS / _seconds(running[name], device))) for name in running}
    for _ in range(repeats):
        for name, action in running.items():
            seconds[name].append(_seconds(action, device, times[name]))
    found = {name: Cost(seconds=statistics.median(seconds[name]), memory=memory[name]) for name in running}
    return found | {name: Cost(failure=failure) for name, failure in failures.items()}


def median_seconds(action: Action, device: torch.device, repeats: int) -> float:
    """Return the median seconds of `repeats` calls, after a first one that is not counted."""
    return statistics.median([_seconds(action, device) for _ in range(repeats + 1)][1:])


def measure_parts(parts: Mapping[str, Action], device: torch.device, repeats: int) -> dict[str, Cost]:
    """Return the cost of parts that run one after the other, and of all of them together as "whole".

    The first round measures memory; its time counts only if `repeats` is 1.
    """
    seconds: dict[str, list[float]] = {name: [] for name in (*parts, WHOLE)}
    memory: dict[str, int] = {}
    settle()
    reset_peak_memory(device)
    start = most = held_memory(device)
    for number in range(repeats if repeats == 1 else repeats + 1):
        total = 0.0
        for name, action in parts.items():
            reset_peak_memory(device)
            held = held_memory(device)
            seconds[name].append(mean_seconds(action, device=device))
            total += seconds[name][-1]
            if number == 0:
                memory[name] = max(0, peak_memory(device) - held)
                most = max(most, peak_memory(device))
        if WHOLE not in parts:
            seconds[WHOLE].append(total)
    memory.setdefault(WHOLE, most - start)
    return {
        name: Cost(seconds=statistics.median(found[repeats > 1 :]), memory=memory[name])
        for name, found in seconds.items()
    }


def settle() -> None:
    """Free the memory that earlier measurements left in this process."""
    gc.collect()
    return_free_memory()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_of(action: Action, device: torch.device) -> int:
    """Return the peak memory of an action in bytes, beyond what is held before.

    On a CPU, freed memory is given back to the system at once, so that it does not count.
    """
    gc.collect()
    with returning_freed_memory():
        return peak_beyond(action, device)


def peak_beyond(action: Action, device: torch.device) -> int:
    """Return the peak memory of an action in bytes, beyond what is held before, with the allocator as it is set."""
    synchronize(device)
    reset_peak_memory(device)
    start = held_memory(device)
    action()
    synchronize(device)
    return max(0, peak_memory(device) - start)


def held_memory(device: torch.device) -> int:
    """Return the bytes in use now; on a CPU this is right only just after the peak was reset."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else peak_memory(device)


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


def _seconds(action: Action, device: torch.device, times: int = 1) -> float:
    """Return the seconds of one call; on a CPU the mean over `times`."""
    return _seconds_on_gpu(action, device) if device.type == "cuda" else mean_seconds(action, times)


def _seconds_on_gpu(action: Action, device: torch.device) -> float:
    """Return the seconds of a call between GPU events, with its operands out of the cache as in a network."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # While this runs, the CPU queues the kernels that follow.
    _cache_sweep(device).zero_()
    start.record()
    action()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end) / 1e3


@cache
def _cache_sweep(device: torch.device) -> Tensor:
    return torch.empty(2**28, dtype=torch.uint8, device=device)
