"""`helixfold predict` in several processes: every target once, the same files, and failures stay where they are."""

import json
import os
from pathlib import Path

import gemmi
import numpy as np
import pytest
import torch
from torch.distributed import TCPStore

from helixfold.apps.predict import devices
from helixfold.cli.main import main
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.parallel.launch import LaunchResult
from helixfold.parallel.task_queue import TaskQueue
from helixfold.planning import memory as memory_options
from helixfold.planning.estimate import Device
from helixfold.planning.memory import MemoryOptions
from helixfold.results.lock import LOCK_FILE
from tests.apps.predict import worker_groups
from tests.apps.predict.files import without_command
from tests.training.ranks import Ranks

LENGTHS = {"a": 10, "b": 12, worker_groups.BAD: 14, worker_groups.HUNGRY: 16}


@pytest.fixture
def fasta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("helixfold.apps.predict.postprocess.write_plots", lambda *_: None)  # as in `worker_groups`
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path / "cache")
    path = tmp_path / "four.fasta"
    path.write_text("".join(f">{name}\n{'MKTAYIAKQRLVEDGS'[:length]}\n" for name, length in LENGTHS.items()))
    return path


def folded(fasta: Path, output: Path, *arguments: str, fails: bool = False) -> tuple[list[str], str]:
    """What was folded by two ranks, as `target rank-in-its-group`, and what was printed."""
    log, printed = output.with_suffix(".log"), output.with_suffix(".txt")
    log.write_text("")
    given = [str(fasta), "--output", str(output), *arguments]
    store = meeting_place()
    with Ranks(2, printed, worker_groups.predict, given, log, fails, store.port) as processes:
        assert processes.finish() == [int(fails), 0], processes.printed()
    return sorted(log.read_text().splitlines()), printed.read_text()


def meeting_place() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def assert_same_files(one: Path, other: Path, name: str) -> None:
    files = sorted(path.name for path in (one / name).iterdir())
    assert files == sorted(path.name for path in (other / name).iterdir())
    for file in files:
        if file not in ("timings.json", "report.html"):
            assert without_command(one / name / file) == without_command(other / name / file), (name, file)


def positions(path: Path) -> np.ndarray:
    model = gemmi.read_structure(str(path))[0]
    return np.array([atom.pos.tolist() for chain in model for residue in chain for atom in residue])


def test_ranks_fold_every_target_once_and_as_one_process_does(fasta: Path, tmp_path: Path) -> None:
    single, output = tmp_path / "single", tmp_path / "out"
    assert (
        main(
            [
                "predict",
                str(fasta),
                "--output",
                str(single),
                "--num-recycles",
                "0",
                "--device",
                "cpu",
                "--models",
                "tiny",
            ]
        )
        == 0
    )
    made, printed = folded(fasta, output, fails=True)
    assert made == ["a 0", "b 0", "hungry 0"]
    assert json.loads((output / "failures.json").read_text()) == {"bad": "RuntimeError: the chain is broken"}
    assert printed.count("UNTRAINED") == 1
    assert {line.split(": ")[0] for line in printed.splitlines() if " mean pLDDT" in line} <= {"rank 0", "rank 1"}
    for name in ("a", "b"):
        assert_same_files(single, output, name)
    # The rest, and only that, when it is run again.
    assert folded(fasta, output)[0] == ["bad 0"]
    assert not (output / "failures.json").exists()
    assert_same_files(single, output, "bad")


def test_ranks_that_share_targets_fail_and_step_down_together(fasta: Path, tmp_path: Path) -> None:
    single, output = tmp_path / "single", tmp_path / "out"
    arguments = ["--executor", "slabs", "--num-recycles", "0", "--device", "cpu"]
    assert main(["predict", str(fasta), "--output", str(single), *arguments, "--models", "tiny"]) == 0
    made, printed = folded(fasta, output, "--ranks-per-target", "2", "--executor", "whole", fails=True)
    # On the first rank all were begun; it waited for the other one.
    assert made == ["a 0", "a 1", "b 0", "b 1", "bad 0", "hungry 0", "hungry 1"]
    failure = "RuntimeError: the chain is broken (on rank 1 of the 2 ranks of this task)"
    assert json.loads((output / "failures.json").read_text()) == {"bad": failure}
    assert printed.count("starting again with 'slabs'") == 1
    timings = json.loads((output / worker_groups.HUNGRY / "timings.json").read_text())
    assert (timings["ranks"], timings["models"]["tiny"]["executor"]) == (2, "slabs")
    for name in ("a", worker_groups.HUNGRY):
        assert sorted(os.listdir(single / name)) == sorted(os.listdir(output / name))
        one, other = (positions(directory / name / "ranked_0.pdb") for directory in (single, output))
        assert np.abs(one - other).max() < 2e-3  # Angstrom, of which the file has three decimals


def test_what_is_wrong_is_said_once(fasta: Path, tmp_path: Path) -> None:
    printed = tmp_path / "printed.txt"
    given = [str(fasta), "--msa", str(tmp_path / "no.a3m"), "--output", str(tmp_path / "out")]
    store = meeting_place()
    with Ranks(2, printed, worker_groups.predict, given, tmp_path / "log", False, store.port) as processes:
        assert set(processes.finish()) == {0, 2}
    assert printed.read_text().count("helixfold: error: ") == printed.read_text().count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_targets_of_processes_that_died_are_failures(
    fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = []

    def launched(*arguments: object, **named: object) -> LaunchResult:
        given.append(named)
        queue = TaskQueue()
        queue.open(["a", "b"])
        queue.report(queue.take())
        queue.take()
        return LaunchResult(0, queue)

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / LOCK_FILE).touch()
    monkeypatch.setattr("helixfold.parallel.launch.launch", launched)
    arguments = ["--device", "cpu", "--devices", "4", "--ranks-per-target", "2", "--output", str(tmp_path / "out")]
    assert main(["predict", str(fasta), *arguments, "--models", "tiny"]) == 1
    assert [(each["count"], each["ranks_per_task"]) for each in given] == [(4, 2)]
    failures = json.loads((tmp_path / "out" / "failures.json").read_text())
    assert list(failures) == ["b"]
    assert "1 target failed, see" in capsys.readouterr().err


def test_processes_get_their_share_of_devices_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "available_processors", lambda: 12)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    assert devices.processes(None, "auto", 1) is None
    on_cpu = devices.processes("5", "cpu", 1)
    assert on_cpu == devices.Processes(count=5, environment={"OMP_NUM_THREADS": "2"})
    on_all = devices.processes("all", "auto", 3)
    assert on_all is not None
    assert (on_all.count, on_all.environment["CUDA_VISIBLE_DEVICES"]) == (3, "0,1,2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    some = devices.processes("0, 2", "cuda", 1)
    assert some is not None
    assert (some.count, some.environment["CUDA_VISIBLE_DEVICES"]) == (2, "4,7")


def test_processes_share_what_memory_a_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    monkeypatch.setattr(memory_options, "available_memory", lambda device: 400)
    monkeypatch.setattr(
        Device,
        "at_hand",
        lambda device, directory, memory: Device(properties=DEVICE_MODELS["cpu"], memory=memory or 300, spill=80),
    )
    for options, device, memory in (
        (MemoryOptions(), cpu, 100),
        (MemoryOptions(memory=250), cpu, 250),
        (MemoryOptions(), gpu, 300),
    ):
        assert options.divided(4, device).available(device, tmp_path) == Device(
            properties=DEVICE_MODELS["cpu"], memory=memory, spill=20
        )
    assert MemoryOptions().divided(1, cpu).available(cpu, tmp_path) == Device(
        properties=DEVICE_MODELS["cpu"], memory=300, spill=80
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "0,0"], "different GPUs from 0 to 2, such as 0,1; got '0,0'"),
        (["--devices", "0,3"], "different GPUs from 0 to 2"),
        (["--devices", "2", "--device", "cuda:1"], "cannot be combined"),
        (
            ["--devices", "two", "--device", "cpu"],
            "the number of processes to start, such as 2; it must be a whole number from 1 to 1,024, got 'two'",
        ),
        (["--devices", "all", "--ranks-per-target", "2"], "3 processes cannot be divided into groups of 2"),
        (["--ranks-per-target", "2", "--device", "cpu"], "start more of them with --devices, or with torchrun"),
    ],
)
def test_bad_devices_are_one_sentence(
    arguments: list[str], message: str, fasta: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    output = fasta.parent / "out"
    assert main(["predict", str(fasta), *arguments, "--output", str(output)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not output.exists()
