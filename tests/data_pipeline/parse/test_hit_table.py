"""Tables of template hits that MMseqs2 writes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.parse.template_hit import parse_hit_table

QUERY = "MKTAYIAKQR"
LINE = b"101\t1abc_A\t0.6\t8\t2\t1\t2\t9\t5\t11\t1e-9\t60\t3M2I1M1D2M\n"


def changed(column: int, value: bytes) -> bytes:
    fields = LINE.rstrip(b"\n").split(b"\t")
    fields[column] = value
    return b"\t".join(fields)


def test_columns_gaps_and_residue_numbers_are_read() -> None:
    hit, second = parse_hit_table(LINE + b"\n" + LINE.replace(b"1abc_A", b"2abc_B"), QUERY)
    assert (hit.index, hit.name, hit.aligned_columns, hit.sum_probs) == (1, "1abc_A", 6, None)
    assert hit.query == "KTAYIA-KQ"
    assert hit.hit_sequence == "XXX--XxXX"
    assert hit.indices_query.tolist() == [1, 2, 3, 4, 5, 6, -1, 7, 8]
    assert hit.indices_hit.tolist() == [4, 5, 6, -1, -1, 7, 8, 9, 10]
    assert (second.index, second.name) == (2, "2abc_B")
    assert parse_hit_table(b"", QUERY) == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"101\t1abc_A", "hits.m8, line 1: a hit must have 13 columns, the last one a CIGAR string, but this has 2"),
        (LINE + changed(12, b"8Q"), "line 2, record '1abc_A': column 13 must be a CIGAR string such as 12M3I40M"),
        (changed(6, b"0"), "columns 7 to 10 must be residue numbers"),
        (changed(7, b"10"), "its CIGAR string has 8 residues of the target, but columns 7 to 10 span 2 to 10"),
        (changed(9, b"12"), "its CIGAR string has 7 residues of the hit, but columns 7 to 10 span 5 to 12"),
        (changed(12, b"9999999M"), "more than 1,000,000 columns"),
        (LINE.replace(b"\t2\t9\t", b"\t4\t11\t"), "it is aligned to residues 4 to 11, but the target has 10"),
    ],
)
def test_what_is_no_hit_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_hit_table(content, QUERY, path="hits.m8")
    assert message in str(error.value)


@given(st.lists(st.tuples(st.integers(1, 30), st.sampled_from("MID")), min_size=1, max_size=8), st.integers(1, 9))
def test_residue_numbers_are_consecutive_for_any_cigar_string(pieces: list[tuple[int, str]], first: int) -> None:
    kinds = "".join(kind * count for count, kind in pieces)
    target, hit = (sum(kind != other for kind in kinds) for other in "DI")
    if not target or not hit:
        return
    cigar = "".join(f"{count}{kind}" for count, kind in pieces)
    line = f"101\t1abc_A\t0\t0\t0\t0\t{first}\t{first + target - 1}\t{first}\t{first + hit - 1}\t0\t0\t{cigar}"
    (found,) = parse_hit_table(line.encode(), "A" * (first + target))
    for indices in (found.indices_query, found.indices_hit):
        assert np.array_equal(indices[indices >= 0], first - 1 + np.arange((indices >= 0).sum()))
    assert found.aligned_columns == kinds.count("M")


@given(st.binary(max_size=200))
def test_any_content_is_read_or_refused_in_one_sentence(content: bytes) -> None:
    try:
        parse_hit_table(content, QUERY, path="x")
    except InputError as error:
        assert str(error).startswith("x")
