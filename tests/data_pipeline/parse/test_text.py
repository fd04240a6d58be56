"""Files that cannot be text are refused in one sentence, at bounded cost."""

import gzip
from pathlib import Path

import pytest

from data_pipeline.errors import InputError
from data_pipeline.parse.text import read_text_bytes

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
    with pytest.raises(InputError, match=r"^\S+/a: it holds more than 2,999,999 bytes"):
        read_text_bytes(tmp_path / "a", 2_999_999)


def test_missing_file_directory_and_nul_in_path_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^\S+/none\.fasta: cannot be read: No such file"):
        read_text_bytes(tmp_path / "none.fasta", 100)
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_text_bytes(tmp_path, 100)
    with pytest.raises(InputError, match="cannot be read: embedded null byte"):
        read_text_bytes("a\0b", 100)


def test_utf16_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT.decode().encode("utf-16"))
    with pytest.raises(InputError, match="UTF-16"):
        read_text_bytes(tmp_path / "a", 100)
