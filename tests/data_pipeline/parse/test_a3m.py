"""Alignments keep AlphaFold's meaning of columns and insertions; anything else is told with file, line and record."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.residues import AMBIGUOUS_LETTERS, RESTYPES

LETTERS = RESTYPES + AMBIGUOUS_LETTERS


def test_insertions_count_before_the_next_column_and_are_dropped_at_the_end() -> None:
    alignment = parse_a3m(b">q\nACDE\n>hit x\naaA-cDEee\n>gaps\n--d--\n")
    assert alignment.names == ("q", "hit", "gaps")
    assert [row.tobytes() for row in alignment.letters] == [b"ACDE", b"A-DE", b"----"]
    np.testing.assert_array_equal(alignment.deletion_matrix, [[0, 0, 0, 0], [2, 0, 1, 0], [0, 0, 1, 0]])


@pytest.mark.parametrize(
    "content",
    [
        b"#4\t1\n>q\nACDE\n>h\nA-cDE\n",
        b"; a comment\n\n>q\nACDE\n# another\n>h\nA-cDE\n",
        b">q\nAC\nDE\n>h\nA-\ncDE\n\n",
        b">q\nACD.E\n>h\nA-cD.E.\n",
        b">q\nACDE\n\0>h\nA-cDE\n\0",
        b">q\nACDE \n>h\n  A-cDE\t\n",
    ],
)
def test_harmless_variants_read_the_same(content: bytes) -> None:
    alignment = parse_a3m(content, "ACDE")
    assert [row.tobytes() for row in alignment.letters] == [b"ACDE", b"A-DE"]
    np.testing.assert_array_equal(alignment.deletion_matrix[1], [0, 0, 1, 0])


@pytest.mark.parametrize("max_rows", [1, 2, 3, 4])
def test_reading_stops_after_the_rows_that_are_wanted(max_rows: int) -> None:
    content = b">q\nACDE\n>h x\naaA-cDE\n>i\n--d-E\n"
    whole, part = parse_a3m(content), parse_a3m(content, max_rows=max_rows)
    assert part.names == whole.names[:max_rows]
    np.testing.assert_array_equal(part.letters, whole.letters[:max_rows])
    np.testing.assert_array_equal(part.deletion_matrix, whole.deletion_matrix[:max_rows])
    assert parse_a3m(content + b">h\nA1\n", max_rows=3).names == whole.names


def test_unknown_residues_of_the_query_match_each_other_and_keep_the_targets_letters() -> None:
    assert parse_a3m(b">q\nAXCX\n", "AUCZ").query == "AUCZ"


@pytest.mark.parametrize(
    ("content", "query", "message"),
    [
        (b"", None, "a3m: there is no alignment row"),
        (b"#4\t1\n", None, "a3m: there is no alignment row"),
        (b"# x\nACDE\n", None, "a3m, line 2: text before the first '>name' line"),
        (b">q\n>h\nACD\n", None, "a3m, line 1, record 'q': the first row has no residues"),
        (b">q\nAC-E\n", None, "a3m, line 1, record 'q': the first row has a gap at column 3"),
        (b">q\nACdE\n", None, "a3m, line 1, record 'q': the first row has lower-case letters"),
        (
            b">q\nACDE\n>h\nACD\n",
            None,
            "a3m, line 3, record 'h': the row has 3 columns (upper case and '-'), the first",
        ),
        (b">q\nACDE\n>h\nACDEF\n", None, "a3m, line 3, record 'h': the row has 5 columns"),
        (b">q\nACDE\n>h\n", None, "a3m, line 3, record 'h': the row has 0 columns"),
        (b">q\nACDE\n\n#x\n>h\nAC\n D1\n", None, "a3m, line 7, column 3, record 'h': '1' is not a residue letter"),
        (b">q\nAC\0DE\n", None, r"a3m, line 2, column 3, record 'q': '\x00' is not a residue letter"),
        (b">q\nACDE\n>h\nAC*E\n", None, "a3m, line 4, column 3, record 'h': '*' is not a residue letter"),
        (b">q\nAC\xffE\n", None, "a3m, line 2, column 3, record 'q': "),
    ],
)
def test_bad_input_is_told_with_its_place(content: bytes, query: str | None, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_a3m(content, query)
    assert str(error.value).startswith(message)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("row", "difference"),
    [
        (b"ACWE", "at residue 3 it has 'W', the target 'D'"),
        (b"ACD", "it has 3 columns, the target 4 residues"),
        (b"ACDEF", "it has 5 columns, the target 4 residues"),
        (b"ACX-", "at residue 3 it has 'X', the target 'D'"),
        (
            b"ACdE",
            "at residue 3 it has 'E', the target 'D'; it has 3 columns, the target 4 residues; "
            "its lower-case letters are insertions, not columns",
        ),
    ],
)
def test_first_row_that_is_not_the_target_is_told_with_the_difference(row: bytes, difference: str) -> None:
    with pytest.raises(InputError) as error:
        parse_a3m(b"#x\n>q\n" + row + b"\n", "ACDE")
    place = "a3m, line 2, record 'q': the first row is not the target"
    assert str(error.value) == f"{place}: {difference}; pass the alignment of this sequence"


def test_gzip_and_windows_line_ends_are_read_and_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.a3m"
    path.write_bytes(gzip.compress(b">q\r\nACDE\r\n>h\r\nA-cDE\r\n"))
    assert read_alignment(path, "ACDE").letters.shape == (2, 4)
    with pytest.raises(InputError, match=r"a\.a3m, line 1, record 'q': the first row is not the target"):
        read_alignment(path, "ACDF")


@st.composite
def alignments(draw: st.DrawFn) -> tuple[list[str], list[list[int]], str]:
    """Rows of columns, insertions before each column, and the a3m text of both, wrapped at some width."""
    length = draw(st.integers(1, 12))
    rows = [draw(st.text(LETTERS, min_size=length, max_size=length))]
    rows += draw(st.lists(st.text(LETTERS + "-", min_size=length, max_size=length), max_size=4))
    counts = [[0] * length]
    counts += [draw(st.lists(st.integers(0, 3), min_size=length, max_size=length)) for _ in rows[1:]]
    width = draw(st.integers(1, 30))
    lines: list[str] = []
    for number, (row, count) in enumerate(zip(rows, counts, strict=True)):
        text = "".join("acd"[:inserted] + letter for letter, inserted in zip(row, count, strict=True))
        text += "kl" if number else ""
        lines += [f">row{number}", *(text[start : start + width] for start in range(0, len(text), width))]
    return rows, counts, "\n".join(lines)


@settings(max_examples=100, deadline=None)
@given(alignment=alignments())
def test_what_is_written_is_read(alignment: tuple[list[str], list[list[int]], str]) -> None:
    rows, counts, text = alignment
    parsed = parse_a3m(text.encode(), rows[0])
    assert [row.tobytes().decode() for row in parsed.letters] == rows
    np.testing.assert_array_equal(parsed.deletion_matrix, counts)


@settings(max_examples=300, deadline=None)
@given(
    content=st.binary(max_size=60) | st.text(">ACDacd-.#;1 \n\t\0").map(str.encode), query=st.none() | st.just("ACD")
)
def test_any_bytes_give_an_alignment_or_an_input_error(content: bytes, query: str | None) -> None:
    try:
        alignment = parse_a3m(content, query, path="any.a3m")
    except InputError as error:
        message = str(error)
    else:
        message = "any.a3m"
        assert alignment.letters.shape == alignment.deletion_matrix.shape
        assert query in (None, alignment.query)
    assert message.startswith("any.a3m")
    assert message.isprintable()


@pytest.mark.parity
def test_real_alignment_equals_alphafolds_parser(real_data: Path, reference: Path) -> None:
    alignment = read_alignment(real_data / "msa" / "T1084_D1__bfd_uniclust_hits.a3m.gz")
    with np.load(reference / "pipeline" / "dm200_msa_bfd.npz") as alphafold:
        assert [row.tobytes().decode() for row in alignment.letters] == alphafold["sequences"].tolist()
        np.testing.assert_array_equal(alignment.deletion_matrix, alphafold["deletion_matrix"])


def test_real_files_are_read_or_refused_for_a_reason(real_data: Path) -> None:
    refused: dict[str, str] = {}
    for path in (real_data / "msa").glob("*.a3m.gz"):
        try:
            read_alignment(path, max_rows=200)
        except InputError as error:
            refused[path.name] = str(error)
    # Its target has selenocysteine and isoleucine in lower case: no columns, so a target cannot be read off it.
    assert refused.keys() == {"5ius_A__5ius.a3m.gz"}
    assert "the first row has lower-case letters" in refused["5ius_A__5ius.a3m.gz"]
