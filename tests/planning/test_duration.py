"""The estimated time of a prediction follows from the work of its passes and the speed of the device."""

from dataclasses import replace

import pytest
import torch

from helixfold.model.presets import preset
from helixfold.planning import duration
from helixfold.planning.duration import prediction_seconds
from helixfold.planning.size import PassSize

CPU = torch.device("cpu")
SIZE = PassSize(residues=96, msa_rows=4, extra_rows=4, templates=0, dtype=torch.float32)


@pytest.fixture(autouse=True)
def slow_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duration, "_product_rate", lambda device, dtype: 1e9)
    monkeypatch.setattr(duration, "_copy_rate", lambda: 1e8)


def test_time_is_the_work_of_all_passes_divided_by_the_speed() -> None:
    config = preset("tiny").model
    products, moved, calls = duration.pass_work(config, SIZE)
    assert products > 1e8
    assert moved > 1e7
    one = prediction_seconds(config, SIZE, CPU, 1)
    assert one == pytest.approx(products / 1e9 + moved / 1e8 + 1e-5 * calls)
    assert prediction_seconds(config, SIZE, CPU, 4) == pytest.approx(4 * one)
    assert prediction_seconds(config, replace(SIZE, ensemble=2), CPU, 1) == pytest.approx(2 * one)
    shared = prediction_seconds(config, replace(SIZE, ranks=2), CPU, 1)
    assert shared == pytest.approx(products / 2e9 + moved / 2e8 + 1e-5 * calls)


def test_all_blocks_are_counted() -> None:
    config = preset("tiny").model
    more = replace(config, evoformer=replace(config.evoformer, blocks=2 * config.evoformer.blocks))
    assert duration.pass_work(more, SIZE)[0] > 1.2 * duration.pass_work(config, SIZE)[0]


@pytest.mark.integration
def test_longer_chains_take_longer() -> None:
    config = preset("tiny").model
    seconds = [prediction_seconds(config, replace(SIZE, residues=n), CPU, 1) for n in (30, 33, 64, 65, 130)]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 3 * seconds[2]
