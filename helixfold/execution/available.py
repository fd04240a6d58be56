"""Memory and disk space that are available, read before a computation begins."""

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
# Files of control groups by version: limits, use, and the field of memory.stat for pages in use that the system can
# take back.
_GROUP_FILES = {
    1: (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
    2: (("memory.max", "memory.high"), "memory.current", "inactive_file"),
}
_OCTAL = re.compile(r"\\([0-7]{3})")
_IN_MEMORY = ("tmpfs", "ramfs")
_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "alloc_failed",
    "bad_alloc",
    "could not create a primitive",  # oneDNN has no memory for a kernel's code
)


def available_memory(device: torch.device) -> int:
    """Return the bytes that new tensors on a device may take.

    On a GPU this is its free memory and the unused memory of PyTorch's allocator. On a CPU it is the least that the
    system, the control groups (containers, batch systems) and the limits of this process leave; on systems without
    /proc it is all the memory of the machine.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    allocator.return_free_memory()
    return max(0, min(left for _, left in memory_limits()))


def memory_limits() -> Iterator[tuple[str, int]]:
    """Yield what limits the memory of this process on a CPU, and the bytes that it leaves."""
    yield MACHINE, _of_system()
    yield from _of_groups()
    yield from _of_limits()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that CUDA, PyTorch's CPU allocator, NumPy or the system had too little memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY)


def free_disk(directory: Path) -> int:
    """Return the free bytes on the disk of a directory, which need not exist yet; 0 if its files are kept in memory."""
    directory = directory.absolute()
    there = next(each for each in (directory, *directory.parents) if each.exists())
    return 0 if _file_system(there.resolve()) in _IN_MEMORY else shutil.disk_usage(there).free


@contextmanager
def limit_memory(memory: int) -> Iterator[None]:
    """Make allocations fail inside the context once the process takes more than `memory` bytes beyond its present use.

    A failed allocation can be handled. Without the limit Linux grants more memory than there is, and kills the process
    once that is used. Systems without /proc have no such limit.
    """
    held = _bytes(_PROC / "self" / "status", "VmData")
    if held is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = held + memory
    resource.setrlimit(resource.RLIMIT_DATA, (limit if soft < 0 else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _of_system() -> int:
    free = _bytes(_PROC / "meminfo", "MemAvailable")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if free is None else free


def _of_groups() -> Iterator[tuple[str, int]]:
    """Yield the limit of each control group which contains this process, and the bytes that are left."""
    for group, version in control_groups("memory"):
        limits, use, unneeded = _GROUP_FILES[version]
        for limit in limits:
            try:
                most, used = (group / limit).read_text().strip(), int((group / use).read_text())
                returned = _field(_lines(group / "memory.stat"), unneeded) or 0
            except OSError:
                continue
            if most != "max":
                yield str(group / limit), int(most) - used + returned


def _of_limits() -> Iterator[tuple[str, int]]:
    for name, kind, field in (
        ("ulimit -v", resource.RLIMIT_AS, "VmSize"),
        ("ulimit -d", resource.RLIMIT_DATA, "VmData"),
    ):
        limit, used = resource.getrlimit(kind)[0], _bytes(_PROC / "self" / "status", field)
        if limit != resource.RLIM_INFINITY and used is not None:
            yield name, limit - used


def _bytes(file: Path, field: str) -> int | None:
    """Return the bytes in a field of a /proc file, which Linux gives in KiB; None if there is no such field."""
    kib = _field(_lines(file), f"{field}:")
    return None if kib is None else kib * 1024


def _field(lines: Iterable[str], name: str) -> int | None:
    words = (line.split() for line in lines)
    return next((int(line[1]) for line in words if line[:1] == [name]), None)


def _lines(file: Path) -> list[str]:
    """Return the lines of a file of the system; an empty list if there is no such file."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _file_system(directory: Path) -> str | None:
    """Return the type of the file system of a directory, such as "ext4"; None if it is unknown."""
    # Blanks in names are written as octal numbers. If several mounts have the same path, the last counts.
    mounts = [
        (Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), words[1])), words[2])
        for words in map(str.split, _lines(_PROC / "self" / "mounts"))
    ]
    around = [mount for mount in mounts if directory.is_relative_to(mount[0])]
    return max(reversed(around), key=lambda mount: len(mount[0].parts))[1] if around else None
