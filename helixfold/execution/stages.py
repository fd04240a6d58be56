"""Time and peak memory of the stages of a run, such as loading and folding, for `timings.json` and benchmarks."""

import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS_FILE, _RESET_FILE = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Time and peak memory of one stage. `peak_memory` is in bytes: of tensors on a GPU, or of the whole process."""

    name: str
    seconds: float
    peak_memory: int


class Stages:
    """Recorder of the time and memory of stages. `earlier` are finished stages, such as loading the model.

    `report` is called with each stage that ends; `clock` returns seconds.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        earlier: Iterable[Stage] = (),
        report: Callable[[Stage], object] = lambda _: None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start with the finished stages `earlier`; memory is measured on `device`."""
        self.device = torch.device(device)
        self.finished = list(earlier)
        self._report, self._clock = report, clock
        self._running: dict[str, float] = {}  # start time of each unfinished stage

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Record and report the time and peak memory of the code inside as stage `name`, also if it raises an error."""
        reset_peak_memory(self.device)
        start = self._running[name] = self._clock()
        try:
            yield
        finally:
            synchronize(self.device)
            seconds = self._clock() - start
            del self._running[name]
            self.add(Stage(name=name, seconds=seconds, peak_memory=peak_memory(self.device)))

    def add(self, stage: Stage) -> None:
        """Record and report a finished stage."""
        self.finished.append(stage)
        self._report(stage)

    def table(self, *, running: bool = False) -> dict[str, dict[str, float]]:
        """Return for each stage name a dict with "seconds" (summed) and "peak_memory_gib" (maximum).

        With `running`, unfinished stages count as if they ended now.
        """
        now, rows = self._clock(), dict[str, dict[str, float]]()
        unfinished = [
            Stage(name=name, seconds=now - start, peak_memory=peak_memory(self.device))
            for name, start in (self._running.items() if running else ())
        ]
        for stage in [*self.finished, *unfinished]:
            row = rows.setdefault(stage.name, {"seconds": 0.0, "peak_memory_gib": 0.0})
            row["seconds"] = round(row["seconds"] + stage.seconds, 3)
            row["peak_memory_gib"] = round(max(row["peak_memory_gib"], stage.peak_memory / 2**30), 3)
        return rows


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished all its work; on other devices do nothing."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def mean_seconds(action: Callable[[], object], times: int = 1, device: torch.device | str = "cpu") -> float:
    """Return the mean seconds of `times` calls of `action`, including the work that they start on the device."""
    device = torch.device(device)
    synchronize(device)
    start = time.perf_counter()
    for _ in range(times):
        action()
    synchronize(device)
    return (time.perf_counter() - start) / times


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes since the last reset: of allocations on a GPU, else of the resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if _STATUS_FILE.exists():
        line = next(line for line in _STATUS_FILE.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    # `ru_maxrss` is in KiB on Linux and in bytes on macOS, and cannot be reset.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak that `peak_memory` returns, if the system supports this."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif _RESET_FILE.exists():
        try:
            _RESET_FILE.write_text("5")
        except OSError:
            return  # containers may forbid it; the peak is then the peak of the whole run so far
