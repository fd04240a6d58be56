"""An archive is read within limits, whatever a server puts into it."""

import gzip
import io
import tarfile
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.search import server_archive
from data_pipeline.search.server_archive import (
    ENVIRONMENTAL_FILE,
    UNIREF_FILE,
    DamagedArchiveError,
    ServerAlignments,
)
from tests.data_pipeline.search.mock_server import archive

MIB = 2**20
CONTENT = b">101\nMKV\n>other\nMKI\n\0"
GOOD = archive({"pdb70.m8": b"", UNIREF_FILE: CONTENT})


def read(
    content: bytes, names: Sequence[str] = (UNIREF_FILE,), sequences: Mapping[int, str] | None = None
) -> dict[int, bytes]:
    """The a3m of each sequence in an archive."""
    sequences = sequences or {101: "MKV"}
    with ServerAlignments(io.BytesIO(content), names, sequences) as alignments:
        return {number: alignments.a3m(number) for number in sequences}


def rows_of(content: bytes) -> bytes:
    """The rows below the target that are read of a file with this content."""
    return read(archive({UNIREF_FILE: content}))[101].removeprefix(b">query\nMKV\n")


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, target, size
    return made


def test_only_the_files_that_are_wanted_are_read() -> None:
    assert read(GOOD) == {101: b">query\nMKV\n>other\nMKI\n"}


def test_nothing_is_written_whatever_the_archive_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outside = tmp_path / "outside"
    hostile = [member("../outside", size=3), member(str(outside), size=3), member("link", tarfile.SYMTYPE, "/etc")]
    assert read(archive({UNIREF_FILE: CONTENT}, *hostile)) == read(GOOD)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
)
def test_a_wanted_file_must_be_a_plain_file(kind: bytes) -> None:
    hostile = archive({}, member(UNIREF_FILE, kind, "/etc/passwd"))
    with pytest.raises(SearchError, match=r"has uniref\.a3m twice, or not as a regular file"):
        read(hostile)


def test_a_sparse_file_is_no_plain_file() -> None:
    """A few bytes may stand for a terabyte of zeros."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        sparse = member(UNIREF_FILE, size=512)
        sparse.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(2**40)}
        tar.addfile(sparse, io.BytesIO(b"1\n0\n0\n".ljust(512, b"\0")))
    with pytest.raises((SearchError, DamagedArchiveError)):
        read(content.getvalue())


def test_a_file_that_comes_twice_is_refused() -> None:
    with pytest.raises(SearchError, match="twice"):
        read(archive({UNIREF_FILE: CONTENT}, member(UNIREF_FILE)))


def test_missing_files_are_named() -> None:
    with pytest.raises(SearchError, match=r"lacks a\.a3m, b\.a3m"):
        read(GOOD, ["b.a3m", "a.a3m", UNIREF_FILE])


def test_many_files_are_refused() -> None:
    with pytest.raises(SearchError, match="more than 64 files"):
        read(archive({}, *(member(str(index)) for index in range(65))))


def test_extended_headers_are_passed_over() -> None:
    """Python writes pax headers of times, others write GNU headers of long names; none is needed, nor understood."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        made = member(UNIREF_FILE, size=len(CONTENT))
        made.mtime = 1.5
        made.pax_headers = {"path": "another", "size": "1"}
        tar.addfile(made, io.BytesIO(CONTENT))
    assert read(content.getvalue()) == read(GOOD)
    long_name = member("n" * 300).tobuf(tarfile.GNU_FORMAT)
    plain = member(UNIREF_FILE, size=len(CONTENT)).tobuf() + CONTENT.ljust(512, b"\0")
    assert read(gzip.compress(long_name + plain)) == read(GOOD)


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (b">101\nMKV\n" + b">a\nMKI\n" * 5, b">a\nMKI\n" * 3),
        (b">101\nMKV\n" + b">a\nMKI\n" * 3, b">a\nMKI\n" * 3),
        (b">101\nMKV\n>a\nMKI\n>b\nMaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaKI\n>c\nMKI\n", b">a\nMKI\n"),
        (b">101\nMKV\n", b""),
    ],
    ids=["rows", "all", "text", "none"],
)
def test_what_a_run_keeps_is_bounded_and_the_first_of_it(
    monkeypatch: pytest.MonkeyPatch, content: bytes, rows: bytes
) -> None:
    monkeypatch.setattr(server_archive, "MAX_ROWS", 3)
    monkeypatch.setattr(server_archive, "MAX_TEXT_BYTES", 50)
    second = b">102\nMKV\n>last\nMKV\n"
    with ServerAlignments(
        io.BytesIO(archive({UNIREF_FILE: content + b"\0" + second + b"\0"})), [UNIREF_FILE], {101: "MKV", 102: "MKV"}
    ) as found:
        assert found.a3m(101) == b">query\nMKV\n" + rows
        assert found.a3m(102) == b">query\nMKV\n>last\nMKV\n"
        assert len(found.cut) == (rows not in content or content.count(b">") > rows.count(b">") + 1)


def outcome(path: Path) -> str:
    """How many rows an archive has for a query, or the error."""
    try:
        with path.open("rb") as file, ServerAlignments(file, [UNIREF_FILE], {101: "MKV"}) as found:
            return f"{len(parse_a3m(found.a3m(101), 'MKV').names)} rows"
    except (DamagedArchiveError, InputError, SearchError) as error:
        return str(error)


def packed(path: Path, start: bytes, chunk: bytes, times: int) -> None:
    """A tar.gz of one file, `start` and many times the same chunk, which is packed once."""
    header = member(UNIREF_FILE, size=len(start) + len(chunk) * times).tobuf(tarfile.USTAR_FORMAT)
    path.write_bytes(gzip.compress(header + start) + gzip.compress(chunk, 1) * times)


@pytest.mark.integration
def test_what_unpacks_to_much_ends_in_a_sentence_in_little_memory(tmp_path: Path) -> None:
    query = b">101\nMKV\n"
    pax = member("x", tarfile.XHDTYPE, size=MIB).tobuf(tarfile.USTAR_FORMAT)
    packed(tmp_path / "1", query, bytes(MIB), 200)
    packed(tmp_path / "2", query + b">a\n", b"A" * MIB, 200)
    packed(tmp_path / "3", query, b">a\nMKI\n" * 2**17, 50)
    packed(tmp_path / "4", query, b"\n" * MIB, 600)
    (tmp_path / "5").write_bytes(gzip.compress(b"") * 2**17)
    (tmp_path / "6").write_bytes(gzip.compress(pax + b"9" * MIB))
    tracemalloc.start()
    try:
        outcomes = [outcome(tmp_path / name) for name in "123456"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert outcomes == [
        "uniref.a3m of the server's answer has too many NUL bytes",
        "uniref.a3m of the server's answer has a line of more than 2,097,152 bytes",
        "100001 rows",
        "the server's archive unpacks to more than 536,870,912 bytes; not read",
        "the server's archive has more than 10,000 gzip members; not read",
        "the server's archive has a header of 1,048,576 bytes; not read",
    ]
    assert peak < 250 * MIB


@given(st.integers(0, len(GOOD)), st.binary(max_size=8), st.booleans())
def test_a_damaged_archive_gives_its_content_or_one_of_two_errors(place: int, put: bytes, inner: bool) -> None:
    """Damage to the packed bytes, or to the tar inside them."""
    content = gzip.decompress(GOOD) if inner else GOOD
    place = place * len(content) // len(GOOD)
    content = content[:place] + put + content[place + len(put) :]
    try:
        found = read(gzip.compress(content, 1) if inner else content)
    except (SearchError, DamagedArchiveError):
        return
    assert found[101].startswith(b">query\nMKV\n")


@given(st.integers(0, len(GOOD) - 1))
def test_an_archive_that_was_cut_is_damaged(length: int) -> None:
    with pytest.raises(DamagedArchiveError):
        read(GOOD[:length])


def test_a_chain_of_extended_headers_is_damage() -> None:
    header = member("x", tarfile.XHDTYPE).tobuf(tarfile.USTAR_FORMAT)
    with pytest.raises((SearchError, DamagedArchiveError)):
        read(gzip.compress(header * 5_000))


def test_a_long_extended_header_is_refused_unread() -> None:
    header = member("x", tarfile.XHDTYPE, size=5000).tobuf(tarfile.USTAR_FORMAT)
    with pytest.raises(SearchError, match="has a header of 5,000 bytes; not read"):
        read(gzip.compress(header + b"9" * 5000))


def test_a_file_of_nul_bytes_is_refused() -> None:
    with pytest.raises(SearchError, match=r"uniref\.a3m of the server's answer has too many NUL bytes"):
        rows_of(b">101\nMKV\n" + bytes(2000))


@given(st.binary(max_size=60))
def test_any_text_gives_alignments_of_the_target_or_an_own_error(content: bytes) -> None:
    try:
        assert rows_of(content)[:1] in (b"", b">")
    except SearchError:
        return


def test_rows_of_the_target_may_be_broken_into_lines_and_end_with_windows_line_ends() -> None:
    """A kept file has plain line ends, or it would not be known again."""
    assert rows_of(b">101 extra\r\nMK\r\nV\r\n>a\rM-V\r\n\0") == b">a\nM-V\n"


def test_rows_of_several_files_follow_in_the_order_of_the_names() -> None:
    files = {ENVIRONMENTAL_FILE: b">101\nMKV\n>env\nMKE\n\0", UNIREF_FILE: CONTENT}
    both = read(archive(files), [UNIREF_FILE, ENVIRONMENTAL_FILE])
    assert both == {101: b">query\nMKV\n>other\nMKI\n>env\nMKE\n"}
