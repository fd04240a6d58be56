"""Rows take no more memory than their counts need, and the target's columns split other rows as AlphaFold does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.parse import alignment_rows
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.parse.alignment_rows import AlignmentBuilder, TargetColumns, row_limit


@pytest.mark.parametrize(
    ("inserted", "dtype"), [(0, np.int8), (127, np.int8), (128, np.int16), (32767, np.int16), (32768, np.int32)]
)
def test_counts_are_as_wide_as_the_largest_needs(inserted: int, dtype: type) -> None:
    content = b">q\nACD\n>a\nAaC-\n>h\nA" + b"w" * inserted + b"CD\n>b\n-aaC-\n>c\nACD\n"
    deletions = parse_a3m(content).deletion_matrix
    assert deletions.dtype == dtype
    np.testing.assert_array_equal(deletions, [[0, 0, 0], [0, 1, 0], [0, inserted, 0], [0, 2, 0], [0, 0, 0]])


def test_rows_given_at_once_are_as_rows_given_one_by_one() -> None:
    letters = np.frombuffer(b"ACD-CDA--", np.uint8).reshape(3, 3)
    counts = np.array([[0, 0, 0], [300, 1, 0], [0, 0, 2]], np.int32)
    at_once, single = AlignmentBuilder("x", 3), AlignmentBuilder("x", 3)
    at_once.extend(["a", "b", "c"], letters, counts)
    for name, row, count in zip("abc", letters, counts, strict=True):
        single.append(name, row.tobytes(), count if count.any() else None)
    for found in (at_once, single):
        assert found.names == ["a", "b", "c"]
        np.testing.assert_array_equal(found.letters, letters)
        np.testing.assert_array_equal(found.deletion_matrix, counts)
        assert found.deletion_matrix.dtype == np.int16


@pytest.mark.parametrize(
    "rows", [b">h\nACD\n" * 400, b">" + b"n" * 3000 + b"\nACD\n", b">h\nA" + b"w" * 40000 + b"CD\n"]
)
def test_memory_is_bounded(rows: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b">q\nACD\n" + rows
    parse_a3m(content)
    monkeypatch.setattr(alignment_rows, "MAX_MEMORY_BYTES", 2000 if rows.count(b">") == 1 else 20_000)
    if b"w" in rows:
        monkeypatch.setattr(alignment_rows, "MAX_MEMORY_BYTES", 150)
    with pytest.raises(InputError, match=r"a3m: its first \d+ rows take more than the maximum of 0 MiB"):
        parse_a3m(content)


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_limit_below_the_target_itself_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"max_rows must be at least 1, .*: got {wrong}"):
        row_limit(wrong)


@given(target=st.text("A-", min_size=1, max_size=30), rows=st.data())
def test_columns_split_as_when_counted_letter_by_letter(target: str, rows: st.DataObject) -> None:
    texts = rows.draw(st.lists(st.text("C-", min_size=len(target), max_size=len(target)), min_size=1, max_size=4))
    matrix = np.frombuffer("".join(texts).encode(), np.uint8).reshape(len(texts), -1)
    letters, inserted = TargetColumns(np.frombuffer(target.encode(), np.uint8)).split(matrix)
    for text, row, counts in zip(texts, letters, inserted, strict=True):
        kept, expected, count = "", [], 0
        for letter, column in zip(text, target, strict=True):
            if column == "-":
                count += letter != "-"
            else:
                kept += letter
                expected.append(count)
                count = 0
        assert row.tobytes().decode() == kept
        assert counts.tolist() == [*expected, count]
