"""The benchmark of fine-tuning makes real steps, and shows their memory beside the forecast."""

from pathlib import Path

import pytest

from helixfold.benchmark import finetuning
from helixfold.benchmark.finetuning import Point, StepMemory
from helixfold.cli.main import main
from helixfold.finetune.memory import number_bytes
from tests.support.forked_ranks import fork_ranks

SIZES = ["--preset", "tiny", "--blocks", "1", "--crops", "12", "--rows", "4", "--extra-rows", "4", "--templates", "1"]


def test_a_step_of_an_adapter_takes_what_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fork_ranks(monkeypatch, tmp_path / "printed.txt")
    assert main(["benchmark", "finetuning", *SIZES, "--adapters", "lora"]) == 0
    *_, header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["adapter", "dtype", "crop", "optimizer", "share", "peak", "predicted", "/", "peak"]
    adapter, dtype, crop, optimizer, share, *_ = row.split()
    assert (adapter, dtype, crop) == ("lora", "float32", "12")
    point = Point(
        adapter="lora", preset="tiny", blocks=1, crop=12, rows=4, extra_rows=4, templates=1,
        recompute="block", dtype="float32", device="cpu",
    )  # fmt: skip
    counted = number_bytes(point.config, finetuning.DTYPES["float32"])[1]
    assert float(optimizer) == pytest.approx(counted / 2**20, abs=0.05)
    assert share == f"{point.share():.2%}"


def test_every_adapter_and_crop_has_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(finetuning, "measure", lambda point: StepMemory(peak=point.crop << 20, optimizer=2**20))
    monkeypatch.setattr(Point, "predicted", lambda point: 2 * point.crop << 20)
    assert main(["benchmark", "finetuning", *SIZES[:4], "--crops", "16", "32", "--adapters", "heads", "full"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[3:]]
    assert [(row[0], row[2]) for row in rows] == [(name, crop) for name in ("heads", "full") for crop in ("16", "32")]
    assert [row[-3:] for row in rows[:2]] == [["16", "32", "2.00"], ["32", "64", "2.00"]]
