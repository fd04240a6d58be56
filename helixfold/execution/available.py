"""Available memory and disk space, and limits on the memory of this process."""

import errno
import os
import re
import resource
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from data_pipeline.io.processors import MACHINE, control_groups
from helixfold.execution import allocator

_PROC = Path("/proc")
# Files of control groups by version: limits, usage, and the field of memory.stat with the pages that the system can
# reclaim.
_GROUP_FILES = {
    1: (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
    2: (("memory.max", "memory.high"), "memory.current", "inactive_file"),
}
# A character in a path of /proc/self/mounts, written as an octal number.
_OCTAL_CHARACTER = re.compile(r"\\([0-7]{3})")
# Types of file systems whose files take memory instead of disk space.
_MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")
# Words in the messages of errors that mean a lack of memory, in lower case.
_OUT_OF_MEMORY_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "alloc_failed",
    "bad_alloc",
    "could not create a primitive",  # oneDNN has no memory for a kernel's code
)


def available_memory(device: torch.device) -> int:
    """Return the bytes available for new tensors on a device.

    On a GPU this is its free memory plus the unused memory of PyTorch's allocator. On a CPU it is the minimum of what
    the system, the control groups (containers, batch systems) and the limits of this process leave, at least 0. The
    freed memory of this process is returned to the system first. On systems without /proc it is the whole memory of the
    machine.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    allocator.return_free_memory()
    return max(0, min(left for _, left in memory_limits()))


def memory_limits() -> Iterator[tuple[str, int]]:
    """Yield the name of each limit on this process's memory on a CPU, and the bytes left under it, at times negative.

    The limits are the free memory of the machine, control groups and `ulimit`.
    """
    yield MACHINE, _system_memory()
    yield from _control_group_limits()
    yield from _process_limits()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that CUDA, PyTorch's CPU allocator, NumPy or the system ran out of memory.

    The type, the error number, or for a RuntimeError the words of the message decide.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY_WORDS)


def free_disk(directory: Path) -> int:
    """Return the free bytes on the disk of a directory, which need not exist yet; 0 if it is a memory file system."""
    directory = directory.absolute()
    existing = next(each for each in (directory, *directory.parents) if each.exists())
    return 0 if _file_system(existing.resolve()) in _MEMORY_FILE_SYSTEMS else shutil.disk_usage(existing).free


@contextmanager
def limit_memory(memory: int) -> Iterator[None]:
    """Make allocations fail inside the context if the process needs over `memory` bytes more than it uses now.

    A failed allocation can be handled. Without the limit Linux grants more memory than the machine has, and kills the
    process once it is used. On systems without /proc nothing is limited.
    """
    used = _bytes(_PROC / "self" / "status", "VmData")
    if used is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = used + memory
    resource.setrlimit(resource.RLIMIT_DATA, (limit if soft < 0 else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _system_memory() -> int:
    """Return the bytes of memory that the system can provide; without /proc, all memory of the machine."""
    free = _bytes(_PROC / "meminfo", "MemAvailable")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if free is None else free


def _control_group_limits() -> Iterator[tuple[str, int]]:
    """Yield the limit file of each control group that contains this process, and the bytes left under it."""
    for group, version in control_groups("memory"):
        limits, usage, reclaimable_field = _GROUP_FILES[version]
        for name in limits:
            try:
                limit, used = (group / name).read_text().strip(), int((group / usage).read_text())
                reclaimable = _field(_lines(group / "memory.stat"), reclaimable_field) or 0
            except OSError:
                continue
            if limit != "max":
                yield str(group / name), int(limit) - used + reclaimable


def _process_limits() -> Iterator[tuple[str, int]]:
    """Yield the name of each finite limit set by `ulimit`, and the bytes left under it."""
    for name, kind, field in (
        ("ulimit -v", resource.RLIMIT_AS, "VmSize"),
        ("ulimit -d", resource.RLIMIT_DATA, "VmData"),
    ):
        limit, used = resource.getrlimit(kind)[0], _bytes(_PROC / "self" / "status", field)
        if limit != resource.RLIM_INFINITY and used is not None:
            yield name, limit - used


def _bytes(file: Path, field: str) -> int | None:
    """Return the bytes in a field of a /proc file, which are in KiB there; None if the field is missing."""
    kib = _field(_lines(file), f"{field}:")
    return None if kib is None else kib * 1024


def _field(lines: Iterable[str], name: str) -> int | None:
    """Return the number after the word `name` at the start of a line; None without such a line."""
    words = (line.split() for line in lines)
    return next((int(line[1]) for line in words if line[:1] == [name]), None)


def _lines(file: Path) -> list[str]:
    """Return the lines of a system file; an empty list if it does not exist."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _file_system(directory: Path) -> str | None:
    """Return the type of the file system of a directory, such as "ext4"; None if it is unknown."""
    # Blanks in paths are written as octal numbers. If several mounts have the same path, the last one is in use.
    mounts = [
        (Path(_OCTAL_CHARACTER.sub(lambda match: chr(int(match[1], 8)), words[1])), words[2])
        for words in map(str.split, _lines(_PROC / "self" / "mounts"))
    ]
    around = [mount for mount in mounts if directory.is_relative_to(mount[0])]
    return max(reversed(around), key=lambda mount: len(mount[0].parts))[1] if around else None
