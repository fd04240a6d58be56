"""Sizes on the command line."""

import argparse

import pytest

from helixfold.predict.sizes import memory_size


@pytest.mark.parametrize(
    ("word", "size"),
    [("8GiB", 2**33), ("8g", 2**33), ("6000MB", 6 * 10**9), ("1.5 GiB", 3 * 2**29), ("2TiB", 2**41), ("64k", 2**16)],
)
def test_memory_is_read_in_its_unit(word: str, size: int) -> None:
    assert memory_size(word) == size


@pytest.mark.parametrize("word", ["8", "0GiB", "-1GiB", "GiB", "8 apples", "8GiBs", "1e3G", ""])
def test_memory_without_size_or_unit_is_refused(word: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as 8GiB"):
        memory_size(word)
