"""Files that cannot be text are refused in one sentence, at bounded cost."""

import gzip
import itertools
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.parse import text_files
from data_pipeline.parse.text_files import content_lines, read_lines, read_text_bytes, split_lines

CONTENT = b">a\nACDE\n"


@pytest.mark.parametrize("name", ["a.fasta", "a.fasta.gz"])
def test_gzip_is_told_by_content_not_by_name(tmp_path: Path, name: str) -> None:
    for content in (CONTENT, gzip.compress(CONTENT)):
        (tmp_path / name).write_bytes(content)
        assert read_text_bytes(tmp_path / name, 100) == CONTENT


@pytest.mark.parametrize("content", [b">a\r\nACDE\r\n", b">a\rACDE\r", b"\xef\xbb\xbf>a\nACDE\n"])
def test_line_ends_and_byte_order_mark_do_not_matter(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    assert read_text_bytes(tmp_path / "a", 100) == CONTENT


@pytest.mark.parametrize("cut", [5, 12, -9, -1])
def test_truncated_gzip_is_told(tmp_path: Path, cut: int) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(CONTENT * 100)[:cut])
    with pytest.raises(InputError, match=r"a\.gz: the gzip file is truncated or damaged"):
        read_text_bytes(tmp_path / "a.gz", 10**6)


def test_damaged_gzip_is_told(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(CONTENT * 100))
    packed[14] ^= 0xFF
    (tmp_path / "a.gz").write_bytes(packed)
    with pytest.raises(InputError, match="truncated or damaged"):
        read_text_bytes(tmp_path / "a.gz", 10**6)


@pytest.mark.parametrize("content", [b"A" * 3_000_000, gzip.compress(b"A" * 3_000_000)])
def test_reading_stops_at_the_limit(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    assert len(read_text_bytes(tmp_path / "a", 3_000_000)) == 3_000_000
    with pytest.raises(InputError, match=r"^\S+/a: the text is longer than the maximum of 2,999,999 bytes"):
        read_text_bytes(tmp_path / "a", 2_999_999)


def test_missing_file_directory_and_nul_in_path_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^\S+/none\.fasta: cannot be read: No such file"):
        read_text_bytes(tmp_path / "none.fasta", 100)
    with pytest.raises(InputError, match="cannot be read: it is a directory"):
        read_text_bytes(tmp_path, 100)
    with pytest.raises(InputError, match="cannot be read: embedded null byte"):
        read_text_bytes("a\0b", 100)


def test_utf16_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT.decode().encode("utf-16"))
    with pytest.raises(InputError, match="UTF-16"):
        read_text_bytes(tmp_path / "a", 100)


@given(content=st.text("ab\r\n", max_size=30), cuts=st.lists(st.integers(0, 30), max_size=4))
@example(content="a\r\nb", cuts=[2])
@example(content="a\r\n\n", cuts=[2, 3])
@example(content="a\r\nb", cuts=[2, 2, 3])
def test_lines_are_the_same_however_the_content_comes(content: str, cuts: list[int]) -> None:
    raw = content.encode()
    bounds = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    chunks = [raw[start:stop] for start, stop in itertools.pairwise(bounds)]
    assert list(split_lines(chunks, "x")) == raw.splitlines()


@pytest.mark.parametrize("packed", [False, True])
def test_lines_of_a_file_are_those_of_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr(text_files, "_CHUNK", 7)
    content = b"\xef\xbb\xbf>a\r\nACDE\r\n\r\n>a long name\nA"
    (tmp_path / "a").write_bytes(gzip.compress(content) if packed else content)
    expected = [b">a", b"ACDE", b"", b">a long name", b"A"]
    assert list(read_lines(tmp_path / "a", 100)) == expected
    assert list(content_lines(content, "a")) == expected
    with pytest.raises(InputError, match=r"^\S+/a: the text is longer than the maximum of 20 bytes"):
        list(read_lines(tmp_path / "a", 20))


def test_a_line_that_is_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 10)
    monkeypatch.setattr(text_files, "_CHUNK", 4)
    assert list(content_lines(b"A\n" + b"C" * 10 + b"\nD", "x")) == [b"A", b"C" * 10, b"D"]
    with pytest.raises(InputError, match="x, line 2: the line is longer than 10 bytes"):
        list(content_lines(b"A\n" + b"C" * 20, "x"))


def test_lines_of_utf16_are_told() -> None:
    with pytest.raises(InputError, match="x: this is UTF-16 text"):
        list(content_lines(CONTENT.decode().encode("utf-16"), "x"))
