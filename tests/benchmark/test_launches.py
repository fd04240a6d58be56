"""`helixfold benchmark launches` counts every part, and what it keeps for the backward pass."""

import json
from pathlib import Path

import pytest
import torch

from helixfold.benchmark.launches import Launches, counted
from helixfold.benchmark.op_cases import Shape
from helixfold.benchmark.passes import Part, parts
from helixfold.cli.main import main
from helixfold.ops.device_properties import DEVICE_MODELS

SMALL = ["--preset", "tiny", "--residues", "12", "--rows", "4", "--extra-rows", "5"]


def test_launches_and_kept_bytes_are_those_of_the_code() -> None:
    with torch.device("meta"):
        linear, x = torch.nn.Linear(4, 4, bias=False), torch.empty(3, 4, requires_grad=True)
        scale = torch.empty(4)

    def run() -> torch.Tensor:
        if float(scale.sum()) > 0:
            return (linear(x * scale)).exp()
        return x

    leaves = [x, *linear.parameters()]
    forward, backward = counted(Part(name="two", run=run, module=linear, leaves=leaves), DEVICE_MODELS["h200"])
    assert forward.names == {"sum": 1, "mul": 1, "mm": 1, "exp": 1}
    assert (forward.kernels, forward.others, forward.waits) == (0, 4, {"_local_scalar_dense": 1})
    # The factor, the product's operand and the exponential; not the weight.
    assert forward.kept == 4 * (4 + 12 + 12)
    assert backward.names == {"mm": 2, "mul": 2}
    (prediction,) = counted(Part(name="one", run=run), DEVICE_MODELS["h200"])
    assert prediction.kept == 0


def test_the_command_counts_blocks_structure_module_losses_and_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "launches.json"
    assert main(["benchmark", "launches", *SMALL, "--json", str(path), "--names"]) == 0
    rows = [Launches(**row) for row in json.loads(path.read_text())]
    with_backward = [row.part for row in rows if row.backward]
    names = [part.name for part in parts(Shape(preset="tiny", residues=12, rows=4, extra_rows=5, dtype=torch.bfloat16))]
    assert list(dict.fromkeys(row.part for row in rows)) == names
    assert with_backward == [name for name in names if "prediction" not in name and "update of" not in name]
    by_part = {(row.part, row.backward): row for row in rows}
    block, unrounded = by_part["Evoformer block", False], by_part["Evoformer block, float32 parameters", False]
    assert unrounded.parameter_casts > block.parameter_casts
    assert block.kernels > 10
    assert block.kept > 0 == by_part["Evoformer block, prediction", False].kept
    step = by_part["training step, without recycling and update", False]
    assert step.kernels + step.others > 2 * (block.kernels + block.others)
    printed = capsys.readouterr().out
    assert printed.startswith("NVIDIA H200: tiny, 12 residues, 4 + 5 rows")
    assert "structure module" in printed


def test_a_card_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "launches", "--gpu", "cpu"]) == 2
    assert "h200" in capsys.readouterr().err
