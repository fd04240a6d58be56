"""A run's own files that have become pipes, devices or JSON without end are one sentence, or made again, soon."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from data_pipeline.features.alphafold_pickle import features_from_pickle
from data_pipeline.io.errors import InputError
from data_pipeline.search.result_files import ResultFiles
from data_pipeline.training_sets.build_cache import BuildCache, store_lock
from helixfold.apps.predict.record import read_record
from helixfold.apps.predict.resume import _earlier_timings
from helixfold.report.files import read_order
from helixfold.results.colabfold import write_log
from helixfold.results.prediction import read_finished, read_pae
from helixfold.results.training_log import read_log
from helixfold.training.checkpoint import Checkpoints
from helixfold.training.log import TrainingLog
from helixfold.training.run_files import RunFiles
from helixfold.weights.download import _read_checksums
from tests.bad_input.meeting import met
from tests.data_pipeline.training_sets.test_store import write_store
from tests.support.alarm import time_limit
from tests.training.states import ALONE

KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "deep": lambda path: path.write_bytes(b'{"a":' * 200_000 + b"\n"),
    "wide": lambda path: path.write_bytes(b"[" + b"[]," * 10**6 + b"\n"),
}
READERS: dict[str, Callable[[Path], object]] = {
    "settings.json": read_record,
    "timings.json": _earlier_timings,
    "ranking_debug.json": read_order,
    "confidence_x.json": lambda folder: read_finished(folder, "x"),
    "pae_x.json": lambda folder: read_pae(folder / "pae_x.json", 10),
    "log.jsonl": lambda folder: read_log(folder / "log.jsonl"),
    "sha256.json": lambda folder: _read_checksums(folder / "sha256.json"),
    "features.pkl": lambda folder: features_from_pickle(folder / "features.pkl"),
    "best.json": lambda folder: Checkpoints(folder, mesh=ALONE).best(),
    "searches.json": lambda folder: ResultFiles(directory=folder).find("x", "y", b"z"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_what_reads_a_file_refuses_it_or_has_none(name: str, kind: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path / name)
    for suffix in ("cif", "pdb"):
        (tmp_path / f"unrelaxed_x.{suffix}").touch()
    with time_limit(5):
        try:
            found = READERS[name](tmp_path)
        except InputError as error:
            assert str(error).startswith(f"{tmp_path / name}")
            assert "\n" not in str(error)
        else:
            assert found in (None, ({}, []))


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_with_such_a_record_is_passed_over(kind: str, tmp_path: Path) -> None:
    (tmp_path / "step_00000001").mkdir()
    KINDS[kind](tmp_path / "step_00000001/manifest.json")
    checkpoints = Checkpoints(tmp_path, mesh=ALONE)
    with time_limit(5), pytest.raises(InputError, match=r"all checkpoints are damaged \(step 1: .*manifest"):
        checkpoints.restore({})


def test_a_log_that_is_a_pipe_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.jsonl")
    with time_limit(5), pytest.raises(InputError, match=r"log\.jsonl: cannot be read: it is a pipe"):
        TrainingLog(tmp_path, first_step=0, last_step=1, progress=False)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InputError, match=r"log\.jsonl: cannot be read: it is a pipe"):
        RunFiles(directory=tmp_path, name="tiny").check()


def test_locks_and_logs_that_are_pipes_hold_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    os.mkfifo(tmp_path / "log.txt")
    with time_limit(5):
        with store_lock(tmp_path):  # a pipe is as good a lock as a file
            pass
        write_log(tmp_path, "a line")
    assert (tmp_path / "log.txt").read_text().endswith("a line\n")
    (tmp_path / "work/00").mkdir(parents=True)
    os.mkfifo(tmp_path / "work/00/00aa")
    with time_limit(5), pytest.raises(InputError, match="it is a pipe"):
        BuildCache(tmp_path).get("00aa")


def test_the_lock_of_a_store_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "store").mkdir()
    (tmp_path / "store/.lock").symlink_to("../precious")
    with pytest.raises(InputError, match="Too many levels of symbolic links"), store_lock(tmp_path / "store"):
        pass
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_of_such_files_is_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "folder/out"
    target.mkdir(parents=True)
    (target / "ranking_debug.json").write_text('{"order": ["x"]}')
    (target / "settings.json").write_text("{}")
    KINDS[kind](target / "confidence_x.json")
    with time_limit(5):
        found = met("report out", tmp_path / "folder")
    assert (found.code, found.changed) == (2, ())
    assert len(found.said) == 1
    assert "confidence_x.json" in found.said[0]


@pytest.mark.parametrize("damage", ["pipe", "root page", "cut"])
def test_a_damaged_training_set_is_refused_before_a_run_is_begun(damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "store").mkdir(parents=True)
    write_store(folder / "store")
    path = folder / "store/features.lmdb"
    content = bytearray(path.read_bytes())
    content[2 * 4096 : 2 * 4096 + 64] = b"\xff" * 64
    path.unlink()
    if damage == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(content if damage == "root page" else content[:-4096])
    with time_limit(20):
        found = met(["train", "store", "--output", "run", "--preset", "tiny"], folder)
    assert (found.code, found.changed) == (2, ())
    assert len(found.said) == 1
    assert "features.lmdb: " in found.said[0]
