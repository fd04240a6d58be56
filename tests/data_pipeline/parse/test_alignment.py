"""The format of an alignment is told by its content, and every format gives the same alignment."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.parse import alignment as alignment_module
from data_pipeline.parse import stockholm
from data_pipeline.parse.alignment import chain_lengths, read_alignment
from tests.data_pipeline.parse.in_memory import parse_alignment

A3M = b">q\nACDEF\n>h\nA-wwDEFkk\n>i\n--D-F\n"
SAME = {
    "a3m": A3M,
    "a3m of a server": b"#5\t1\n" + A3M + b"\0",
    "a2m": b">q\nACD..EF..\n>h\nA-WWDEFKK\n".replace(b"CD..", b"C..D")
    .replace(b"A-WWD", b"A-wwD")
    .replace(b"FKK", b"Fkk")
    + b">i\n--..D-F..\n",
    "aligned FASTA": b">q a target\nAC--DEF--\n>h\nA-WWDEFKK\n>i\n-----\n--F--\n".replace(
        b"-----\n--F--", b"----D\n-F--"
    ),
    "aligned FASTA in lower case": b">q\nac--def__\n>h\na-wwdefkk\n>i\n~~--d-f..\n",
    "Stockholm": b"# STOCKHOLM 1.0\nq AC--D\nh A-WWD\ni ----D\n\nq EF--\nh EFKK\ni -F--\n//\n",
    "Stockholm without its first line": b"q AC--DEF--\nh A-WWDEFKK\ni ----D-F--\n//\n",
}


@pytest.mark.parametrize("content", SAME.values(), ids=SAME)
@pytest.mark.parametrize(("query", "batch_bytes"), [(None, 2**22), ("ACDEF", 2**22), (None, 1), ("ACDEF", 450)])
def test_each_format_gives_the_same_alignment(
    content: bytes, query: str | None, batch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (alignment_module, stockholm):  # rows that are read at a time
        monkeypatch.setattr(module, "_BATCH_BYTES", batch_bytes)
    alignment = parse_alignment(content, query)
    assert alignment.names == ("q", "h", "i")
    assert [row.tobytes() for row in alignment.letters] == [b"ACDEF", b"A-DEF", b"--D-F"]
    np.testing.assert_array_equal(alignment.deletion_matrix, [[0] * 5, [0, 0, 2, 0, 0], [0] * 5])
    short = parse_alignment(content, query, max_rows=2)
    assert short.names == ("q", "h")
    np.testing.assert_array_equal(short.letters, alignment.letters[:2])


def test_psicov_has_a_sequence_in_each_line() -> None:
    alignment = parse_alignment(b"ACDEF\r\n\r\nA-DeF\r\n--D.F", "ACDEF")
    assert alignment.names == ("1", "3", "4")
    assert [row.tobytes() for row in alignment.letters] == [b"ACDEF", b"A-DEF", b"--D-F"]
    assert not alignment.deletion_matrix.any()


def test_rows_of_one_length_without_lower_case_may_have_insertions_further_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alignment_module, "_PEEKED_BYTES", 30)
    assert parse_alignment(b">q\nACD\n" + b">h\nA-D\n" * 20 + b">i\nAcc-D\n").deletion_matrix[-1].tolist() == [0, 2, 0]


def test_unknown_residues_of_the_query_keep_the_targets_letters() -> None:
    for content in (b">q\nAX-X\n>h\nAAAA\n", b"AXX\nAAA\n", b"# STOCKHOLM 1.0\nq AX-X\n"):
        assert parse_alignment(content, "AUO").query == "AUO"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x: the file has no alignment row"),
        (b"\n\0\n", "x: the file has no alignment row"),
        (b"# only\n; comments\n", "x: the file has no alignment row"),
        (b"CLUSTAL W (1.82)\n", "x, line 1: CLUSTAL format is not supported"),
        (b"Query         q\nMatch_columns 5\n", "x, line 1: got a list of template hits (.hhr), expected an alignment"),
        (b"data_1ABC\n", "x, line 1: got a structure (mmCIF), expected an alignment"),
        (
            b"#3,3\t1,1\n>101\t102\nACDEFG\n",
            "x, line 1: got ColabFold's alignment of a complex (2 chains), expected the alignment of a single",
        ),
        (b"\0#3\t2\r\n>101\nACD\n", "x, line 1: got ColabFold's alignment of a complex (2 chains)"),
        (b"-CD\nACD\n", "x, line 1, record '1': the first row has a gap at column 1; it must be the target"),
        (b"ACD\nAC\n", "x, line 2, record '2': the row has 2 letters and gaps, the first row 3"),
        (b"ACD\nA*D\n", "x, line 2, column 2, record '2': '*' is not a residue letter or gap"),
        (b">q\nA-D\n>h\nACD\n>i\nA1D\n", "x, line 6, column 2, record 'i': '1' is not a residue letter or gap"),
        (b">q\nACD\n>h\nACDaE\n", "x, line 3, record 'h': the row has 4 columns (upper case and '-'), the first row 3"),
        (b">q\n---\n>h\nACD\n", "x, line 1, record 'q': the first row has no residues"),
        (b"hello world, you\n", "x, line 1: a line of a Stockholm alignment is a name and a sequence"),
    ],
)
def test_bad_input_is_told_with_its_place(content: bytes, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_alignment(content, path="x")
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("content", [b">q\nAC-D\n>h\nACWD\n", b"ACD\n", b"# STOCKHOLM 1.0\nq ACD\n", b">q\nACD\n"])
def test_another_targets_alignment_is_told_with_the_difference(content: bytes) -> None:
    with pytest.raises(InputError, match="the first row is not the target: at residue 2 it has 'C', the target 'W'"):
        parse_alignment(content, "AWD")


def test_gzip_is_read_and_a_cut_one_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.aln.gz"
    path.write_bytes(gzip.compress(b"ACD\nA-D\n"))
    assert read_alignment(path).letters.shape == (2, 3)
    path.write_bytes(gzip.compress(b"ACD\nA-D\n" * 100)[:-6])
    with pytest.raises(InputError, match=r"x\.aln\.gz: the gzip file is truncated or damaged"):
        read_alignment(path)


@pytest.mark.parametrize(
    ("rows", "lengths"),
    [
        ("ACDE----- A-DE----- ----FGHIK ----F-HIK", (4, 5)),
        ("ACDEYGHIR ACDE----- ----FGHIK", (4, 5)),  # a paired row first
        ("AC------- ACDE----- A-DE----- ----FGHIK --------- -----GHIK", (4, 5)),
        ("ACD------ ---EFG--- ------HIK ------H-K", (3, 3, 3)),
        ("", ()),
        ("ACDEFGHIK", ()),
        ("ACDE----- ----FGHIR ----F-HIK", ()),  # parts of the target alone, but none is the second chain
        ("ACDE----- ----FGHI-", ()),
        ("ACDE----- -----GHIK", ()),
        ("ACDE----- ACDEYGHIR ----FGHIK", ()),  # a row of both parts among the others
        ("----FGHIK ACDE-----", ()),
    ],
)
def test_chains_of_a_complex_are_recognised_by_their_blocks(rows: str, lengths: tuple[int, ...]) -> None:
    texts = [f">{index}\n{row}" for index, row in enumerate(["ACDEFGHIK", *rows.split()])]
    assert chain_lengths(parse_alignment("\n".join(texts).encode(), "ACDEFGHIK")) == lengths


def test_real_files_are_read_or_refused_for_a_reason(real_data: Path) -> None:
    refused: dict[str, str] = {}
    for path in (real_data / "msa").iterdir():
        try:
            alignment = read_alignment(path, max_rows=50)
        except InputError as error:
            refused[path.name] = str(error).partition("first row ")[2]
        else:
            assert len(alignment.query) == alignment.letters.shape[1]
            assert not chain_lengths(alignment)
    lower, gap = "has lower-case letters", "has a gap at column 1"
    reasons = {name: reason.partition(";")[0] for name, reason in refused.items()}
    assert reasons == {
        "5ius_A__5ius.a3m.gz": lower,  # three copies of its chain, joined by the letters of its name
        "DeepCov__example_io__1guuA.aln.gz": gap,  # the target is not in it
        "RaptorX-3DMode__example__1atzA.aln.gz": gap,
    }


def test_lower_case_in_rows_of_one_length_is_no_insertion() -> None:
    alignment = parse_alignment(b">q\nACD\n>h\nAcd\n")
    assert alignment.letters[1].tobytes() == b"ACD"
    assert not alignment.deletion_matrix.any()


def test_a_record_that_goes_on_after_the_first_lines_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment_module, "_PEEKED_BYTES", 20)
    alignment = parse_alignment(b">q\nA-C\nDEF\n>h\nAwC\nDEF\n>i\n-w-\nDEF\n")
    assert alignment.deletion_matrix.tolist() == [[0] * 5, [0, 1, 0, 0, 0], [0, 1, 0, 0, 0]]
