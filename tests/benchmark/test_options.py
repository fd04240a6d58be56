"""Names that options repeat, because their modules take long to load, are those of the modules."""

from typing import get_args

from helixfold.benchmark.options import GPUS, MODELS, CheckpointPolicy
from helixfold.execution.recompute import Keep
from helixfold.model.presets import PRESETS
from helixfold.ops.device_properties import DEVICE_MODELS


def test_repeated_names_are_those_of_the_modules() -> None:
    assert tuple(PRESETS) == MODELS
    assert tuple(name for name, properties in DEVICE_MODELS.items() if properties.kind == "cuda") == GPUS
    assert get_args(CheckpointPolicy) == get_args(Keep)
