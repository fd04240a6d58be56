"""The time that is left is told from what was measured, as quadratic and cubic in the length."""

import pytest

from helixfold.runtime.screen import format_duration, remaining_seconds


def test_nothing_is_told_before_anything_was_measured() -> None:
    assert remaining_seconds([], [(100, 1)]) is None


def test_lengths_that_follow_the_law_are_foretold() -> None:
    finished = [(residues, 1e-4 * residues**2 + 2e-6 * residues**3) for residues in (50, 120, 300)]
    assert remaining_seconds(finished, [(1000, 5), (10, 1)]) == pytest.approx(5 * 2100 + 0.012, rel=1e-6)
    assert remaining_seconds(finished, [(1000, 5)], at_once=2) == pytest.approx(2.5 * 2100, rel=1e-6)


def test_no_estimate_is_negative_whatever_was_measured() -> None:
    for residues in (1, 50, 5000):
        left = remaining_seconds([(10, 5.0), (100, 5.0), (1000, 1.0)], [(residues, 1)])
        assert left is not None
        assert left > 0


def test_durations_are_told_as_a_person_does() -> None:
    told = [format_duration(seconds) for seconds in (0.4, 40, 240, 9000, 400_000)]
    assert told == ["0 s", "40 s", "4 min", "2.5 h", "4.6 d"]
