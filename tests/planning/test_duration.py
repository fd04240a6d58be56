"""The estimated time of a prediction follows from the work of its passes and the speed of the device."""

from dataclasses import replace

import pytest
import torch

from helixfold.model.config import ModelConfig
from helixfold.model.presets import preset
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.planning import estimate as subject
from helixfold.planning.estimate import Device, Prediction, PredictionEstimate
from helixfold.planning.size import PassSize

CPU = DEVICE_MODELS["cpu"]
SIZE = PassSize(residues=96, msa_rows=4, extra_rows=4, templates=0, dtype=torch.float32)


@pytest.fixture(autouse=True)
def slow_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_product_rate", lambda device, dtype: 1e9)
    monkeypatch.setattr(subject, "_copy_rate", lambda: 1e8)


def prediction_seconds(config: ModelConfig, size: PassSize, passes: int) -> float:
    work = Prediction(model=config, size=size, recycling_iterations=passes)
    return PredictionEstimate(work=work, device=Device(properties=CPU, memory=0), executor="whole").seconds


def test_time_is_the_work_of_all_passes_divided_by_the_speed() -> None:
    config = preset("tiny").model
    work = subject.pass_work(config, SIZE)
    assert work.products > 1e8
    assert work.moved > 1e7
    one = prediction_seconds(config, SIZE, 1)
    assert one == pytest.approx(work.products / 1e9 + work.moved / 1e8 + 1e-5 * work.launches)
    assert prediction_seconds(config, SIZE, 4) == pytest.approx(4 * one)
    assert prediction_seconds(config, replace(SIZE, ensemble=2), 1) == pytest.approx(2 * one)
    shared = prediction_seconds(config, replace(SIZE, ranks=2), 1)
    assert shared == pytest.approx(work.products / 2e9 + work.moved / 2e8 + 1e-5 * work.launches)


def test_all_blocks_are_counted() -> None:
    config = preset("tiny").model
    more = replace(config, evoformer=replace(config.evoformer, blocks=2 * config.evoformer.blocks))
    assert subject.pass_work(more, SIZE).products > 1.2 * subject.pass_work(config, SIZE).products


@pytest.mark.integration
def test_longer_chains_take_longer() -> None:
    config = preset("tiny").model
    seconds = [prediction_seconds(config, replace(SIZE, residues=n), 1) for n in (30, 33, 64, 65, 130)]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 3 * seconds[2]
