"""One process holds a lock, however the last one ended."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.io.file_lock import acquire_lock

# A process that locks a file, forks a child that outlives it, and waits.
HOLDER = """
import os, sys
from pathlib import Path
from data_pipeline.io.file_lock import acquire_lock
lock = acquire_lock(Path(sys.argv[1]), "in use", timeout=0)
if os.fork() == 0:
    os.write(1, b"locked\\n")  # by the child, which lets go of the lock as soon as it runs
    os.read(0, 1)  # until the pipe is closed
    os._exit(0)
sys.stdin.read()
"""


def test_a_lock_ends_with_a_killed_process_though_its_child_lives(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"locked\n"
        with pytest.raises(InputError, match=f"{tmp_path}: in use"):
            acquire_lock(path, "in use", timeout=0)
        run.kill()
        run.wait()
        with acquire_lock(path, "in use", timeout=0):
            pass
        assert not path.read_bytes()


def test_a_released_lock_can_be_acquired_and_its_file_remains(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with acquire_lock(path, "in use", timeout=0, mode=0o600):
        with path.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert path.stat().st_mode & 0o777 == 0o600
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_no_lock_is_made_through_a_link_or_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to("precious")
    with pytest.raises(OSError, match="Too many levels"):
        acquire_lock(tmp_path / "link", "in use", timeout=0)

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(OSError, match="not implemented"):
        acquire_lock(tmp_path / "lock", "in use", timeout=0)
