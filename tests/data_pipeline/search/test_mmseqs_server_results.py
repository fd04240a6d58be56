import gzip
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.errors import SearchError
from data_pipeline.search.mmseqs_server import UNIREF_FILE, DamagedArchiveError, merged_alignments, unpack
from tests.data_pipeline.search.mock_server import archive

ROOT = Path(__file__).parents[3]
CONTENT = b">101\nMKV\n>other\nMKI\n\0"
GOOD = archive({"pdb70.m8": b"", UNIREF_FILE: CONTENT})


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, target, size
    return made


def test_only_the_files_that_are_wanted_are_read() -> None:
    assert unpack(io.BytesIO(GOOD), [UNIREF_FILE]) == {UNIREF_FILE: CONTENT}


def test_nothing_is_written_whatever_the_archive_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outside = tmp_path / "outside"
    hostile = [member("../outside", size=3), member(str(outside), size=3), member("link", tarfile.SYMTYPE, "/etc")]
    assert unpack(io.BytesIO(archive({UNIREF_FILE: CONTENT}, *hostile)), [UNIREF_FILE]) == {UNIREF_FILE: CONTENT}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
)
def test_a_wanted_file_must_be_a_plain_file(kind: bytes) -> None:
    hostile = archive({}, member(UNIREF_FILE, kind, "/etc/passwd"))
    with pytest.raises(SearchError, match=r"holds uniref\.a3m twice or as something else than a plain file"):
        unpack(io.BytesIO(hostile), [UNIREF_FILE])


def test_a_sparse_file_is_no_plain_file() -> None:
    """A few bytes may stand for a terabyte of zeros."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        sparse = member(UNIREF_FILE, size=512)
        sparse.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(2**40)}
        tar.addfile(sparse, io.BytesIO(b"1\n0\n0\n".ljust(512, b"\0")))
    with pytest.raises((SearchError, DamagedArchiveError)):
        unpack(io.BytesIO(content.getvalue()), [UNIREF_FILE])


def test_a_file_that_comes_twice_is_refused() -> None:
    with pytest.raises(SearchError, match="twice"):
        unpack(io.BytesIO(archive({UNIREF_FILE: CONTENT}, member(UNIREF_FILE))), [UNIREF_FILE])


def test_missing_files_are_named() -> None:
    with pytest.raises(SearchError, match=r"lacks a\.a3m, b\.a3m"):
        unpack(io.BytesIO(GOOD), ["b.a3m", "a.a3m", UNIREF_FILE])


def test_many_files_are_refused() -> None:
    with pytest.raises(SearchError, match="more than 64 files"):
        unpack(io.BytesIO(archive({}, *(member(str(index)) for index in range(65)))), [UNIREF_FILE])


@pytest.mark.parametrize("name", [UNIREF_FILE, "other"])
def test_a_bomb_costs_little_memory(tmp_path: Path, name: str) -> None:
    """Two gigabytes of zeros, packed to two megabytes, in a process that may have one."""
    bomb = tmp_path / "bomb.tar.gz"
    header = member(name, size=2**31).tobuf()
    bomb.write_bytes(gzip.compress(header) + gzip.compress(bytes(2**24)) * 2**7)
    check = f"""
import resource
from pathlib import Path
from data_pipeline.errors import SearchError
from data_pipeline.search.mmseqs_server import unpack
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    unpack(Path({str(bomb)!r}).open('rb'), ["uniref.a3m"])
except SearchError as error:
    assert "unpacks to more than 536,870,912 bytes" in str(error), error
else:
    raise SystemExit("nothing was refused")
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20, "more than 1 GiB"
"""
    subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=True, timeout=120)


@given(st.integers(0, len(GOOD)), st.binary(max_size=8), st.booleans())
def test_a_damaged_archive_gives_its_content_or_one_of_two_errors(place: int, put: bytes, inner: bool) -> None:
    """Damage to the packed bytes, or to the tar inside them."""
    content = gzip.decompress(GOOD) if inner else GOOD
    place = place * len(content) // len(GOOD)
    content = content[:place] + put + content[place + len(put) :]
    try:
        found = unpack(io.BytesIO(gzip.compress(content, 1) if inner else content), [UNIREF_FILE])
    except (SearchError, DamagedArchiveError):
        return
    assert list(found) == [UNIREF_FILE]


@given(st.integers(0, len(GOOD) - 1))
def test_an_archive_that_was_cut_is_damaged(length: int) -> None:
    with pytest.raises(DamagedArchiveError):
        unpack(io.BytesIO(GOOD[:length]), [UNIREF_FILE])


def test_a_chain_of_extended_headers_is_damage() -> None:
    header = member("x", tarfile.XHDTYPE).tobuf(tarfile.USTAR_FORMAT)
    with pytest.raises((SearchError, DamagedArchiveError)):
        unpack(io.BytesIO(gzip.compress(header * 5_000)), [UNIREF_FILE])


def test_a_long_extended_header_is_refused_unread() -> None:
    header = member("x", tarfile.XHDTYPE, size=5000).tobuf(tarfile.USTAR_FORMAT)
    with pytest.raises(SearchError, match="has a header of 5,000 bytes; not read"):
        unpack(io.BytesIO(gzip.compress(header + b"9" * 5000)), [UNIREF_FILE])


def test_a_file_of_nul_bytes_is_refused() -> None:
    with pytest.raises(SearchError, match=r"uniref\.a3m of the server's answer is full of NUL bytes"):
        merged_alignments({UNIREF_FILE: b">101\nMKV\n" + bytes(2000)}, {101: "MKV"})


@given(st.binary(max_size=60))
def test_any_text_gives_alignments_of_the_target_or_an_own_error(content: bytes) -> None:
    try:
        merged = merged_alignments({UNIREF_FILE: content}, {101: "MKV"})
    except SearchError:
        return
    assert merged[101].startswith(b">query\nMKV\n")


def test_rows_of_the_target_may_be_broken_into_lines_and_end_with_windows_line_ends() -> None:
    files = {UNIREF_FILE: b">101 extra\r\nMK\r\nV\r\n>a\r\nM-V\r\n\0"}
    assert merged_alignments(files, {101: "MKV"}) == {101: b">query\nMKV\n>a\r\nM-V\r\n"}
