"""Benchmarks measure what they say, on sizes that take no time."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helixfold.benchmark import measurement, step
from helixfold.benchmark.block import block_flops
from helixfold.cli.main import main
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.dispatch import forced
from helixfold.training import presets
from tests.support.operator_graphs import OperatorCapturer

ROOT = Path(__file__).parents[2]
SMALL = {
    "ops": ["--preset", "tiny", "--residues", "8", "--rows", "4", "--extra-rows", "4", "--only", "transition"],
    "block": ["--preset", "tiny", "--residues", "8", "--rows", "4"],
    "step": ["--residues", "12", "--rows", "4"],
}
# What a machine may lack that has torch, numpy, einops and jaxtyping.
OTHER_LIBRARIES = (
    "Bio", "biotite", "gemmi", "ihm", "lmdb", "matplotlib", "modelcif", "platformdirs", "pyhmmer",
    "safetensors", "tensorboard", "triton", "urllib3",
)  # fmt: skip


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 100 GFLOP/s, 200 at most, and 10 GB/s, whatever this one does at the moment."""
    monkeypatch.setattr(measurement, "product_rate", lambda *_: 1e11)
    monkeypatch.setattr(measurement, "peak_rate", lambda *_: 2e11)
    monkeypatch.setattr(measurement, "copy_rate", lambda *_: 1e10)


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time the steps of a network with one block and one layer."""
    config = presets.tiny().with_settings(["model.evoformer.blocks=1", "model.structure.layers=1"])
    monkeypatch.setitem(step.STAGES, "tiny", lambda: config)


def measured(path: Path, part: str, *options: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    arguments = [part, *SMALL[part], "--dtypes", "float32", "--repeats", "1", "--json", str(path), *options]
    assert main(["benchmark", *arguments]) == 0
    found = json.loads(path.read_text())
    return found["machine"], found["readings"]


def kinds(rows: Sequence[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(row["passes"], row["by"]) for row in rows}


def test_operations_of_a_block_are_those_of_the_arithmetic() -> None:
    assert block_flops(256, 128) == pytest.approx(216.1e9, rel=1e-3)
    assert block_flops(256, 128, gradients=True) == pytest.approx(3 * 216.1e9, rel=1e-2)


def test_a_block_is_measured_plain_whole_and_in_slabs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine, rows = measured(tmp_path / "block.json", "block")
    assert (machine["product_flops"], machine["peak_flops"]) == ({"float32": 1e11}, 2e11)
    assert machine["threads"] >= 1
    both = "forward and backward"
    assert kinds(rows) == {
        ("forward", "plain"),
        ("forward", "ours"),
        ("forward", "ours, in slabs"),
        (both, "plain"),
        (both, "ours"),
    }
    plain = rows[0]
    assert plain["times_faster"] == 1
    assert plain["gflops"] == pytest.approx(plain["flops"] / plain["seconds"] / 1e9)
    assert plain["share_of_product"] == pytest.approx(plain["gflops"] / 100)
    assert plain["share_of_peak"] == pytest.approx(plain["gflops"] / 200)
    assert rows[1]["times_faster"] == pytest.approx(plain["seconds"] / rows[1]["seconds"])
    lines = capsys.readouterr().out.splitlines()
    assert "load average" in lines[0]
    assert "torch" in lines[1]
    assert sum(line.startswith("forward") for line in lines) == len(rows)


@pytest.mark.usefixtures("shallow")
def test_a_step_is_measured_in_parts_and_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, rows = measured(tmp_path / "step.json", "step")
    parts = ("forward", "backward", "optimizer", "whole")
    assert kinds(rows) == {(part, by) for part in parts for by in ("plain", "ours")}
    seconds = {(row["passes"], row["by"]): row["seconds"] for row in rows}
    assert all(value > 0 for value in seconds.values())
    for by in ("plain", "ours"):
        assert seconds["whole", by] == pytest.approx(sum(seconds[part, by] for part in parts[:3]))
    assert "examples/s" in capsys.readouterr().out


@pytest.mark.usefixtures("shallow")
def test_a_step_is_measured_with_recycling_and_replayed_where_there_are_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("ops.mask_bias", "optim.flat", "benchmark.step"):
        monkeypatch.setattr(f"helixfold.{module}.properties_of", lambda device: DEVICE_MODELS["h100"])
    capturer = OperatorCapturer()
    monkeypatch.setattr("helixfold.benchmark.step.GraphCapturer", lambda device: capturer)
    with forced("reference"):
        _, rows = measured(tmp_path / "step.json", "step", "--num-recycles", "2")
    parts = ("recycling", "forward", "backward", "optimizer", "whole")
    assert kinds(rows) == {
        *((part, by) for part in parts for by in ("plain", "ours")),
        ("whole", "ours, replayed"),
    }
    assert (capturer.launched, capturer.captured) == (2, 2)
    # Of two recycling iterations in each of three steps, the first one is launched; so is the first step's last one.
    assert capturer.replayed == 5 + 2
    assert all("2 recycling iterations" in row["name"] for row in rows)
    assert not any("capturing one failed" in note for row in rows for note in row["notes"])


@pytest.mark.long
def test_a_machine_with_little_more_than_torch_can_be_measured() -> None:
    commands = [["benchmark", part, *SMALL[part], "--dtypes", "float32", "--repeats", "1"] for part in ("ops", "block")]
    program = f"""
import sys, torch
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OTHER_LIBRARIES!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Lacking())
torch.set_num_threads(1)
from helixfold.benchmark import measurement
from helixfold.cli.main import main
measurement.product_rate = measurement.peak_rate = measurement.copy_rate = lambda *_: 1e10
for command in {commands!r}:
    assert main(command) == 0
import helixfold.benchmark.model, helixfold.benchmark.step
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout


@pytest.mark.parametrize("command", [["benchmark", "block", "--residues"], ["doctor", "--length"]])
@pytest.mark.parametrize("size", ["0", "-1", "many"])
def test_sizes_are_at_least_1(command: list[str], size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, size]) == 2
    error = capsys.readouterr().err
    assert "must be a whole number" in error
    assert f"got {size!r}" in error
