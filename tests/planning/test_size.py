"""Sizes of memory in messages."""

import pytest

from helixfold.planning.size import gib


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (2**20, "1.0 MiB"),
        (107_374_182, "102.4 MiB"),
        (107_374_183, "0.1 GiB"),
        (3 * 2**29, "1.5 GiB"),
        (2**41, "2,048.0 GiB"),
    ],
)
def test_small_sizes_are_in_mebibytes(size: int, text: str) -> None:
    assert gib(size) == text
