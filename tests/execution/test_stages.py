"""What `timings.json` says is what happened."""

import time

import torch

from helixfold.execution.stages import Stages


def test_times_of_one_name_add_up_and_peaks_are_the_largest() -> None:
    stages = Stages()
    for size in (1, 64):
        with stages.stage("work"):
            time.sleep(0.02)
            torch.ones(size * 2**18).sum()
    with stages.stage("rest"):
        pass
    table = stages.table()
    assert list(table) == ["work", "rest"]
    assert 0.04 <= table["work"]["seconds"] < 1
    assert table["work"]["peak_memory_gib"] >= max(stage.peak_memory for stage in stages.finished[:2]) / 2**30 - 1e-3


def test_a_stage_that_has_not_ended_counts_if_asked_for() -> None:
    stages = Stages()
    with stages.stage("outer"):
        time.sleep(0.02)
        with stages.stage("inner"):
            assert list(stages.table()) == []
            table = stages.table(running=True)
    assert list(table) == ["outer", "inner"]
    assert table["outer"]["seconds"] >= 0.02
    assert table["outer"]["peak_memory_gib"] > 0
    assert stages.table(running=True) == stages.table()
    assert list(stages.table()) == ["inner", "outer"]


def test_a_stage_that_fails_is_recorded() -> None:
    stages = Stages()
    try:
        with stages.stage("work"):
            raise KeyError
    except KeyError:
        assert stages.finished[0].name == "work"
