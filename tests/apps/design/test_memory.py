"""The forecast of a design step counts what the step takes."""

from dataclasses import replace

import pytest

from data_pipeline.io.errors import InputError
from helixfold.apps.design import task
from helixfold.apps.design.memory import check_memory, workload
from helixfold.apps.design.options import DesignOptions
from helixfold.execution.recompute import RecomputeConfig
from helixfold.model.presets import tiny
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.planning import passes
from helixfold.planning.estimate import Device, Training, estimate
from helixfold.weights.find import ReadyModel
from tests.support.networks import tiny_model

pytestmark = pytest.mark.usefixtures("operators_on_small_tensors")

# Without what a CPU's libraries take beside tensors.
DEVICE = Device(properties=DEVICE_MODELS["a100-80"], memory=0)
MODEL, USUAL = ReadyModel(preset=tiny(), network=tiny_model(), digest="x"), DesignOptions()


def step(options: DesignOptions = USUAL, **changes: object) -> Training:
    given = workload(task.hallucination(24), MODEL.preset, options, DEVICE.properties)
    return replace(given, **changes)  # type: ignore[arg-type]


def peak(work: Training) -> int:
    return estimate(work, DEVICE).peak


def test_blocks_are_counted_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = replace(
        tiny().model,
        evoformer=replace(tiny().model.evoformer, blocks=7),
        extra_msa=replace(tiny().model.extra_msa, blocks=4),
    )
    found = peak(step(model=deep))

    class Whole(passes.Pass):
        blocks = property(lambda _: 7, lambda *_: None)  # type: ignore[assignment]

    monkeypatch.setattr(passes, "Pass", Whole)
    passes.step_peak.cache_clear()
    # Tables that passes share are counted where they are made, at first.
    assert 0.99 * peak(step(model=deep)) <= found <= 1.1 * peak(step(model=deep))


def test_more_is_kept_without_recompute_and_through_recycling() -> None:
    usual = peak(step())
    assert peak(step(recompute=RecomputeConfig.everywhere("none"))) > 1.5 * usual
    through = peak(step(DesignOptions(num_recycles=3)))
    last = peak(step(DesignOptions(num_recycles=3, gradients_through="last")))
    assert usual < through
    assert last < 1.2 * usual < through


def test_what_does_not_fit_is_told_before_it_begins() -> None:
    given, cpu = task.hallucination(24), Device(properties=DEVICE_MODELS["cpu"], memory=2**40)
    needed = check_memory(given, [MODEL], DesignOptions(), cpu)
    with pytest.raises(InputError, match=r"hallucination: a step is forecast to take .* of the .* available"):
        check_memory(given, [MODEL], DesignOptions(), replace(cpu, memory=needed // 2))
