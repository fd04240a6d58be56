"""Residues, windows and depths are read as they are written, and any other text is refused in a sentence."""

from collections.abc import Callable

import pytest

from data_pipeline.residue_ranges import ResidueRange, read_depth, read_ranges, read_window


def test_ranges_name_residues_with_or_without_a_chain() -> None:
    found = read_ranges("10-20,45,A:3,b2:5-5")
    assert found == (
        ResidueRange(first=10, last=20),
        ResidueRange(first=45, last=45),
        ResidueRange(first=3, last=3, chain="A"),
        ResidueRange(first=5, last=5, chain="b2"),
    )
    assert list(map(str, found)) == ["10-20", "45", "A:3", "b2:5"]


def test_windows_lie_side_by_side_unless_their_steps_are_given() -> None:
    assert read_window("10") == (10, 10)
    assert read_window("10:4") == (10, 4)
    assert read_window("3:3") == (3, 3)
    assert read_depth("16:32") == (16, 32)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((read_ranges, text) for text in ("", "0", "3-2", "1,,2", "A:", ":3", "1-", "0-4", "1 - 2", "1,2,", "-3")),
        *((read_window, text) for text in ("", "0", "3:4", "3:0", "5:", ":2", "1:1:1", "x", "-3", "1234567")),
        *((read_depth, text) for text in ("", "3", "0:4", "4:0", "3:", "1:2:3", "a:b")),
    ],
)
def test_any_other_text_is_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=f"must .*, got '{text}'$"):
        read(text)
