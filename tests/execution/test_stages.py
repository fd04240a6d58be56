"""What `timings.json` says is what happened."""

from itertools import count

from helixfold.execution.stages import Stage, Stages

GIB = 2**30


def test_times_of_one_name_add_up_and_peaks_are_the_largest() -> None:
    stages = Stages()
    for seconds, peak in ((1.5, GIB), (0.25, 3 * GIB), (2.0, 2 * GIB)):
        stages.add(Stage(name="work", seconds=seconds, peak_memory=peak))
    stages.add(Stage(name="rest", seconds=0.5, peak_memory=GIB // 2))
    assert stages.table() == {
        "work": {"seconds": 3.75, "peak_memory_gib": 3.0},
        "rest": {"seconds": 0.5, "peak_memory_gib": 0.5},
    }


def test_a_stage_that_has_not_ended_counts_if_asked_for() -> None:
    ticks = count()  # a second between two readings
    stages = Stages(clock=lambda: float(next(ticks)))
    with stages.stage("outer"), stages.stage("inner"):
        assert list(stages.table()) == []
        table = stages.table(running=True)
    # Read when the outer and the inner stage began, and twice for the tables.
    assert {name: row["seconds"] for name, row in table.items()} == {"outer": 3.0, "inner": 2.0}
    assert table["outer"]["peak_memory_gib"] > 0
    assert stages.table(running=True) == stages.table()
    assert {name: row["seconds"] for name, row in stages.table().items()} == {"inner": 3.0, "outer": 5.0}
    assert list(stages.table()) == ["inner", "outer"]


def test_a_stage_that_fails_is_recorded() -> None:
    stages = Stages()
    try:
        with stages.stage("work"):
            raise KeyError
    except KeyError:
        assert stages.finished[0].name == "work"
