"""What an input error looks like on a terminal."""

import re
from types import SimpleNamespace
from typing import Never

import pytest

from data_pipeline.errors import (
    InputError,
    check_at_least,
    check_at_most,
    check_fractions,
    check_positive,
    printable,
)


def test_error_names_file_line_column_and_record() -> None:
    error = InputError.at("a.fasta", "'1' is no residue", line=3, column=7, record="T1")
    assert str(error) == "a.fasta, line 3, column 7, record 'T1': '1' is no residue"


def test_error_is_one_printable_line_whatever_the_file_holds() -> None:
    error = InputError.at("a\n\x1b[31m.fasta", "wrong", record="\x07\u202ename" + "x" * 1000)
    assert str(error).isprintable()
    assert len(str(error)) < 300


def test_printable_keeps_ordinary_text() -> None:
    assert printable("sp|P12345|Ünïcode name") == "sp|P12345|Ünïcode name"


def test_printable_reads_no_more_than_it_shows() -> None:
    class Endless(str):
        def __iter__(self) -> Never:
            raise AssertionError

    assert printable(Endless("a" * 1_000), 3) == "aaa..."
    assert printable("\x07\x07", 3) == "\\x0..."
    assert printable("abc", 3) == "abc"


def test_limits_of_settings_are_inclusive_and_nan_is_none() -> None:
    settings = SimpleNamespace(none=None, zero=0, one=1, many=2000, nan=float("nan"), minus=-0.5, endless=float("inf"))
    check_at_least(settings, none=5, zero=0, one=1, many=1999)
    check_at_most(settings, none=0, one=1, many=2000)
    check_positive(settings, "none", "one")
    check_fractions(settings, "none", "zero", "one")
    for check, problem in (
        (lambda: check_at_least(settings, zero=0, one=2), "one must be at least 2, got 1"),
        (lambda: check_at_least(settings, nan=0), "nan must be at least 0, got nan"),
        (lambda: check_at_most(settings, one=1, many=1999), "many must be at most 1,999, got 2000"),
        (lambda: check_positive(settings, "one", "zero"), "zero must be a positive number, got 0"),
        (lambda: check_positive(settings, "endless"), "endless must be a positive number, got inf"),
        (lambda: check_fractions(settings, "zero", "minus"), "minus must be within 0..1, got -0.5"),
        (lambda: check_fractions(settings, "nan"), "nan must be within 0..1, got nan"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(problem)}$"):
            check()
