"""Kills, full disks and other processes: a checkpoint is on the disk whole, or it is none."""

import errno
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from data_pipeline.io.errors import InputError
from helixfold.training import checkpoint, checkpoint_files
from helixfold.training.checkpoint import Checkpoints, Restored
from tests.training.ranks import Ranks, hold, save_into_small_files
from tests.training.states import (
    ALONE,
    ROOT,
    assert_same,
    blank,
    names,
    restored,
    saved,
    state,
)


def test_leftovers_of_killed_saves_are_swept(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    shutil.copytree(tmp_path / "step_00000020", tmp_path / ".step_00000030.0123abcd.partial")
    shutil.copytree(tmp_path / "step_00000020", tmp_path / ".step_00000005.0123abcd.deleted")
    shutil.copytree(tmp_path / "step_00000020", tmp_path / ".step_00000020.0123abcd.replaced")
    (tmp_path / "step_00000010").rename(tmp_path / ".step_00000010.0123abcd.replaced")
    (tmp_path / ".best.json.0123abcd.partial").write_text("{")
    (tmp_path / ".step_mine").mkdir()
    Checkpoints(tmp_path, mesh=ALONE)
    assert names(tmp_path) == [".step_mine", "step_00000010", "step_00000020"]
    assert restored(tmp_path).step == 20


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours may run after it."""


def system_calls(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Save step 3 anew and delete step 2, again and again, killed at every change of the directory in turn."""
    before = directory.with_name("before")
    saved(before, 2, 3)
    for moment in range(1, 100):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(before, directory)
        with monkeypatch.context() as patch:
            stop = Countdown(moment)
            for name in ("rename", "mkdir", "replace", "fsync", "rmdir", "unlink"):
                patch.setattr(os, name, stop.before(getattr(os, name)))
            patch.setattr(shutil, "rmtree", stop.before(shutil.rmtree))
            try:
                checkpoint_files.write_checkpoint(directory, 3, state(4), "{}")
                checkpoint_files.remove_checkpoint(directory, 2)
            except Killed:
                pass
            else:
                return
        yield f"change {moment}"


class Countdown:
    def __init__(self, calls: int) -> None:
        self.left = calls

    def before(self, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            self.left -= 1
            if self.left <= 0:
                raise Killed
            return call(*arguments, **options)

        return counted


def test_a_kill_at_any_change_of_the_directory_leaves_the_old_set_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = []
    for moment in system_calls(tmp_path / "run", monkeypatch):
        tensors = blank()
        found = Checkpoints(tmp_path / "run", mesh=ALONE).restore(tensors)
        assert found is not None, moment
        assert (found.step, found.damaged) == (3, ()), moment
        new = found.record == {}
        assert_same(tensors, state(4 if new else 3))
        outcomes.append(new)
        steps = checkpoint_files.checkpoint_steps(tmp_path / "run")
        assert steps == [2, 3] or (new and steps == [3]), moment
        for step in steps:
            checkpoint_files.read_manifest(tmp_path / "run", step)
        assert not [name for name in names(tmp_path / "run") if name.startswith(".")], moment
    assert outcomes == sorted(outcomes)  # old ones, and from some moment on new ones
    assert {False, True} == set(outcomes)


def test_everything_is_on_the_disk_itself_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    missing: list[str] = []
    sync, rename = os.fsync, os.rename

    def noted_sync(descriptor: int) -> None:
        sync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def checked_rename(old: Path, new: Path) -> None:
        missing.extend(path.name for path in (old, *old.iterdir()) if path.stat().st_ino not in synced)
        rename(old, new)
        synced.discard(tmp_path.stat().st_ino)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "rename", checked_rename)
    checkpoint_files.write_checkpoint(tmp_path, 1, state(1), "{}")
    assert missing == []
    assert tmp_path.stat().st_ino in synced  # the new name too


def test_a_file_that_cannot_grow_fails_the_save_and_nothing_else(tmp_path: Path) -> None:
    # In a process of its own: the limit is on all its files, pytest's own output among them.
    with Ranks(1, tmp_path / "out.txt", save_into_small_files, tmp_path / "run") as process:
        assert process.finish() == [0], process.printed()
        said = process.printed()
    assert re.search(r"step 1 could not be written to .* \(File too large\); there is none yet; free", said)
    assert names(tmp_path / "run") == []


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_disk_keeps_the_last_good_one_and_the_next_save_tries_again(tiny_disk: Path) -> None:
    checkpoints = saved(tiny_disk, 1, 2)
    ballast = tiny_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(1024))
    os.truncate(ballast, max(0, ballast.stat().st_size - 8192))  # a save begins, and then does not fit
    checkpoints.save(3, state(3), {})
    checkpoints.save(4, state(4), {})  # training went on
    with pytest.raises(InputError, match="step 4 could not be written"):
        checkpoints.finish()
    assert checkpoints.problems() == [
        f"the checkpoint of step 3 could not be written to {tiny_disk} (No space left on device); "
        "the newest checkpoint is from step 2"
    ]  # and nothing of step 4, which has been told
    assert checkpoints.problems() == []
    assert names(tiny_disk) == ["ballast", "step_00000001", "step_00000002"]
    assert restored(tiny_disk).step == 2
    ballast.unlink()
    checkpoints.save(5, state(5), {"loss": 5 / 3, "notes": ["ä", None]})
    checkpoints.finish()
    assert restored(tiny_disk).step == 5


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir", "stat"])
def test_a_save_that_fails_anywhere_leaves_what_was_there(
    call: str, error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = saved(tmp_path, 1)
    for moment in (1, 2, 4):
        stop = Failing(moment, error)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, stop.before(getattr(os, call)))
            checkpoints.save(2, state(2), {"loss": 2 / 3, "notes": ["ä", None]})
            checkpoints._wait()
        if names(tmp_path) == ["step_00000001"]:
            (problem,) = checkpoints.problems()
            assert os.strerror(error) in problem
            with pytest.raises(InputError, match="step 2 could not be written"):
                checkpoints.finish()
        else:
            assert names(tmp_path) == ["step_00000001", "step_00000002"]
            assert restored(tmp_path).step == 2
            shutil.rmtree(tmp_path / "step_00000002")
            checkpoints.problems()
    assert restored(tmp_path).step == 1


class Failing(Countdown):
    """Fails one call in this checkpoint's thread."""

    def __init__(self, moment: int, error: int) -> None:
        super().__init__(moment)
        self.error = error

    def before(self, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            if threading.current_thread().name.startswith("checkpoint"):
                self.left -= 1
                if self.left == 0:
                    raise OSError(self.error, os.strerror(self.error))
            return call(*arguments, **options)

        return counted


def test_a_mistake_of_ours_in_the_background_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(checkpoint, "write_checkpoint", broken)
    checkpoints = Checkpoints(tmp_path, mesh=ALONE)
    checkpoints.save(1, state(1), {})
    with pytest.raises(RuntimeError, match="a mistake"):
        checkpoints.finish()


def test_a_program_that_ends_with_a_save_under_way_ends_after_it(tmp_path: Path) -> None:
    program = (
        "import sys, time, torch\nfrom pathlib import Path\nfrom helixfold.parallel.mesh import Mesh\n"
        "from helixfold.training import checkpoint\n"
        "write = checkpoint.write_checkpoint\n"
        "checkpoint.write_checkpoint = lambda *arguments: (time.sleep(0.5), write(*arguments))\n"
        "checkpoints = checkpoint.Checkpoints(Path(sys.argv[1]), mesh=Mesh.alone())\n"
        "checkpoints.save(3, {'t': torch.ones(3)}, {})\n"
        "raise SystemExit(3)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program, tmp_path], cwd=ROOT, check=False, timeout=600)
    assert done.returncode == 3
    tensors = {"t": torch.zeros(3)}
    assert Checkpoints(tmp_path, mesh=ALONE).restore(tensors) == Restored(step=3, record={}, damaged=())
    assert torch.equal(tensors["t"], torch.ones(3))


def test_two_runs_cannot_write_to_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ranks(1, tmp_path / "out.txt", hold, tmp_path / "run") as other:
        while not (tmp_path / "out.txt").exists() or "open" not in other.printed():
            assert not other.wait(0.01), other.printed()
        with monkeypatch.context() as patch, pytest.raises(InputError, match="another run writes its checkpoints here"):
            patch.setattr(checkpoint, "LOCK_TIMEOUT", 0.2)
            Checkpoints(tmp_path / "run", mesh=ALONE)
        with ThreadPoolExecutor(1) as waiting:  # a run that was just killed holds the directory a moment longer
            opened = waiting.submit(Checkpoints, tmp_path / "run", mesh=ALONE)
            other.kill(other.processes)
            assert opened.result(120).latest() is None


def test_a_place_that_cannot_hold_checkpoints_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file/run: cannot hold checkpoints: Not a directory"):
        Checkpoints(tmp_path / "file/run", mesh=ALONE)
