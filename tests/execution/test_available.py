"""What there is of memory and disk is the least of what anything leaves, and a limit turns its end into an error."""

import resource
from pathlib import Path

import pytest
import torch

from data_pipeline.io import processors
from helixfold.execution import available
from helixfold.execution.available import available_memory, free_disk, limit_memory

CPU = torch.device("cpu")
GIB = 2**30


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A system with 8 GiB free, whose control groups a test adds."""
    monkeypatch.setattr(available, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(processors, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(processors, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY,) * 2)
    write(tmp_path / "proc" / "meminfo", f"MemTotal: 999 kB\nMemAvailable:   {8 * 2**20} kB\n")
    write(tmp_path / "proc" / "self" / "status", f"VmSize:\t {2**20} kB\nVmData:\t {2**19} kB\n")
    return tmp_path


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def group(directory: Path, *, limit: object, used: int, returned: int, version: int) -> None:
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    for name, value in zip(names, (limit, used), strict=True):
        write(directory / name, value)
    write(directory / "memory.stat", f"anon 5\n{'total_' if version == 1 else ''}inactive_file {returned}")


def test_memory_is_what_the_system_has_free(system: Path) -> None:
    assert available_memory(CPU) == 8 * GIB


def test_without_proc_it_is_all_that_the_system_has(system: Path) -> None:
    (system / "proc" / "meminfo").unlink()
    assert available_memory(CPU) > GIB / 4


@pytest.mark.parametrize(("version", "line", "root"), [(1, "4:cpu,memory:/job/7", "memory"), (2, "0::/job/7", ".")])
def test_every_control_group_around_the_process_counts(system: Path, version: int, line: str, root: str) -> None:
    write(system / "proc" / "self" / "cgroup", f"9:pids:/\n{line}")
    outer, inner = system / "groups" / root / "job", system / "groups" / root / "job" / "7"
    group(outer, limit=4 * GIB, used=3 * GIB, returned=GIB // 2, version=version)
    group(inner, limit="max" if version == 2 else 2**63 - 4096, used=GIB, returned=0, version=version)
    assert available_memory(CPU) == 3 * GIB // 2
    group(inner, limit=GIB, used=GIB // 4, returned=0, version=version)
    assert available_memory(CPU) == 3 * GIB // 4


def test_in_a_container_the_root_is_the_own_group(system: Path) -> None:
    write(system / "proc" / "self" / "cgroup", "0::/path/on/the/host")
    group(system / "groups", limit=2 * GIB, used=GIB, returned=0, version=2)
    assert available_memory(CPU) == GIB


@pytest.mark.parametrize(("kind", "left"), [(resource.RLIMIT_AS, 2 * GIB), (resource.RLIMIT_DATA, 5 * GIB // 2)])
def test_the_limits_of_the_process_count(system: Path, monkeypatch: pytest.MonkeyPatch, kind: int, left: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (3 * GIB if asked == kind else -1, -1))
    assert available_memory(CPU) == left


def test_what_the_allocator_of_a_gpu_holds_unused_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: GIB)
    assert available_memory(torch.device("cuda")) == 7 * GIB


def test_a_file_system_in_memory_has_no_room_to_spill(system: Path) -> None:
    target = system / "out put" / "target"
    mounts = f"x / ext4 rw 0 0\ny {str(system).replace(' ', chr(92) + '040')}/out\\040put tmpfs rw 0 0"
    write(system / "proc" / "self" / "mounts", mounts)
    assert free_disk(target) > 0  # not made yet: what is there is asked
    target.mkdir(parents=True)
    assert free_disk(target) == 0


def test_memory_beyond_a_bound_is_refused_and_only_there() -> None:
    with limit_memory(2**26):
        torch.ones(2**22)
        # More than a heap can have left over from earlier tests.
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            torch.ones(2**30)
    torch.ones(2**26)
