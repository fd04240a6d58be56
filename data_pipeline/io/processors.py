"""Number of processors that this process may use, which on a shared machine is less than the machine has.

`MACHINE` is the name of the limit that the machine itself sets.
"""

import os
from collections.abc import Iterator
from pathlib import Path

MACHINE = "machine"  # name of the limit if nothing else limits memory or processors
_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def available_processors() -> int:
    """Return the number of processors that the CPU affinity and the control groups of this process allow, at least 1.

    Batch systems set the affinity (`taskset`, SLURM's task/affinity). Containers and systemd set a share of time
    (`docker --cpus`), which is rounded down, because a thread in excess of this time makes all others wait.
    """
    return max(1, int(min(count for _, count in processor_limits())))


def processor_limits() -> Iterator[tuple[str, float]]:
    """Yield the name of each limit on the processors of this process, and its value as a number of processors.

    The machine comes first, then the CPU affinity, then quotas of control groups, which may be fractions.
    """
    yield MACHINE, os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        yield "CPU affinity (taskset, SLURM)", len(os.sched_getaffinity(0))
    yield from _shares()


def control_groups(controller: str) -> Iterator[tuple[Path, int]]:
    """Yield the directory and version (1 or 2) of each control group of this process that may limit `controller`.

    `controller` is "cpu" or "memory". The process's own group comes first, then its parents up to the root. Systems
    without control groups yield nothing.
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
    """Yield the quota file of each control group that has one, and the quota as a number of processors."""
    for group, version in control_groups("cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if version == 1 else ("cpu.max",)
        try:
            quota, period = " ".join((group / name).read_text() for name in names).split()
        except (OSError, ValueError):
            continue
        if quota not in ("max", "-1"):
            yield f"{group / names[0]}", int(quota) / int(period)
