"""The forecast of a design step counts what the step takes."""

from dataclasses import replace

import pytest
import torch

from data_pipeline.io.errors import InputError
from helixfold.apps.design import task
from helixfold.apps.design.memory import StepNeeds, _counted, check_memory, step_needs
from helixfold.apps.design.options import DesignOptions
from helixfold.execution.recompute import RecomputeConfig
from helixfold.model.presets import tiny
from helixfold.ops.card import CARDS
from helixfold.weights.find import ReadyModel
from tests.support.networks import tiny_model

pytestmark = pytest.mark.usefixtures("operators_on_small_tensors")

CARD = CARDS["a100-80"]  # without what a CPU's libraries take beside tensors
MODEL = ReadyModel(preset=tiny(), network=tiny_model(), digest="x")


def needs(residues: int = 24, **settings: object) -> StepNeeds:
    given = step_needs(task.hallucination(residues), MODEL.preset, DesignOptions(), CARD)
    return replace(given, **settings)  # type: ignore[arg-type]


def test_blocks_are_counted_in_proportion() -> None:
    deep = replace(
        tiny().model,
        evoformer=replace(tiny().model.evoformer, blocks=7),
        extra_msa=replace(tiny().model.extra_msa, blocks=4),
    )
    given = needs(model=deep, residues=24)
    # Tables that passes share are counted where they are made, at first.
    forecast = given.forecast(CARD)
    whole, _ = _counted(given, CARD, 7)
    assert 0.99 * whole <= forecast <= 1.1 * whole


def test_more_is_kept_without_recompute_and_through_recycling() -> None:
    usual = needs().forecast(CARD)
    assert needs(recomputed=RecomputeConfig.everywhere("none")).forecast(CARD) > 1.5 * usual
    through = needs(num_recycles=3).forecast(CARD)
    last = needs(num_recycles=3, through_recycling=False).forecast(CARD)
    assert usual < through
    assert last < 1.2 * usual < through


def test_what_does_not_fit_is_told_before_it_begins() -> None:
    given = task.hallucination(24)
    needed = check_memory(given, [MODEL], DesignOptions(), torch.device("cpu"), None)
    with pytest.raises(InputError, match=r"hallucination: a step is forecast to take .* of the .* that there are"):
        check_memory(given, [MODEL], DesignOptions(), torch.device("cpu"), needed // 2)
