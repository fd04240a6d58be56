"""The memory that a prediction may use, and the size of its input, are those of the run."""

from pathlib import Path

import numpy as np
import pytest
import torch

from data_pipeline.sampling.sample import draw_sample
from helixfold.model.presets import preset
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.planning.estimate import Device
from helixfold.planning.memory import FeatureRows, MemoryOptions
from helixfold.weights.find import find_models
from tests.data_pipeline.sampling.samples import random_features

CPU = torch.device("cpu")


@pytest.mark.parametrize("rows", [1, 300, 600, 6000])
@pytest.mark.parametrize("name", ["model_1_ptm", "model_3"])
@pytest.mark.parametrize("templates", [1, 6])
def test_the_size_of_an_input_is_that_of_a_draw(rows: int, name: str, templates: int) -> None:
    features, used = random_features(rows, 5, templates), preset(name)
    size = FeatureRows.of(features).size(used, torch.float32, ensemble=3, ranks=2)
    sample = draw_sample(features, used.sampling, np.random.default_rng(0))
    assert (size.residues, size.msa_rows, size.extra_rows) == (5, len(sample.msa_mask), len(sample.extra_msa_mask))
    assert size.templates == len(sample.template_mask)
    assert (size.dtype, size.ensemble, size.ranks) == (torch.float32, 3, 2)


@pytest.mark.parametrize("templates", [True, False])
def test_before_a_search_the_size_is_the_largest_that_it_can_be(templates: bool) -> None:
    used = preset("model_1_ptm")
    size = FeatureRows.at_most(5, used.sampling, templates=templates).size(used, torch.float32)
    deepest = FeatureRows.of(random_features(6000, 5, 6 if templates else 0)).size(used, torch.float32)
    assert size == deepest


def test_limits_of_rows_only_lower_those_of_the_model() -> None:
    (model,) = find_models(["tiny"], None, seed=0)
    sampling = model.preset.sampling
    limited = MemoryOptions(max_msa_rows=3, max_extra_rows=10**6).limited(model).preset.sampling
    assert (limited.max_msa_clusters, limited.max_extra_msa) == (3, sampling.max_extra_msa)
    assert MemoryOptions().limited(model).preset == model.preset


def test_processes_of_a_machine_share_its_memory_and_its_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helixfold.planning.memory.available_memory", lambda _: 100)
    monkeypatch.setattr(
        "helixfold.planning.memory.Device.at_hand",
        lambda _, __, memory: Device(properties=DEVICE_MODELS["cpu"], memory=memory or 100, spill=80),
    )
    four = MemoryOptions().divided(4, CPU)
    assert (four.memory, four.processes) == (25, 4)
    assert four.available(CPU, Path()) == Device(properties=DEVICE_MODELS["cpu"], memory=25, spill=20)
    # What the user says is said of each process, and a GPU has its own.
    assert MemoryOptions(memory=60).divided(4, CPU).memory == 60
    assert MemoryOptions().divided(4, torch.device("cuda")).memory is None
    assert MemoryOptions().divided(1, CPU) == MemoryOptions()
