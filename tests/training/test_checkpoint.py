"""Checkpoints are whole or absent, whatever happens to the process, the disk or the files."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from data_pipeline.io.errors import InputError
from helixfold.model.config import ConfigError
from helixfold.training import checkpoint, checkpoint_files
from helixfold.training.checkpoint import Checkpoints, Restored
from tests.training.states import (
    ALONE,
    assert_same,
    blank,
    file_instead,
    files,
    flip,
    largest,
    names,
    remove,
    restored,
    saved,
    state,
)


def test_tensors_and_record_come_back_bit_for_bit(tmp_path: Path) -> None:
    saved(tmp_path / "run/checkpoints", 12)
    assert restored(tmp_path / "run/checkpoints") == Restored(
        step=12, record={"loss": 4.0, "notes": ["ä", None]}, damaged=()
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
    assert [problem.split(" in ")[0] for problem in checkpoints.problems()] == [
        "step 9 has the best score but no checkpoint"
    ]


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
    assert found == Restored(step=5, record={"again": True}, damaged=())
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
    "a bit of the tensors": (lambda path: flip(largest(path, 30), 8 * 3000 + 5), "since it was written (checksum)"),
    "a bit of their table": (lambda path: flip(largest(path, 30), 8 * 100), "since it was written (checksum)"),
    "file missing": (lambda path: remove(largest(path, 30)), "is missing"),
    "index missing": (lambda path: remove(files(path, 30)[-1]), "is missing"),
    "manifest missing": (lambda path: remove(path / "step_00000030/manifest.json"), "has no manifest.json"),
    "manifest empty": (lambda path: os.truncate(path / "step_00000030/manifest.json", 0), "not written by helixfold"),
    "manifest of another": (
        lambda path: shutil.copy(path / "step_00000020/manifest.json", path / "step_00000030/manifest.json"),
        "manifest is for step 20",
    ),
    "a digit of the record": (
        lambda path: (path / "step_00000030/manifest.json").write_text(
            (path / "step_00000030/manifest.json").read_text().replace('"loss": 10.0', '"loss": 11.0')
        ),
        "manifest.json has changed since it was written",
    ),
    "deep garbage": (
        lambda path: (path / "step_00000030/manifest.json").write_text("[" * 100_000),
        "not written by helixfold",
    ),
    "a list": (lambda path: (path / "step_00000030/manifest.json").write_text("[1, 2]"), "not written by helixfold"),
    "binary": (lambda path: (path / "step_00000030/manifest.json").write_bytes(os.urandom(300)), "not written by"),
    "empty directory": (lambda path: remove(*files(path, 30)), "has no manifest.json"),
    "no directory": (lambda path: file_instead(path / "step_00000030"), "is not a directory"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_newest_falls_back_to_the_one_before_and_says_so(kind: str, tmp_path: Path) -> None:
    damage, told = DAMAGE[kind]
    saved(tmp_path, 10, 20, 30)
    damage(tmp_path)
    found = restored(tmp_path)
    assert found.step == 20
    (sentence,) = found.damaged
    assert sentence.startswith(f"the checkpoint of step 30 in {tmp_path} is damaged and was skipped: ")
    assert told in sentence
    assert "\n" not in sentence
    kept = sentence.rsplit(" ", 1)[1]
    assert (tmp_path / kept).exists()
    saved(tmp_path, 30)  # the run comes there again
    assert restored(tmp_path).damaged == ()
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
    assert found.step == 1 or (manifest and found.damaged == ())


def test_several_damaged_ones_are_passed_over_in_turn(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20, 30)
    for step in (20, 30):
        largest(tmp_path, step).unlink()
    found = restored(tmp_path)
    assert found.step == 10
    assert [sentence.split(" in ")[0] for sentence in found.damaged] == [
        "the checkpoint of step 30",
        "the checkpoint of step 20",
    ]


def test_a_run_never_starts_anew_beside_damaged_checkpoints(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    for step in (10, 20):
        largest(tmp_path, step).unlink()
    for _ in range(2):  # nothing is moved away, so a second start says the same
        with pytest.raises(InputError, match=r"all checkpoints are damaged \(step 20: .* is missing\); restore"):
            Checkpoints(tmp_path, mesh=ALONE).restore(blank())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda tensors: tensors.update(extra=torch.zeros(2)), "has no 'extra'; resume with the settings"),
        (lambda tensors: tensors.pop("flags"), "has 'flags', which this run does not have"),
        (
            lambda tensors: tensors.update(masters=torch.zeros(999)),
            r"has 'masters' of shape \(1000,\), but this run has",
        ),
        (lambda tensors: tensors.update(updates=torch.tensor(1.0)), "has 'updates' in int64, but this run has float32"),
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
    with pytest.raises(InputError, match="lists files outside the checkpoint"):
        Checkpoints(tmp_path, mesh=ALONE).restore(blank())


def test_no_file_of_a_checkpoint_is_a_pickle(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    assert {path.suffix for path in files(tmp_path, 1)} == {".json", ".safetensors"}


# What a process may be doing when it is killed: each returns the directory to what it was before, or is after.
