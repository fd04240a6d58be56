"""Lines through readings of links."""

import pytest
import torch

from helixfold.planning import links
from helixfold.planning.links import Line, Links, min_seconds


def test_a_line_goes_through_readings_that_are_on_one() -> None:
    line = Line.through({1.0: 5.0, 0.5: 3.5, 0.25: 2.75})
    assert (line.fixed, line.slope) == pytest.approx((2.0, 3.0))
    assert line.at(2.0) == pytest.approx(8.0)


@pytest.mark.parametrize("readings", [{1.0: 1.0, 0.5: 1.2}, {1.0: 4.0, 0.5: 1.0}, {1.0: 3.0}])
def test_no_part_of_a_line_is_negative(readings: dict[float, float]) -> None:
    line = Line.through(readings)
    assert line.fixed >= 0
    assert line.slope >= 0
    least, most = min(readings.values()), max(readings.values())
    assert 0.5 * least <= line.at(1.0) <= 1.1 * most


def test_messages_between_two_branches_take_what_an_exchange_takes() -> None:
    found = Links(all_to_all=Line(fixed=1.0), all_gather=Line(fixed=2.0))
    assert [found.at(kind, 8.0) for kind in ("all_to_all", "swap", "all_gather")] == [1.0, 1.0, 2.0]  # type: ignore


def test_the_shorter_of_two_readings_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    unit, clock, calls = 2**-10, [0.0], list[int]()

    def call() -> None:
        """Take a unit of time until the end of the first measurement, and two later."""
        calls.append(0)
        clock[0] += unit if len(calls) <= 10 else 2 * unit

    monkeypatch.setattr("helixfold.execution.stages.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(links, "_MIN_READING", 8 * unit)
    # One call that is not counted, one that tells how often to repeat, and two measurements of eight calls.
    assert min_seconds(call, torch.device("cpu")) == unit
    assert len(calls) == 1 + 1 + 2 * 8
