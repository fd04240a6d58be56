"""Stockholm alignments are read as AlphaFold reads them, and what is wrong with others is told with its line."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.parse.stockholm import (
    a3m_to_stockholm,
    deduplicated,
    parse_stockholm,
    stockholm_to_a3m,
    truncated,
    without_empty_columns,
)
from tests.data_pipeline.parse.seeds import A3M, STOCKHOLM


def lines(*rows: str, end: str = "//") -> bytes:
    return "\n".join(["# STOCKHOLM 1.0", *rows, end, ""]).encode()


def test_blocks_are_joined_and_columns_without_a_residue_of_the_target_are_deletions() -> None:
    alignment = parse_stockholm(STOCKHOLM, "ACDEFGHIKL")
    assert alignment.names == ("query", "h1/3-12", "h2/1-8")
    assert [row.tobytes() for row in alignment.letters] == [b"ACDEFGHIKL", b"ACDEFGHIK-", b"-CDE-GHIK-"]
    expected = np.zeros((3, 10), int)
    expected[1, 3], expected[1, 8], expected[2, 8] = 1, 2, 1
    np.testing.assert_array_equal(alignment.deletion_matrix, expected)


@pytest.mark.parametrize(
    "content",
    [
        STOCKHOLM.replace(b"\n", b"\r\n"),
        STOCKHOLM.replace(b"//\n", b""),
        STOCKHOLM.replace(b"\n\nquery", b"\nquery"),
        STOCKHOLM.replace(b"# STOCKHOLM 1.0\n", b""),
        STOCKHOLM.replace(b"-", b".").replace(b"/3.12", b"/3-12").replace(b"/1.8", b"/1-8"),
        STOCKHOLM.replace(b"ACDWEFG", b"acdWefg"),
        STOCKHOLM.replace(b"//\n", b"//\0\n\n"),
        STOCKHOLM.replace(b"query  ", b"\0query\t"),
    ],
)
def test_harmless_variants_read_the_same(content: bytes) -> None:
    expected, found = parse_stockholm(STOCKHOLM), parse_stockholm(content)
    assert found.names == expected.names
    np.testing.assert_array_equal(found.letters, expected.letters)
    np.testing.assert_array_equal(found.deletion_matrix, expected.deletion_matrix)


def test_insertions_at_a_blocks_end_count_before_the_next_blocks_first_column() -> None:
    content = lines("q AC--", "h ACww", "", "q --", "h w-", "", "q -D-", "h wD" + "w")
    alignment = parse_stockholm(content)
    assert [row.tobytes() for row in alignment.letters] == [b"ACD", b"ACD"]
    np.testing.assert_array_equal(alignment.deletion_matrix, [[0, 0, 0], [0, 0, 4]])


@pytest.mark.parametrize("max_rows", [1, 2, 3, 4])
def test_only_the_first_rows_are_read_of_each_block(max_rows: int) -> None:
    whole, part = parse_stockholm(STOCKHOLM), parse_stockholm(STOCKHOLM, max_rows=max_rows)
    assert part.names == whole.names[:max_rows]
    np.testing.assert_array_equal(part.letters, whole.letters[:max_rows])
    np.testing.assert_array_equal(part.deletion_matrix, whole.deletion_matrix[:max_rows])


def test_unknown_residues_of_the_query_match_each_other_and_keep_the_targets_letters() -> None:
    assert parse_stockholm(lines("q AX-CX"), "AUCZ").query == "AUCZ"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "stockholm: no alignment rows"),
        (lines("#=GF ID x"), "stockholm: no alignment rows"),
        (lines("q AC", "h AC", "h AC"), "stockholm, line 4, record 'h': this name is twice in one block"),
        (lines("q AC", "q AC", "h AC"), "stockholm, line 4, record 'h': the first block has no such sequence"),
        (lines("q AC", "h A"), "stockholm, line 3, record 'h': the row has 1 columns in this block, the first row 2"),
        (lines("q AC", "h AC", "", "q AC", "i AC"), "stockholm, line 6, record 'i': 'h' should come here"),
        (lines("q AC", "h AC", "q AC"), "stockholm, line 4: the block ends here without its row 'h'"),
        (lines("q AC", "h AC", "q AC", "q A"), "stockholm, line 5, record 'q': this name is twice in one block"),
        (lines("q AC", "h AC", "q A", "h A", "i A"), "stockholm, line 6, record 'i': the first block has no such"),
        (lines("q AC", "h A1"), "stockholm, line 3, record 'h': '1' is not a residue or gap"),
        (lines("q AC", "h A\0"), r"stockholm, line 3, record 'h': the row has 1 columns"),
        (lines("q AC", "h \0A"), r"stockholm, line 3, record 'h': '\x00' is not a residue or gap"),
        (lines("q AC", "h A C"), "stockholm, line 3: a line of a Stockholm alignment is a name and a sequence"),
        (lines("q AC", "h"), "stockholm, line 3: a line of a Stockholm alignment is a name and a sequence"),
        (lines("q AC", "//", "q AC"), "stockholm, line 4: a second alignment begins here, after the '//' of line 3"),
        (lines("#", "q --"), "stockholm, line 3, record 'q': the first row has no residues"),
    ],
)
def test_bad_input_is_told_with_its_place(content: bytes, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_stockholm(content)
    assert str(error.value).startswith(message)
    assert str(error.value).isprintable()


def test_another_targets_alignment_is_told_with_the_difference() -> None:
    with pytest.raises(InputError, match=r"line 7, record 'query': the first row is not the target: at residue 3 it"):
        parse_stockholm(STOCKHOLM, "ACWEFGHIKL")


def test_gzip_is_read_and_a_cut_one_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.sto.gz"
    path.write_bytes(gzip.compress(STOCKHOLM))
    assert read_alignment(path, "ACDEFGHIKL", max_rows=2).letters.shape == (2, 10)
    path.write_bytes(gzip.compress(STOCKHOLM)[:-9])
    with pytest.raises(InputError, match=r"a\.sto\.gz: the gzip file is truncated or damaged"):
        read_alignment(path)


def test_many_rows_are_read_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_pipeline.parse.stockholm._BATCH_BYTES", 300)
    names = [f"h{index}" for index in range(20)]
    first = [f"{name} AC{'w' * (index % 2)}{'-' * (1 - index % 2)}" for index, name in enumerate(names)]
    second = [f"{name} {'w' * (index % 3 == 0) or '-'}D" for index, name in enumerate(names)]
    alignment = parse_stockholm(lines("q AC-", *first, "", "q -D", *second))
    assert alignment.letters.tobytes() == b"ACD" * 21
    expected = [0] + [index % 2 + (index % 3 == 0) for index in range(20)]
    np.testing.assert_array_equal(alignment.deletion_matrix, [[0, 0, count] for count in expected])


def test_a3m_has_insertions_in_lower_case_and_descriptions() -> None:
    expected = b">query \nACDEFGHIKL\n>h1/3-12 [subseq from] mol:protein length:120  A protein\nACDwEFGHIwwK-\n"
    assert stockholm_to_a3m(STOCKHOLM, max_rows=2) == expected
    assert stockholm_to_a3m(STOCKHOLM.replace(b"-EFG", b".EFG").replace(b"-CD", b".CD"), max_rows=2) == expected


def test_rows_that_are_equal_but_for_insertions_are_dropped() -> None:
    content = lines(
        "#=GS a DE x", "#=GS b DE y", "q A-CD", "#=GR q PP 9.99", "a A-C-", "b AwC-", "c AwCD", "#=GC RF x.xx"
    )
    assert deduplicated(content) == lines("#=GS a DE x", "q A-CD", "a A-C-", "#=GC RF x.xx")


def test_columns_without_residues_are_cut_out_of_each_block() -> None:
    content = lines(
        "", "q   A-C-", "a   A-CD", "#=GC RF x.xx", "", "q   --", "a   --", "#=GC RF x.", "", "q   D", "a   -"
    )
    expected = lines("", "q   AC-", "a   ACD", "#=GC RF xxx", "", "", "", "", "", "q   D", "a   -")
    assert without_empty_columns(content) == expected.removesuffix(b"\n")


def test_truncated_text_has_the_first_rows_of_each_block_and_their_descriptions() -> None:
    text = truncated(STOCKHOLM, 2)
    assert b"h2" not in text
    assert b"#=GR" not in text
    assert b"#=GF" not in text
    assert text.count(b"#=GC RF") == 2
    assert parse_stockholm(text).names == ("query", "h1/3-12")


@pytest.mark.parametrize("change", [deduplicated, without_empty_columns, stockholm_to_a3m])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no alignment rows"),
        (lines("q AC", "h A"), "record 'h': the row has 1 columns, the first row 2"),
        (lines("q AC", "h A C"), "line 3: a line of a Stockholm alignment is a name and a sequence"),
    ],
)
def test_text_that_cannot_be_changed_is_told(change: object, content: bytes, message: str) -> None:
    with pytest.raises(InputError) as error:
        change(content)  # type: ignore[operator]
    assert message in str(error.value)


def test_a3m_becomes_stockholm_with_the_targets_columns_marked() -> None:
    text = a3m_to_stockholm(b"#3\t1\n>q\nACD\n>h x\nkA-gDww\n>h\nAmCggD\n")
    rows = [b"q .A.C..D..", b"h kA.-g.Dww", b"h.2 .AmCggD..", b"#=GC RF .x.x..x.."]
    assert text == b"# STOCKHOLM 1.0\n\n" + b"\n".join(rows) + b"\n//\n"


def test_stockholm_made_of_an_a3m_is_the_same_alignment() -> None:
    there, back = parse_a3m(A3M), parse_stockholm(a3m_to_stockholm(A3M))
    np.testing.assert_array_equal(there.letters, back.letters)
    np.testing.assert_array_equal(there.deletion_matrix, back.deletion_matrix)


@given(data=st.data(), length=st.integers(1, 12), width=st.integers(1, 15))
def test_a3m_to_stockholm_and_back_is_the_same(data: st.DataObject, length: int, width: int) -> None:
    target = data.draw(st.text("ACDX", min_size=length, max_size=length))
    texts = [target]
    for _ in range(data.draw(st.integers(0, 4))):
        columns = data.draw(st.lists(st.text("acw", max_size=3), min_size=length + 1, max_size=length + 1))
        letters = data.draw(st.text("ACD-", min_size=length, max_size=length))
        texts.append("".join(before + letter for before, letter in zip(columns, [*letters, ""], strict=True)))
    a3m = "".join(f">{number} \n{text}\n" for number, text in enumerate(texts)).encode()
    text = a3m_to_stockholm(a3m)
    assert stockholm_to_a3m(text) == a3m
    rows = [line.split() for line in text.decode().splitlines()[2:-2]]
    blocks = [
        "\n".join(f"{name}   {row[start : start + width]}" for name, row in rows)
        for start in range(0, len(rows[0][1]), width)
    ]
    interleaved, single = parse_stockholm("\n\n".join(blocks).encode()), parse_a3m(a3m)
    np.testing.assert_array_equal(interleaved.letters, single.letters)
    np.testing.assert_array_equal(interleaved.deletion_matrix, single.deletion_matrix)


@pytest.mark.parity
@pytest.mark.parametrize("database", ["uniref90", "mgnify"])
def test_real_alignment_equals_alphafolds_parser(database: str, real_data: Path, reference: Path) -> None:
    alignment = read_alignment(real_data / "msa" / f"T1084_D1__{database}_hits.sto.gz")
    with np.load(reference / "pipeline" / f"dm200_msa_{database}.npz") as alphafold:
        assert [row.tobytes().decode() for row in alignment.letters] == alphafold["sequences"].tolist()
        np.testing.assert_array_equal(alignment.deletion_matrix, alphafold["deletion_matrix"])


@pytest.mark.parity
def test_real_names_equal_alphafolds_parser(real_data: Path, reference: Path) -> None:
    alignment = read_alignment(real_data / "msa" / "T1084_D1__uniref90_hits.sto.gz")
    with np.load(reference / "pipeline" / "v23_parse_uniref90.npz") as alphafold:
        assert list(alignment.names) == alphafold["descriptions"].tolist()


@pytest.mark.parity
def test_real_text_is_changed_as_in_alphafold(real_data: Path, reference: Path) -> None:
    content = gzip.decompress((real_data / "msa" / "2q2k_A__uniref90_hits.sto.gz").read_bytes())
    unique = deduplicated(content)
    with np.load(reference / "pipeline" / "v23_stockholm_tools.npz") as alphafold:
        assert unique.decode() == str(alphafold["deduplicated"])
        assert without_empty_columns(unique).decode() == str(alphafold["no_empty_columns"])
        assert stockholm_to_a3m(without_empty_columns(unique)).decode() == str(alphafold["a3m"])
        assert truncated(content, 4).decode() == str(alphafold["truncated"])
    content = gzip.decompress((real_data / "msa" / "T1084_D1__uniref90_hits.sto.gz").read_bytes())
    with np.load(reference / "pipeline" / "dm200_sto_to_a3m.npz") as alphafold:
        assert stockholm_to_a3m(content, max_rows=50).decode() == str(alphafold["a3m"])
