"""`helixfold layouts` prints what a step takes by layout, and says which is picked."""

from typing import Any

import pytest

from helixfold.cli.main import main
from helixfold.planning.layouts import machine_of_ranks
from helixfold.planning.machines import MACHINES

# What is counted for a network of this size is counted in a moment.
SMALL = [
    "--preset=tiny",
    *("--set=example.crop_size=16", "--set=example.sampling.max_templates=0", "--set=model.structure.layers=1"),
]


def test_a_table_for_each_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layouts", *SMALL, "--ranks", "2", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny: 8 samples a step, 16 residues, 8 + 0 + 16 rows, bfloat16, 0.5 passes")
    picked = [line.split()[1] for line in lines if line.startswith("> ")]
    assert picked == ["dp=2,bp=1,dap=1", "dp=4,bp=1,dap=1"]
    assert [line.split()[0] for line in lines[-2:]] == ["2", "4"]
    assert "does not pay" in lines[-2]


def test_what_if_blocks_had_branches(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["layouts", *SMALL, "--ranks", "2", "--machine", "h200", "--set", "batch_size=1"]
    assert main(options) == 0
    assert "bp=2" not in capsys.readouterr().out
    assert main([*options, "--parallel-blocks"]) == 0
    assert "dp=1,bp=2,dap=1" in capsys.readouterr().out


def test_published_runs_stand_beside_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layouts", "--published"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "bp=1" in line]
    assert [float(row[-3]) for row in rows] == [1.808, 0.682]
    assert float(rows[0][-1]) == pytest.approx(1.0, abs=0.01)
    # This program launches less than the published one.
    assert float(rows[1][-1]) == pytest.approx(0.9, abs=0.15)


def test_the_machine_at_hand_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []

    def on_ranks(count: int, function: Any, *arguments: Any, **settings: Any) -> Any:
        asked.append((count, function, settings["device"]))
        return MACHINES["h100"]

    monkeypatch.setattr("helixfold.training.forecast.on_ranks", on_ranks)
    assert main(["layouts", *SMALL, "--machine", "here", "--ranks", "2"]) == 0
    assert asked == [(2, machine_of_ranks, "cpu")]
    assert "float32" in capsys.readouterr().out.splitlines()[1]


def test_too_little_memory_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    settings = "batch_size=65536", "micro_batch=65536", "optimizer.clipping=global", "example.fixed_shapes=true"
    huge = [f"--set={setting}" for setting in settings]
    assert main(["layouts", *SMALL, "--ranks", "2", *huge]) == 2
    error = capsys.readouterr().err
    assert error.startswith("helixfold: error: no layout of 2 ranks has room")
    assert len(error.splitlines()) == 1
