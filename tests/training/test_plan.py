"""A plan multiplies the time of a step by the steps of each stage; wrong hardware is named in one sentence."""

import pytest

from data_pipeline.io.errors import InputError
from helixfold.training.options import PlanOptions
from helixfold.training.plan import Hardware, duration, plan_lines, stages_of


def test_stages_have_the_published_samples_unless_others_are_asked_for() -> None:
    first, second = stages_of(PlanOptions())
    assert (first.name, first.samples, second.name, second.samples) == (
        *("initial_training", 10_000_000),
        *("finetuning", 1_500_000),
    )
    assert first.steps == 78_125  # of 128 samples
    own = stages_of(PlanOptions(samples=(1000, 64), settings=("batch_size=64",)))
    assert [(stage.samples, stage.steps) for stage in own] == [(1000, 16), (64, 1)]
    (short,) = stages_of(PlanOptions(preset=("initial_training",), settings=("steps=7", "batch_size=8")))
    assert (short.samples, short.steps) == (56, 7)
    (branches,) = stages_of(PlanOptions(preset=("initial_training",), parallel_blocks=True))
    assert branches.config.model.evoformer.outer_product == "end"
    assert first.config.model.evoformer.outer_product != "end"


def test_stated_times_of_steps_make_the_time_of_the_training() -> None:
    options = PlanOptions(hardware=("h100x16+32",), step_seconds=(2.0, 4.0), samples=(1280, 256))
    lines = [line.split() for line in plan_lines(options)]
    rows = {line[0]: line[1:] for line in lines if line}
    assert rows["initial_training"][:3] == ["1,280", "10", "16"]
    assert rows["initial_training"][-2:] == ["20.0", "s"]
    assert rows["finetuning"][:3] == ["256", "2", "32"]
    assert rows["finetuning"][-2:] == ["8.0", "s"]
    total = next(line for line in lines if line[:2] == ["in", "all"])
    # 12 steps take 28 s.
    assert total[2:] == ["1,536", "12", "mean", "2.333", "28.0", "s"]
    assert not any("calculated," in line for line in lines)


def test_wrong_options_of_a_plan_are_one_sentence() -> None:
    for options, message in (
        (PlanOptions(samples=(1,)), r"--samples has 1 number for 2 stages \(initial_training, finetuning\)"),
        (PlanOptions(preset=("tiny",), samples=(1, 2)), r"--samples has 2 numbers for 1 stage \(tiny\)"),
        (PlanOptions(step_seconds=(1.0, 2.0, 3.0)), "--step-seconds has 3 numbers for 2 stages"),
        (PlanOptions(step_seconds=(1.0, 0.0)), "--step-seconds must be numbers of seconds greater than 0"),
        (PlanOptions(hardware=("abacusx2",)), "--hardware must be a kind of device"),
        (PlanOptions(hardware=("a100",)), "--hardware must be a kind of device"),
        (PlanOptions(hardware=("a100x0",)), "--hardware must have from 1 to"),
    ):
        with pytest.raises(InputError, match=message):
            list(plan_lines(options))


def test_hardware_is_read_with_the_devices_of_each_stage() -> None:
    one, two = Hardware.parse("a100x128"), Hardware.parse("H100x256+512")
    assert [one.ranks_of(stage) for stage in range(3)] == [128] * 3
    assert [two.ranks_of(stage) for stage in range(3)] == [256, 512, 512]
    assert (Hardware.parse("a100-80x8").machine, Hardware.parse("rtx4090x16").ranks) == ("a100-80", (16,))
    assert (str(two), str(Hardware.parse("here")), Hardware.parse("herex2").ranks) == ("h100x256+512", "herex1", (2,))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (59.96, "60.0 s"),
        (60, "1.0 min"),
        (3599, "60.0 min"),
        (5400, "1.50 h"),
        (86_400, "1.000 days"),
        (1e9, "11,574.074 days"),
    ],
)
def test_durations_are_in_the_largest_unit_that_they_fill(seconds: float, text: str) -> None:
    assert duration(seconds) == text
