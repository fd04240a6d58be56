"""As many threads as the machine's other users leave: affinity and control groups count."""

import os
from pathlib import Path

import pytest
import torch

from data_pipeline.io import processors
from data_pipeline.io.processors import available_processors
from helixfold.execution.device import limit_threads


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of sixteen processors, eight of which this process may run on."""
    monkeypatch.setattr(processors, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(processors, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_the_affinity_counts_and_without_it_the_machine(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_processors() == 8
    monkeypatch.delattr(os, "sched_getaffinity")
    assert available_processors() == 16


@pytest.mark.parametrize(("quota", "count"), [("max", 8), ("600000", 6), ("350000", 3), ("50000", 1), ("1600000", 8)])
def test_the_time_that_a_group_has_counts(system: Path, quota: str, count: int) -> None:
    write(system / "proc/self/cgroup", "9:pids:/\n0::/outer/job")
    write(system / "groups/outer/job/cpu.max", "max 100000")
    write(system / "groups/outer/cpu.max", f"{quota} 100000")
    assert available_processors() == count


@pytest.mark.parametrize(("quota", "count"), [("-1", 8), ("250000", 2)])
def test_groups_of_version_1_count(system: Path, quota: str, count: int) -> None:
    write(system / "proc/self/cgroup", "4:memory:/job\n3:cpu,cpuacct:/job")
    write(system / "groups/cpu/job/cpu.cfs_quota_us", quota)
    write(system / "groups/cpu/job/cpu.cfs_period_us", "100000")
    assert available_processors() == count


def test_threads_are_limited_unless_the_user_says_how_many(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    write(system / "proc/self/cgroup", "0::/job")
    write(system / "groups/job/cpu.max", "250000 100000")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    limit_threads()
    assert chosen == []
    monkeypatch.delenv("OMP_NUM_THREADS")
    limit_threads()
    assert chosen == [2]
