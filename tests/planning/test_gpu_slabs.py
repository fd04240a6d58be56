"""What a GPU launches in a block of the full size: whole streams, or slabs of hundreds of rows."""

from functools import partial

import pytest
import torch

from helixfold.execution import slabs
from helixfold.execution.counter import Counter
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.evoformer import EvoformerBlock
from helixfold.model.presets import preset
from helixfold.ops.device_properties import DEVICE_MODELS, simulated_device
from helixfold.planning.estimate import Device, Prediction, PredictionEstimate, estimate
from helixfold.planning.memory import FeatureRows
from helixfold.planning.passes import META

MODEL = preset("model_1_ptm")
H200 = DEVICE_MODELS["h200"]
MSA_ROWS = 512


def planned(residues: int, forced: str | None = None) -> PredictionEstimate:
    size = FeatureRows.at_most(residues, MODEL.sampling).size(MODEL, torch.bfloat16)
    work = Prediction(model=MODEL.model, size=size, executor=forced)
    return estimate(work, Device(properties=H200, memory=H200.memory, spill=2**40))


def launched(run: Whole | Slabs, residues: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Count the launches of a block, and the fewest rows of a slab that is not all of its stream."""
    stack, c_z, fewest = MODEL.model.evoformer, MODEL.model.c_z, [residues]
    row_slices = slabs.row_slices

    def noted(length: int, size: int) -> object:
        fewest.append(min(length, size) if size < length else residues)
        return row_slices(length, size)

    monkeypatch.setattr(slabs, "row_slices", noted)
    monkeypatch.setattr(slabs, "is_simulated", lambda: False)  # which would leave out all slabs but the first
    with simulated_device(H200), torch.no_grad(), META:
        empty = partial(torch.empty, dtype=torch.bfloat16)
        block = EvoformerBlock(stack, c_z, global_columns=False).eval().to(torch.bfloat16)
        streams = empty(1, MSA_ROWS, residues, stack.c_m), empty(1, residues, residues, c_z)
        with Counter() as counter:
            block(run, *streams, torch.empty(1, MSA_ROWS, residues), torch.empty(1, residues, residues))
    return counter.launches, min(fewest)


@pytest.mark.parametrize("residues", [1000, pytest.param(4000, marks=pytest.mark.long)])
def test_an_h200_launches_little_more_in_slabs_than_for_whole_streams(
    residues: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert planned(residues).executor == "whole"
    budget = planned(residues, "slabs").slab_budget
    assert budget == 8 * 2**30
    whole, _ = launched(Whole(), residues, monkeypatch)
    launches, rows = launched(Slabs(budget), residues, monkeypatch)
    assert whole < 50
    assert launches < 80
    assert rows > 500
    # With slabs of a CPU's size it launches a hundred times as much.
    assert launched(Slabs(), residues, monkeypatch)[0] > 100 * whole
