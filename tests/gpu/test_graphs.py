"""Passes that are replayed as CUDA graphs give, bit for bit, what launches give; on a CPU operators are recorded."""

from contextlib import nullcontext

import pytest
import torch

from helixfold.execution.graphs import GraphRecorder, Recorder, Recordings
from helixfold.execution.nested import tensors
from helixfold.execution.random_inputs import random_batch
from helixfold.execution.recorded_passes import Passes
from helixfold.execution.whole import Whole
from helixfold.model.outputs import Recycled
from helixfold.ops.dispatch import forced
from helixfold.presets import preset
from helixfold.weights.untrained import untrained_model
from tests.gpu.devices import on_devices
from tests.operator_graphs import OperatorRecorder


def recorder(device: str) -> Recorder:
    return GraphRecorder(torch.device(device)) if device == "cuda" else OperatorRecorder()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("device", "sizes"), on_devices([("tiny", 9, 5, 7, 2)], [("model_1", 128, 64, 128, 4), ("tiny", 65, 33, 1, 0)])
)
@torch.no_grad()
def test_a_replayed_prediction_is_the_launched_one(
    device: str, sizes: tuple[str, int, int, int, int], dtype: torch.dtype
) -> None:
    name, *shape = sizes
    on, recordings = torch.device(device), Recordings(recorder(device), say=pytest.fail)
    model = untrained_model(preset(name).model, seed=0).to(on).eval()
    passes, found, expected = Passes(recordings), list[Recycled](), list[Recycled]()
    with forced("reference") if device == "cpu" else nullcontext():
        for _ in range(4):
            batch = random_batch(*shape, on)
            found.append(passes(model, Whole(), [batch], found[-1] if found else None, dtype).recycled())
            before = expected[-1] if expected else None
            expected.append(model.fold(Whole(), [batch], before, dtype).recycled())
    assert passes.replays == 2
    for ours, theirs in zip(tensors(found), tensors(expected), strict=True):
        assert ours.isfinite().all()
        assert torch.equal(ours, theirs)
