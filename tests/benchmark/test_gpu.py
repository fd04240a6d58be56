"""The measurement of a GPU is run from end to end, at small sizes on a CPU."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import config

from helixfold.benchmark import gpu, measurement, step
from helixfold.benchmark.gpu import main, summary
from helixfold.benchmark.measurement import BenchmarkDevice, Cost, Readings
from helixfold.training import presets

CPU = torch.device("cpu")
PARTS = ("ops", "block", "model", "step", "long")
MACHINE = BenchmarkDevice(device=CPU, name="here", threads=1, versions={}, load=0.0, allocator="")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates that are not measured, single readings of short work, and a shallow network.

    All operators are run, and shapes are checked, by the tests of each part.
    """
    monkeypatch.setattr(measurement, "measured_device", lambda *_: MACHINE)
    monkeypatch.setattr(measurement, "_MIN_SECONDS", 0)
    monkeypatch.setattr(gpu, "TINY", replace(gpu.TINY, policies=("block",)))
    operators = gpu._operators
    monkeypatch.setattr(gpu, "_operators", lambda sizes: replace(operators(sizes), only="transition"))
    shallow = presets.tiny().with_settings(["model.evoformer.blocks=1", "model.structure.layers=1"])
    monkeypatch.setitem(step.STAGES, "tiny", lambda: shallow)
    monkeypatch.setattr(config, "jaxtyping_disable", True)


@pytest.mark.parametrize("parts", [("ops", "block"), pytest.param(PARTS, marks=pytest.mark.long)], ids=["two", "all"])
def test_parts_are_measured_and_written(
    parts: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gpu.json"
    words = ["--tiny", "--part", *parts, "--dtypes", "float32", "--repeats", "1", "--json", str(file)]
    assert main(words) == 0
    readings = json.loads(file.read_text())["readings"]
    assert {row["part"] for row in readings} == set(parts)
    assert not [row["by"] for row in readings if row["failure"]]
    printed = capsys.readouterr().out
    assert "computes something else" not in printed
    assert "failed" not in printed.rpartition("to peer")[2]
    if "step" in parts:
        assert "recompute block" in printed
        assert "auto recomputes evoformer none" in printed


def test_a_part_that_fails_says_so_and_the_next_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> Iterator[Readings]:
        raise torch.OutOfMemoryError("no memory left")
        yield

    monkeypatch.setitem(gpu.PARTS, "model", fails)
    assert main(["--tiny", "--repeats", "1", "--part", "model", "block"]) == 0
    printed = capsys.readouterr().out
    assert "failed: OutOfMemoryError: no memory left" in printed
    assert "Evoformer block of tiny" in printed


def test_a_chain_that_does_not_fit_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "available_memory", lambda _: 5)
    common = gpu.CommonOptions(dtypes=("bfloat16",))
    (reading,) = gpu.long_chains(gpu.TINY, common, MACHINE)
    assert all(str(cost.failure).startswith("needs ") for cost in reading.costs.values())


def test_traces_of_a_block_and_a_step_are_written(tmp_path: Path) -> None:
    assert main(["--tiny", "--dtypes", "float32", "--trace", str(tmp_path / "traces")]) == 0
    for name in ("block", "step"):
        assert "aten::" in (tmp_path / "traces" / f"{name}.txt").read_text()
        assert json.loads(gzip.decompress((tmp_path / "traces" / f"{name}.json.gz").read_bytes()))["traceEvents"]


def test_the_last_table_sets_our_fastest_way_beside_plain_and_peers() -> None:
    costs = {"plain": 4.0, "ours (triton)": 3.0, "ours, replayed": 2.0, "rows": 1.0, "trifast": 5.0}
    reading = Readings(
        part="ops",
        name="attention",
        dtype=torch.bfloat16,
        passes="forward",
        costs={by: Cost(seconds=seconds) for by, seconds in costs.items()} | {"cuequivariance_torch": Cost(failure="")},
    )
    *_, line = summary([reading], MACHINE)
    assert line.split() == ["attention", "forward", "2000.000", "-", "2.00x", "2.50x"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [([], "no GPU"), (["--tiny", "--repeats", "0"], "must be at least 1"), (["--part", "all"], "invalid choice")],
)
def test_wrong_words_end_with_a_sentence(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
