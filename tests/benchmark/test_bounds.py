"""What a GPU is given to do does not grow: upper bounds, to be lowered by whoever makes it less."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helixfold.benchmark.launches import Launches, counted
from helixfold.benchmark.op_cases import Shape
from helixfold.benchmark.passes import BLOCK, PARTS, parts
from helixfold.ops.device_properties import DEVICE_MODELS

ROOT = Path(__file__).parents[2]
# Launches of the forward and of the backward pass, and casts of parameters, of `model_1`'s parts at 256 residues.
LAUNCHES = {
    "Evoformer block": (47, 85, 0),
    "Evoformer block, float32 parameters": (89, 139, 42),
    "Evoformer block, prediction": (37, 0, 0),
    "Evoformer block, prediction, float32 parameters": (79, 0, 42),
    "extra-MSA block": (63, 106, 0),
    "template embedding": (101, 125, 0),
    "structure module": (174, 377, 0),
    "losses of initial training": (149, 73, 0),
    "losses of fine-tuning": (234, 171, 0),
    "update of the parameters": (50, 0, 0),
}
# An update reads the norm of the gradient.
WAITS = {"update of the parameters": {"_to_copy": 1}}
OF_WHOLE_NETWORK = {
    "prediction pass": (3259, 0, 0),
    "training step, without recycling and update": (3147, 5145, 0),
}
# Bytes of a thread's stack, which is where values are that found no register, for compute capability 8.0 and 9.0, in
# training in bfloat16. Kernels that are not here have none; those of invariant points compute in float32.
# An H100 needs 125 us for the gradients after a triangle's product with four warps, which spill, 209 with eight, and
# 197 for the gradient of an outer product's weight by tiles of 16 x 8 edges, 263 by those of 16 x 4.
IN_BLOCK = {"triangle_backward.change_backward": (0, 176), "outer_product_backward.backward_of_weight": (0, 32)}
IN_OTHER_PARTS = {
    "aligned_errors.of_points": (0, 8),
    "invariant_point.attend": (0, 24),
    "invariant_point_backward.differentiate": (40, 80),
    "triangle_backward.change_backward": IN_BLOCK["triangle_backward.change_backward"],  # of the templates
}


@pytest.mark.parametrize(
    "bounds",
    [pytest.param(LAUNCHES, id="parts"), pytest.param(OF_WHOLE_NETWORK, id="whole network", marks=pytest.mark.long)],
)
def test_launches_and_casts_are_within_bounds_and_the_host_waits_for_updates_only(
    bounds: dict[str, tuple[int, int, int]],
) -> None:
    found: dict[str, list[Launches]] = {}
    for part in parts(Shape(preset="model_1", residues=256, rows=128, extra_rows=1024, dtype=torch.bfloat16)):
        if part.name in bounds:
            found[part.name] = list(counted(part, DEVICE_MODELS["h200"]))
    assert found.keys() == bounds.keys()
    for name, (forward, backward, casts) in bounds.items():
        passes = found[name]
        launches = [each.kernels + each.others for each in passes] + [0] * (2 - len(passes))
        assert (launches[0] <= forward, launches[1] <= backward) == (True, True), (name, launches)
        assert sum(each.parameter_casts for each in passes) <= casts, name
        assert passes[0].waits == WAITS.get(name, {}), name
        assert not any(each.waits for each in passes[1:]), name


@pytest.mark.parametrize("architecture", [pytest.param(80, marks=pytest.mark.long), 90])
@pytest.mark.parametrize(
    ("names", "bounds"),
    [
        pytest.param((BLOCK,), IN_BLOCK, id="block"),
        pytest.param(PARTS, IN_OTHER_PARTS, id="other parts", marks=pytest.mark.long),
    ],
)
def test_kernels_spill_no_more_than_the_table_says(
    names: tuple[str, ...], bounds: dict[str, tuple[int, int]], architecture: int
) -> None:
    triton = pytest.importorskip("triton", reason="kernels are compiled where triton is installed")
    if triton.__version__.split(".")[:2] != ["3", "9"]:
        pytest.skip(f"the table is of Triton 3.9, not {triton.__version__}")
    # In this process kernels are interpreted.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.benchmark.spills", str(architecture), *names]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    spilled = json.loads(done.stdout)
    assert len(spilled) > 15
    allowed = {name: both[architecture == 90] for name, both in bounds.items()}
    assert not {name: count for name, count in spilled.items() if count > allowed.get(name, 0)}
