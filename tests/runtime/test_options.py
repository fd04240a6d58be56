"""Numbers, sizes and dates on the command line."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

import pytest

from helixfold.runtime.options import calendar_date, changed_options, integer, memory_size, number, positive


@pytest.mark.parametrize(
    ("word", "size"),
    [("8GiB", 2**33), ("8g", 2**33), ("6000MB", 6 * 10**9), ("1.5 GiB", 3 * 2**29), ("2TiB", 2**41), ("64k", 2**16)],
)
def test_memory_is_read_in_its_unit(word: str, size: int) -> None:
    assert memory_size(word) == size


@pytest.mark.parametrize("word", ["8", "0GiB", "-1GiB", "GiB", "8 apples", "8GiBs", "1e3G", ""])
def test_memory_without_size_or_unit_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="such as 8GiB"):
        memory_size(word)


@pytest.mark.parametrize(
    ("read", "word", "value"),
    [(integer, "-3", -3), (integer, "+07", 7), (positive, "12", 12), (number, "-0.5", -0.5), (number, "1e3", 1000.0)],
)
def test_numbers_are_read(read: Callable[[str], object], word: str, value: object) -> None:
    assert read(word) == value
    assert calendar_date("2021-11-01") == date(2021, 11, 1)


@pytest.mark.parametrize(
    ("read", "words", "problem"),
    [
        (integer, ("2.5", "0x10", "1_000", "\u0661", "", "9" * 51), "must be a whole number, got"),
        (positive, ("0", "-1", "2.5", "many", ""), "must be a whole number of at least 1, got"),
        (number, ("three", "", "1,5"), "must be a number, got"),
        (calendar_date, ("2021-13-01", "yesterday", ""), "must be a date as year-month-day, such as 2021-11-01, got"),
    ],
)
def test_other_words_are_refused(read: Callable[[str], object], words: tuple[str, ...], problem: str) -> None:
    for word in words:
        with pytest.raises(ValueError, match=problem):
            read(word)


def test_options_that_were_given_are_named_as_on_the_command_line() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Options:
        max_rows: int = 3
        overwrite: bool = False

    assert changed_options(Options()) == changed_options(Options(max_rows=3)) == []
    assert changed_options(Options(max_rows=4, overwrite=True)) == ["--max-rows", "--overwrite"]
