"""Number of processors that this process may use, which on a shared machine is less than the machine has."""

import os
from collections.abc import Iterator
from pathlib import Path

MACHINE = "machine"  # what limits memory or processors if nothing else does
_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def available_processors() -> int:
    """Return the number of processors left by the process's CPU affinity and its control groups, at least 1.

    Batch systems set the affinity (`taskset`, SLURM's task/affinity), containers and systemd a share of time
    (`docker --cpus`), which is rounded down: a thread more than there is time for makes all others wait.
    """
    return max(1, int(min(count for _, count in processor_limits())))


def processor_limits() -> Iterator[tuple[str, float]]:
    """Yield what limits the processors of this process, and the number of them that it leaves."""
    yield MACHINE, os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        yield "CPU affinity (taskset, SLURM)", len(os.sched_getaffinity(0))
    yield from _shares()


def control_groups(controller: str) -> Iterator[tuple[Path, int]]:
    """Yield the directory and version (1 or 2) of each control group that limits `controller` for this process.

    The process's own group comes first, then those around it. Systems without control groups have none.
    """
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        version, root = (1, _GROUPS / controller) if controllers else (2, _GROUPS)
        # Inside a container the path may be the host's; the root is then the container's own group.
        inner = root / path.lstrip("/")
        for group in (inner, *inner.parents):
            yield group, version
            if group == root:
                break


def _shares() -> Iterator[tuple[str, float]]:
    """Yield the quota of each control group that has one, and its processors' worth of time."""
    for group, version in control_groups("cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if version == 1 else ("cpu.max",)
        try:
            quota, period = " ".join((group / name).read_text() for name in names).split()
        except (OSError, ValueError):
            continue
        if quota not in ("max", "-1"):
            yield f"{group / names[0]}", int(quota) / int(period)
