import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.search.fasta_chunks import (
    MAX_RECORD_BYTES,
    FastaChunk,
    database_identity,
    has_nucleic_acids,
    is_gzip,
    longest_record,
    read_fasta_chunks,
    require_database,
    without_nucleic_acids,
)

CHUNK_SIZES = (1, 7, 64, 2**20)

records = st.lists(
    st.tuples(
        st.text("abcXYZ019_|.->~ ", min_size=1, max_size=12).filter(lambda name: bool(name.strip())),
        st.lists(st.text("ACDEFGHIKLMNPQRSTVWYBJOUXZ*acdw \t\r", max_size=20), max_size=4),
    ),
    min_size=1,
    max_size=12,
)


def written(folder: Path, content: bytes) -> Path:
    path = folder / "database.fasta"
    path.write_bytes(content)
    return path


@given(records=records, chunk_bytes=st.integers(1, 80), last_newline=st.booleans())
def test_chunks_are_whole_records_and_together_the_file(
    records: list[tuple[str, list[str]]], chunk_bytes: int, last_newline: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = "\n".join(f">{name}\n" + "\n".join(lines) for name, lines in records)
    content = (text + "\n" * last_newline).encode()
    path = written(tmp_path_factory.mktemp("chunks"), content)
    chunks = list(read_fasta_chunks(path, chunk_bytes))
    assert b"".join(chunk.content for chunk in chunks) == content
    for chunk in chunks:
        assert chunk.content.startswith(b">")
    before = 1
    for chunk in chunks:
        assert chunk.line == before
        before += chunk.content.count(b"\n")


def test_packed_files_read_as_plain_ones(tmp_path: Path) -> None:
    content = b">a\nMKV\n>b\nMKW\n"
    plain = written(tmp_path, content)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(content))
    assert not is_gzip(plain)
    assert is_gzip(packed)
    assert list(read_fasta_chunks(packed, 5)) == list(read_fasta_chunks(plain, 5))


@pytest.mark.parametrize("chunk_bytes", CHUNK_SIZES)
@pytest.mark.parametrize(
    ("content", "place", "problem"),
    [
        (b">a\nMKV\n>b\nMKV\nM1V\n", "line 5, column 2, record 'b'", "'1' is not an amino acid letter"),
        (b">a\nMKV\n>b\nM-V\n", "line 4, column 2, record 'b'", "'-'"),
        (b">a\nMKV\n>b words\nMKV.\n", "line 4, column 4, record 'b'", "'.'"),
        (b">a\nMKV\n>b\nMK~V\n", "line 4, column 3, record 'b'", "'~'"),
        (b">a\nMKV\n>b\nMK\0V\n", "line 4, column 3, record 'b'", r"\x00"),
        (b">a\nMKV\n>b\nMK\xc3\xa9V\n", "line 4, column 3, record 'b'", "not an amino acid letter"),
        (b"MKV\n>b\nMKV\n", "line 1", "text before the first"),
        (b"\n \n;x\n>b\nMKV\n", "line 3", "text before the first"),
        (b">a\nMKV\n>\nMKV\n", "line 3", "no name"),
        (b">a\nMKV\n> \t\nMKV\n", "line 3", "no name"),
        (b">a\nMKV\n>", "line 3", "no name"),
    ],
)
def test_a_malformed_record_is_named_with_its_place(
    tmp_path: Path, content: bytes, place: str, problem: str, chunk_bytes: int
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InputError) as caught:
        list(read_fasta_chunks(path, chunk_bytes))
    assert f"{path}, {place}" in str(caught.value)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_headers_may_hold_what_sequences_may_not(tmp_path: Path) -> None:
    path = written(tmp_path, b">a 1-2.3 > \nMKV\n>b|c_1~\xff>\nmkv*\n\n>empty\n")
    assert b"".join(chunk.content for chunk in read_fasta_chunks(path)) == path.read_bytes()


def test_a_record_without_end_costs_bounded_memory(tmp_path: Path) -> None:
    path = written(tmp_path, b">a\n" + b"M" * (MAX_RECORD_BYTES + 10))
    with pytest.raises(InputError, match="a record has more than"):
        list(read_fasta_chunks(path))


@pytest.mark.parametrize("content", [b"", b"\n\n", gzip.compress(b"", mtime=0)])
def test_an_empty_database_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError, match="has no sequences"):
        require_database(written(tmp_path, content))


def test_what_is_no_database_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not FASTA"):
        require_database(written(tmp_path, b"HMMER3/f\n"))
    with pytest.raises(InputError, match="cannot be read: No such file"):
        require_database(tmp_path / "missing.fasta")
    with pytest.raises(InputError, match="cannot be read"):
        require_database(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        require_database(tmp_path / "a\0b")
    with pytest.raises(InputError, match="cannot be read"):
        database_identity(tmp_path / "missing.fasta")


def test_a_truncated_gzip_file_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(b">a\nMKVLLAGT\n" * 1000)
    for content in (packed[: len(packed) // 2], packed[:-8] + b"\0" * 8, b"\x1f\x8b not gzip"):
        with pytest.raises(InputError, match="truncated or damaged"):
            list(read_fasta_chunks(written(tmp_path, content)))


def test_chains_of_nucleic_acids_are_dropped_and_proteins_kept(tmp_path: Path) -> None:
    protein = b">1abc_A mol:protein length:3  Binds mol:na or so\nMKV\n"
    nucleic = b">1abc_B mol:na length:4  RNA\nACGU\n"
    assert not has_nucleic_acids(written(tmp_path, protein))
    path = written(tmp_path, nucleic + protein + nucleic)
    assert has_nucleic_acids(path)
    for size in CHUNK_SIZES:
        assert b"".join(without_nucleic_acids(chunk).content for chunk in read_fasta_chunks(path, size)) == protein


def test_the_longest_record_is_found() -> None:
    assert longest_record(FastaChunk(content=b">a x\nMKV\nMK\n>b\nM K V W\n", line=1)) == ("a", 5)


def test_the_identity_changes_with_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, b">a\nMKV\n")
    before = database_identity(path)
    assert before.startswith("database.fasta 7 bytes")
    assert database_identity(path) == before
    path.write_bytes(b">a\nMKVW\n")
    assert database_identity(path) != before
