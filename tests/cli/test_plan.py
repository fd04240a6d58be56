"""`helixfold plan` prints how long a training takes on given hardware, and says how ranks are divided."""

import re
from pathlib import Path
from typing import Any

import pytest

from helixfold.cli.main import main
from helixfold.planning.estimate import Training
from helixfold.planning.layouts import measure_machine
from helixfold.planning.machines import MACHINES
from tests.apps.score.structure_files import SEQUENCE, write

# What is counted for a network of this size is counted in a moment.
SMALL = [
    "--preset=tiny",
    *("--set=example.crop_size=16", "--set=example.sampling.max_templates=0"),
    *("--set=model.evoformer.blocks=1", "--set=model.structure.layers=1"),
]


def lines_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_stated_times_become_days(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(["--hardware", "a100x128", "--step-seconds", "6.48", "12.96"], capsys)
    initial, finetuning, together = (next(line for line in lines if line.startswith(name)).split()
                                     for name in ("initial_training", "finetuning", "in all"))  # fmt: skip
    # 10 and 1.5 million samples, 128 a step.
    assert initial[1:4] == ["10,000,000", "78,125", "128"]
    assert finetuning[1:4] == ["1,500,000", "11,719", "128"]
    assert float(initial[-2]) == pytest.approx(78_125 * 6.48 / 86_400, abs=1e-3)
    assert float(finetuning[-2]) == pytest.approx(11_719 * 12.96 / 86_400, abs=1e-3)
    assert float(together[-2]) == pytest.approx(float(initial[-2]) + float(finetuning[-2]), abs=2e-3)
    assert not any("calculated" in line for line in lines)


def test_published_trainings_imply_mean_steps(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(["--step-seconds", "1", "1"], capsys)
    days = {"HelixFold ": 7.548, "HelixFold, hybrid parallelism": 5.295, "AlphaFold 2": 10.961, "OpenFold": 10.849}
    for program, published in days.items():
        (line,) = (line for line in lines if line.startswith(program))
        *_, seconds, time, unit = line.split()
        assert (float(time), unit) == (published, "days")
        assert float(seconds) == pytest.approx(published * 86_400 / (78_125 + 11_719), abs=1e-3)
    # If all steps took what HelixFold's took in the mean, the training would take as long.
    together = next(line for line in lines_of(["--step-seconds", "7.2587", "7.2587"], capsys) if "in all" in line)
    assert together.endswith("7.548 days")


def test_each_stage_has_ranks_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(["--hardware", "a100x256+512", "--step-seconds", "1", "1"], capsys)
    assert [line.split()[3] for line in lines if line.startswith(("initial", "finetuning"))] == ["256", "512"]


def test_a_step_is_predicted_with_recycling_and_messages(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of([*SMALL, "--set=steps=300", "--hardware", "h100x2", "h100x4"], capsys)
    assert lines[0].startswith(
        "tiny: 8 samples per step, 16 residues, 8 + 0 + 16 rows, bfloat16, 0.5 recycling iterations"
    )
    rows = [line.split() for line in lines if line.startswith("tiny ")]
    assert [row[1:5] for row in rows] == [["2,400", "300", str(n), f"dp={n},bp=1,dap=1"] for n in (2, 4)]
    for row in rows:
        step, *parts = map(float, row[5:10])
        assert step == pytest.approx(sum(parts), abs=2e-3)
        seconds = float(row[10]) * {"s": 1, "min": 60}[row[11]]
        assert seconds == pytest.approx(300 * step, rel=0.02)
    assert any(line.startswith("calculated, not measured") for line in lines)


def test_each_kind_of_gpu_computes_in_its_own_dtype(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of([*SMALL, "--hardware", "t4x2", "a100x2", "a100-80x2"], capsys)
    stages = [line for line in lines if line.startswith("tiny: ")]
    ends = ("float32", "t4, 12.9 GiB"), ("bfloat16", "a100, 35.9 GiB"), ("bfloat16", "a100-80, 72.7 GiB")
    assert len(stages) == len(ends)
    for line, (dtype, end) in zip(stages, ends, strict=True):
        assert f" rows, {dtype}, " in line
        assert line.endswith(f"; {end} per rank for tensors")


def test_recycling_takes_the_time_of_its_passes(capsys: pytest.CaptureFixture[str]) -> None:
    def passes(most: int) -> float:
        setting = f"--set=example.max_passes={most}"
        lines = lines_of([*SMALL, setting, "--set=batch_size=512", "--hardware", "a100x1"], capsys)
        return float(next(line for line in lines if line.startswith("tiny ")).split()[6])

    once, twice, four_times = passes(1), passes(2), passes(4)
    # A mean of 0, 0.5 and 1.5 further passes.
    assert twice > once
    assert four_times - once == pytest.approx(3 * (twice - once), rel=0.05)


def test_every_layout_is_shown_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of([*SMALL, "--hardware", "h100x2", "h100x4", "--layouts"], capsys)
    picked = [line.split()[1] for line in lines if line.startswith("> ")]
    assert picked == ["dp=2,bp=1,dap=1", "dp=4,bp=1,dap=1"]
    assert sum("does not pay" in line for line in lines) == 2


def test_what_if_blocks_had_branches(capsys: pytest.CaptureFixture[str]) -> None:
    options = [*SMALL, "--hardware", "h200x2", "--set", "batch_size=1", "--layouts"]
    assert not any("bp=2" in line for line in lines_of(options, capsys))
    assert any("dp=1,bp=2,dap=1" in line for line in lines_of([*options, "--parallel-blocks"], capsys))


def test_published_steps_stand_beside_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split() for line in lines_of(["--published-steps"], capsys) if "bp=1" in line]
    assert [float(row[-3]) for row in rows] == [1.808, 0.682]
    # This program launches less than when that was fitted, and less than the published one.
    assert float(rows[0][-1]) == pytest.approx(0.84, abs=0.02)
    assert float(rows[1][-1]) == pytest.approx(0.8, abs=0.15)


def test_the_machine_at_hand_is_measured_with_as_many_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def on_ranks(count: int, function: Any, *arguments: Any, **settings: Any) -> Any:
        asked.append((count, function, settings["device"]))
        return MACHINES["h100"]

    monkeypatch.setattr("helixfold.training.plan.on_ranks", on_ranks)
    lines = lines_of([*SMALL, "--hardware", "here", "herex2", "herex4", "herex64", "--set=batch_size=64"], capsys)
    # Each is measured with the largest examples and with short ones.
    assert asked == [(count, measure_machine, "cpu") for count in (1, 1, 2, 2, 4, 4, 2, 2)]
    assert "float32" in lines[1]
    assert not any("calculated" in line for line in lines)


def test_the_machine_at_hand_is_measured_with_examples_of_the_training_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = []

    def on_ranks(count: int, function: Any, work: Training, *_: Any, **__: Any) -> Any:
        size = work.size
        sizes.append((size.residues, size.msa_rows, size.extra_rows, size.templates))
        return MACHINES["h100"]

    monkeypatch.setattr("helixfold.training.plan.on_ranks", on_ranks)
    chains = {"short": SEQUENCE[:6], "long": SEQUENCE}
    for name, sequence in chains.items():
        write(tmp_path / "both" / f"{name}.pdb", sequence)
    write(tmp_path / "short" / "short.pdb", chains["short"])
    for name in ("short", "both"):
        words = ["features", "--structures", str(tmp_path / name), "--output", str(tmp_path / f"{name}_set")]
        assert main([*words, "--workers", "1"]) == 0
    usual = ["--preset=tiny", *SMALL[-2:], "--hardware", "here"]
    lines = lines_of(usual, capsys)
    assert sizes == [(64, 8, 16, 4), (32, 4, 8, 0)]
    shown = "".join(lines)
    between = re.search(
        r"expect ([0-9.]+) to ([0-9.]+) s per step, .*32 residues with half the rows and no temp", shown
    )
    assert between is not None
    assert 0 < float(between[1]) <= float(between[2])
    sizes.clear()
    lines = lines_of([*usual, "--training-set", str(tmp_path / "short_set")], capsys)
    assert sizes.pop() == (6, 1, 1, 0)
    assert not sizes
    assert lines[1].startswith("tiny: 8 samples per step, 6 residues, 1 + 0 + 1 rows")
    assert not any("expect" in line for line in lines)
    lines_of([*usual, "--training-set", str(tmp_path / "both_set")], capsys)
    assert len(chains["short"]) < sizes.pop()[0] < len(chains["long"])
    # Examples of fixed shapes are padded to the largest size.
    padded = [*usual, "--set=example.fixed_shapes=true", "--training-set", str(tmp_path / "both_set")]
    assert not any("expect" in line for line in lines_of(padded, capsys))
    assert sizes.pop() == (64, 8, 16, 4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--training-set", "."], "--training-set measures this machine; combine it only with --hardware here"),
        (["--hardware", "here", "--training-set", "none"], "none"),
        (["--hardware", "a100"], "--hardware must be a kind of device (t4, v100, rtx3090, rtx4090, l4, a100, a100-80"),
        (["--hardware", "tpux128"], "got 'tpux128'"),
        (["--hardware", "a100x0"], "from 1 to 1,000,000 devices, got 'a100x0'"),
        (["--step-seconds", "1"], "--step-seconds has 1 number for 2 stages (initial_training, finetuning)"),
        (["--step-seconds", "1", "0"], "--step-seconds must be numbers of seconds greater than 0"),
        (["--samples", "5"], "--samples has 1 number for 2 stages"),
    ],
)
def test_wrong_options_are_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1


def test_too_little_memory_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    settings = "batch_size=65536", "micro_batch=65536", "optimizer.clipping=global", "example.fixed_shapes=true"
    huge = [f"--set={setting}" for setting in settings]
    assert main(["plan", *SMALL, "--hardware", "h100x2", *huge]) == 2
    error = capsys.readouterr().err
    assert error.startswith("helixfold: error: no layout of 2 ranks fits into memory")
    assert len(error.splitlines()) == 1
