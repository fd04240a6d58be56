"""The planner is told what a step of a run takes, and a run may take the layout that it picks."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helixfold.execution.recompute import RecomputeConfig
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.parallel.mesh import Layout
from helixfold.planning.estimate import Device, estimate
from helixfold.training.estimate import with_settled_recompute, workload
from helixfold.training.presets import initial_training, tiny
from tests.training.command_runs import Run


def test_a_workload_is_what_the_settings_say() -> None:
    config = replace(initial_training(), dtype="bfloat16")
    work = workload(config)
    assert (work.micro_batches, work.batch_size, work.recycling_iterations, work.clips_samples) == (128, 128, 1.5, True)
    assert work.parameters == pytest.approx(93.2e6, rel=0.01)
    assert work.size.dtype == torch.bfloat16
    assert all(layout.bp == 1 for layout in work.layouts(8))


def test_ranks_that_share_a_sample_recompute_less() -> None:
    config = replace(tiny(), recompute=RecomputeConfig.everywhere("auto")).with_settings(
        ["model.evoformer.blocks=12", "model.structure.layers=1", "example.sampling.max_templates=0"]
    )
    none = RecomputeConfig.everywhere("none")
    memory = (
        estimate(workload(replace(config, recompute=none)), Device(properties=DEVICE_MODELS["cpu"], memory=0)).needed
        - 1
    )
    assert with_settled_recompute(config, memory, DEVICE_MODELS["cpu"])[0].recompute != none
    divided, _ = with_settled_recompute(config, memory, DEVICE_MODELS["cpu"], Layout(dap=2))
    assert divided.recompute == RecomputeConfig.everywhere("none")


@pytest.mark.long  # ranks measure what the machine can do
def test_a_run_may_take_the_layout_that_is_picked(store: Path, tmp_path: Path) -> None:
    run = Run(store=store, directory=tmp_path / "run", options=("--layout=auto",))
    # One part for two ranks: they must share it, as the block order allows.
    run.finish(2, steps=1, batch_size=1, **{"example.sampling.max_templates": 0})
    assert len(run.losses()) == 1
    assert '"layout": "dp=1,bp=1,dap=2"' in "".join(path.read_text() for path in run.directory.glob("*.json"))
