"""Checkpoints are whole or absent, whatever happens to the process, the disk or the files."""

import errno
import json
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
from torch import Tensor

from data_pipeline.errors import InputError
from helixfold.config import ConfigError
from helixfold.parallel.mesh import Mesh
from helixfold.training import checkpoint, checkpoint_files
from helixfold.training.checkpoint import Checkpoints, Restored
from tests.training.ranks import Ranks, hold

ROOT = Path(__file__).parents[2]
ALONE = Mesh.alone()


def state(step: int) -> dict[str, Tensor]:
    """Tensors of the kinds that training state has; each number tells its step."""
    generator = torch.Generator().manual_seed(step)
    return {
        "masters": torch.randn(1000, generator=generator),
        "working": torch.randn(33, generator=generator).bfloat16(),
        "layers": torch.randn(3, 5, generator=generator),
        "updates": torch.tensor(step),
        "flags": torch.tensor([True, False, step % 2 == 0]),
        "empty": torch.zeros(0),
    }


def blank() -> dict[str, Tensor]:
    return {name: torch.full_like(tensor, 7) for name, tensor in state(0).items()}


def saved(directory: Path, *steps: int, keep: int = 3) -> Checkpoints:
    checkpoints = Checkpoints(directory, keep=keep, mesh=ALONE)
    for step in steps:
        checkpoints.save(step, state(step), {"loss": step / 3, "notes": ["ä", None]})
    checkpoints.finish()
    return checkpoints


def restored(directory: Path) -> Restored:
    """The newest whole checkpoint, after every bit of its tensors was compared."""
    tensors = blank()
    found = Checkpoints(directory, mesh=ALONE).restore(tensors)
    assert found is not None
    assert_same(tensors, state(found.step))
    assert found.record == {"loss": found.step / 3, "notes": ["ä", None]}
    return found


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        other = theirs[name]
        assert tensor.dtype == other.dtype
        flat, flat_other = tensor.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)
        assert torch.equal(flat, flat_other), name


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != checkpoint.LOCK)


def files(directory: Path, step: int) -> list[Path]:
    return sorted(checkpoint_files.checkpoint_path(directory, step).iterdir())


def largest(directory: Path, step: int) -> Path:
    return max(files(directory, step), key=lambda path: path.stat().st_size)


def remove(*paths: Path) -> None:
    for path in paths:
        path.unlink()


def file_instead(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("x")


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_tensors_and_record_come_back_bit_for_bit(tmp_path: Path) -> None:
    saved(tmp_path / "run/checkpoints", 12)
    assert restored(tmp_path / "run/checkpoints") == Restored(
        step=12, record={"loss": 4.0, "notes": ["ä", None]}, passed_over=()
    )


def test_signed_zeros_infinities_and_nans_keep_their_bits(tmp_path: Path) -> None:
    odd = {"odd": torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45])}
    checkpoints = Checkpoints(tmp_path, mesh=ALONE)
    checkpoints.save(1, odd, {})
    tensors = {"odd": torch.ones(6)}
    assert checkpoints.restore(tensors) is not None
    assert_same(tensors, odd)


def test_tensors_of_many_pieces_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_files, "PIECE_BYTES", 256)
    saved(tmp_path, 3)
    assert len(files(tmp_path, 3)) > 15
    assert all(path.stat().st_size < 2000 for path in files(tmp_path, 3) if path.suffix == ".safetensors")
    assert restored(tmp_path).step == 3


def test_views_and_transposed_tensors_are_filled_in_place(tmp_path: Path) -> None:
    saved(tmp_path, 4)
    store = torch.zeros(1002)
    tensors = blank()
    tensors["masters"] = store[1:-1]
    tensors["layers"] = torch.zeros(5, 3).T
    tensors["layers"].requires_grad_()
    Checkpoints(tmp_path, mesh=ALONE).restore(tensors)
    assert torch.equal(store[1:-1], state(4)["masters"])
    assert store[0] == store[-1] == 0
    assert torch.equal(tensors["layers"], state(4)["layers"])


def test_an_empty_or_absent_directory_starts_anew(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "new", mesh=ALONE)
    assert checkpoints.latest() is None
    assert checkpoints.best() is None
    tensors = blank()
    assert checkpoints.restore(tensors) is None
    assert_same(tensors, blank())


def test_training_goes_on_while_a_save_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    write = checkpoint_files.write_checkpoint

    def slow(*arguments: object) -> None:
        assert go_on.wait(20)
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "write_checkpoint", slow)
    checkpoints = Checkpoints(tmp_path, mesh=ALONE)
    tensors = state(5)
    record = {"loss": 5 / 3, "notes": ["ä", None]}
    checkpoints.save(5, tensors, record)
    for tensor in tensors.values():
        tensor.zero_()
    record["loss"] = 0.0
    assert checkpoints.latest() is None
    go_on.set()
    checkpoints.finish()
    assert restored(tmp_path).step == 5


def test_a_save_waits_for_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    order: list[str] = []
    write = checkpoint_files.write_checkpoint

    def slow(directory: Path, step: int, *arguments: object) -> None:
        order.append(f"begins {step}")
        assert go_on.wait(20)
        write(directory, step, *arguments)  # type: ignore[arg-type]
        order.append(f"ends {step}")

    monkeypatch.setattr(checkpoint, "write_checkpoint", slow)
    checkpoints = Checkpoints(tmp_path, mesh=ALONE)
    checkpoints.save(1, state(1), {})
    threading.Timer(0.1, go_on.set).start()
    checkpoints.save(2, state(2), {})
    checkpoints.finish()
    assert order == ["begins 1", "ends 1", "begins 2", "ends 2"]


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, keep=2)
    checkpoints.mark_best(1)
    for step in (3, 4, 5):
        checkpoints.save(step, state(step), {})
    checkpoints.finish()
    assert names(tmp_path) == ["best.json", "step_00000001", "step_00000004", "step_00000005"]
    assert (checkpoints.best(), checkpoints.latest()) == (1, 5)
    checkpoints.mark_best(5)
    assert names(tmp_path) == ["best.json", "step_00000004", "step_00000005"]
    assert checkpoints.problems() == []


def test_the_best_waits_for_its_own_save(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, mesh=ALONE)
    for step in (1, 2, 3):
        checkpoints.save(step, state(step), {})
        if step == 2:
            checkpoints.mark_best(step)
    checkpoints.finish()
    assert names(tmp_path) == ["best.json", "step_00000002", "step_00000003"]


def test_a_best_without_a_checkpoint_is_told_and_changes_nothing(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    checkpoints.mark_best(1)
    checkpoints.mark_best(9)
    assert checkpoints.best() == 1
    assert [problem.split(" in ")[0] for problem in checkpoints.problems()] == ["step 9 did best but has no checkpoint"]


def test_a_garbled_note_of_the_best_costs_nothing_new(tmp_path: Path) -> None:
    for content in ("", "[]", '{"step": "3"}', '{"step": 77}', "\0\xff"):
        (tmp_path / "best.json").write_text(content)
        assert saved(tmp_path, 1, 2, 3, 4).best() is None
        assert restored(tmp_path).step == 4


def test_the_step_that_was_saved_is_replaced_whole(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 5)
    checkpoints.save(5, state(6), {"again": True})
    tensors = blank()
    found = checkpoints.restore(tensors)
    assert found == Restored(step=5, record={"again": True}, passed_over=())
    assert_same(tensors, state(6))
    assert names(tmp_path) == ["step_00000005"]


def test_a_record_that_json_has_no_word_for_is_refused_at_once(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    with pytest.raises(ValueError, match="JSON compliant"):
        checkpoints.save(2, state(2), {"loss": float("nan")})
    checkpoints.finish()
    assert restored(tmp_path).step == 1


def test_at_least_one_checkpoint_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        Checkpoints(tmp_path, keep=0, mesh=ALONE)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda path: os.truncate(largest(path, 30), 1000), "has 1000 bytes instead of"),
    "a bit of the tensors": (lambda path: flip(largest(path, 30), 8 * 3000 + 5), "by its checksum"),
    "a bit of their table": (lambda path: flip(largest(path, 30), 8 * 100), "by its checksum"),
    "file missing": (lambda path: remove(largest(path, 30)), "is missing"),
    "index missing": (lambda path: remove(files(path, 30)[-1]), "is missing"),
    "manifest missing": (lambda path: remove(path / "step_00000030/manifest.json"), "has no manifest.json"),
    "manifest empty": (lambda path: os.truncate(path / "step_00000030/manifest.json", 0), "not one that helixfold"),
    "manifest of another": (
        lambda path: shutil.copy(path / "step_00000020/manifest.json", path / "step_00000030/manifest.json"),
        "says that it is of step 20",
    ),
    "a digit of the record": (
        lambda path: (path / "step_00000030/manifest.json").write_text(
            (path / "step_00000030/manifest.json").read_text().replace('"loss": 10.0', '"loss": 11.0')
        ),
        "manifest.json is not what was written",
    ),
    "deep garbage": (
        lambda path: (path / "step_00000030/manifest.json").write_text("[" * 100_000),
        "not one that helixfold",
    ),
    "a list": (lambda path: (path / "step_00000030/manifest.json").write_text("[1, 2]"), "not one that helixfold"),
    "binary": (lambda path: (path / "step_00000030/manifest.json").write_bytes(os.urandom(300)), "not one that"),
    "empty directory": (lambda path: remove(*files(path, 30)), "has no manifest.json"),
    "no directory": (lambda path: file_instead(path / "step_00000030"), "is no directory"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_newest_falls_back_to_the_one_before_and_says_so(kind: str, tmp_path: Path) -> None:
    damage, told = DAMAGE[kind]
    saved(tmp_path, 10, 20, 30)
    damage(tmp_path)
    found = restored(tmp_path)
    assert found.step == 20
    (sentence,) = found.passed_over
    assert sentence.startswith(f"the checkpoint of step 30 in {tmp_path} is damaged and was passed over: ")
    assert told in sentence
    assert "\n" not in sentence
    kept = sentence.rsplit(" ", 1)[1]
    assert (tmp_path / kept).exists()
    saved(tmp_path, 30)  # the run comes there again
    assert restored(tmp_path).passed_over == ()
    assert (tmp_path / kept).exists()


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    saved(tmp_path / "good", 1, 2)
    generator = torch.Generator().manual_seed(1)
    for path in files(tmp_path / "good", 2):
        for _ in range(6):
            shutil.copytree(tmp_path / "good", tmp_path / "bad")
            bit = int(torch.randint(8 * path.stat().st_size, (), generator=generator))
            flip(tmp_path / "bad/step_00000002" / path.name, bit)
            assert_unharmed_or_passed_over(tmp_path / "bad", manifest=path.name == checkpoint_files.MANIFEST)
            shutil.rmtree(tmp_path / "bad")


def assert_unharmed_or_passed_over(directory: Path, *, manifest: bool) -> None:
    """White space of the manifest may change; nothing else may without being noticed."""
    found = restored(directory)
    assert found.step == 1 or (manifest and found.passed_over == ())


def test_several_damaged_ones_are_passed_over_in_turn(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20, 30)
    for step in (20, 30):
        largest(tmp_path, step).unlink()
    found = restored(tmp_path)
    assert found.step == 10
    assert [sentence.split(" in ")[0] for sentence in found.passed_over] == [
        "the checkpoint of step 30",
        "the checkpoint of step 20",
    ]


def test_a_run_never_starts_anew_beside_damaged_checkpoints(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    for step in (10, 20):
        largest(tmp_path, step).unlink()
    for _ in range(2):  # nothing is moved away, so a second start says the same
        with pytest.raises(
            InputError, match=r"none of the 2 checkpoints is whole \(of step 20: .* is missing\); bring"
        ):
            Checkpoints(tmp_path, mesh=ALONE).restore(blank())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda tensors: tensors.update(extra=torch.zeros(2)), "has no 'extra'; go on with the settings"),
        (lambda tensors: tensors.pop("flags"), "has 'flags', which this run has not"),
        (lambda tensors: tensors.update(masters=torch.zeros(999)), r"has 'masters' of shape \(1000,\), this run has"),
        (lambda tensors: tensors.update(updates=torch.tensor(1.0)), "has 'updates' in int64, this run in float32"),
    ],
)
def test_state_of_another_model_is_refused_in_one_sentence(
    change: Callable[[dict[str, Tensor]], object], told: str, tmp_path: Path
) -> None:
    saved(tmp_path, 10, 20)
    tensors = blank()
    change(tensors)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    with pytest.raises(InputError, match=told) as caught:
        Checkpoints(tmp_path, mesh=ALONE).restore(tensors)
    assert "\n" not in str(caught.value)
    assert_same(tensors, before)


def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    path = tmp_path / "step_00000001/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["checkpoint"]["files"]["../../secret"] = {"bytes": 1, "sha256": ""}
    manifest["sha256"] = checkpoint_files._manifest_sha256(manifest["checkpoint"])
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="names files elsewhere"):
        Checkpoints(tmp_path, mesh=ALONE).restore(blank())


def test_no_file_of_a_checkpoint_is_a_pickle(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    assert {path.suffix for path in files(tmp_path, 1)} == {".json", ".safetensors"}


# What a process may be doing when it is killed: each returns the directory to what it was before, or is after.
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
        assert (found.step, found.passed_over) == (3, ()), moment
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


# In a process of its own: the limit is on all its files, pytest's own output among them.
_SMALL_FILES = """
import resource, sys
from pathlib import Path
import torch
from helixfold.parallel.mesh import Mesh
from helixfold.training.checkpoint import Checkpoints

checkpoints = Checkpoints(Path(sys.argv[1]), mesh=Mesh.alone())
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
checkpoints.save(1, {"masters": torch.zeros(10_000)}, {})
try:
    checkpoints.finish()
except ValueError as error:
    print(error)
"""


def test_a_file_that_cannot_grow_fails_the_save_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SMALL_FILES, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert re.search(r"step 1 could not be written to .* \(File too large\); there is none yet; make", done.stdout)
    assert names(tmp_path) == []


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
        "the newest there is of step 2"
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
    done = subprocess.run([sys.executable, "-W", "error", "-c", program, tmp_path], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == 3
    tensors = {"t": torch.zeros(3)}
    assert Checkpoints(tmp_path, mesh=ALONE).restore(tensors) == Restored(step=3, record={}, passed_over=())
    assert torch.equal(tensors["t"], torch.ones(3))


@pytest.mark.distributed
def test_two_runs_cannot_write_to_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ranks(1, tmp_path / "out.txt", hold, tmp_path / "run") as other:
        while not (tmp_path / "out.txt").exists() or "open" not in other.printed():
            assert not other.wait(0.01), other.printed()
        with monkeypatch.context() as patch, pytest.raises(InputError, match="another run writes its checkpoints here"):
            patch.setattr(checkpoint, "LOCK_PATIENCE", 0.2)
            Checkpoints(tmp_path / "run", mesh=ALONE)
        with ThreadPoolExecutor(1) as waiting:  # a run that was just killed holds the directory a moment longer
            opened = waiting.submit(Checkpoints, tmp_path / "run", mesh=ALONE)
            other.kill(other.processes)
            assert opened.result(20).latest() is None


def test_a_place_that_cannot_hold_checkpoints_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file/run: cannot hold checkpoints: Not a directory"):
        Checkpoints(tmp_path / "file/run", mesh=ALONE)
