"""Hits of hmmsearch are placed on the target's residues as AlphaFold places them."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.parse.template_hit import parse_hmmsearch
from data_pipeline.parse.text_files import read_text_bytes
from tests.data_pipeline.parse.seeds import HMMSEARCH, QUERY


def test_match_columns_are_the_targets_residues_and_insertions_stay_in_the_row() -> None:
    first, second = parse_hmmsearch(HMMSEARCH, QUERY)
    assert (first.index, first.name, first.aligned_columns, first.sum_probs) == (1, "1abc_A", 10, None)
    assert (first.query, first.hit_sequence) == ("ACD-EFGHIKL", "ACDwEFGHIKL")
    np.testing.assert_array_equal(first.indices_query, [0, 1, 2, -1, 3, 4, 5, 6, 7, 8, 9])
    np.testing.assert_array_equal(first.indices_hit, range(2, 13))
    assert (second.index, second.name, second.aligned_columns) == (2, "2xyz_b", 8)
    assert (second.query, second.hit_sequence) == (QUERY, "-CDE-GHIKL")
    np.testing.assert_array_equal(second.indices_hit, [-1, 0, 1, 2, -1, 3, 4, 5, 6, 7])


def test_hits_are_the_same_from_a3m_with_and_without_the_target() -> None:
    a3m = (
        b">1abc_A/3-13 [subseq from] mol:protein length:120  A protein\nACDwEFGHIKL\n"
        b">2xyz_b/1-8 [subseq from] mol:protein length:8\n-CDE-GHIKL\n"
    )
    expected = [repr(hit) for hit in parse_hmmsearch(HMMSEARCH, QUERY)]
    for content in (a3m, b">q\nACDEFGHIKL\n" + a3m):
        assert [repr(hit) for hit in parse_hmmsearch(content, QUERY)] == expected


@pytest.mark.parametrize("content", [b"", b"\n", b"# STOCKHOLM 1.0\n#=GF ID q\n\n//\n"])
def test_a_search_without_hits_has_none(content: bytes) -> None:
    assert parse_hmmsearch(content, QUERY) == ()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (b"1abc_A/3-13", b"1abc/3-13", "hmmsearch, record '1abc/3-13': a hit must have a name like '1abc_A/10-50'"),
        (b"mol:protein length:120", b"", "hmmsearch, record '1abc_A/3-13': a hit must have a name like"),
        (b"protein length:120", b"protein len", "hmmsearch, record '1abc_A/3-13': a hit must have a name like"),
        (b"ACDw.EFG", b"ACDwwEFG", "hmmsearch, record '1abc_A': the hit spans residues 3 to 13 but has 12"),
        (b"ACDw.EFG", b"ACDw.EF1", "hmmsearch, record '1abc_A': the row has letters other than residues and gaps"),
        (b"ACDw.EFG", b"ACD..EF.", "hmmsearch, record '1abc_A': the hit has 9 match columns, the target 10"),
        (b"ACDw.EFG", b"ACDw.EF", "hmmsearch, record '2xyz_b/1-8': the row has 12 columns, the first row 11"),
    ],
)
def test_bad_input_is_told_with_its_place(before: bytes, after: bytes, message: str) -> None:
    assert before in HMMSEARCH
    with pytest.raises(InputError) as error:
        parse_hmmsearch(HMMSEARCH.replace(before, after), QUERY)
    assert str(error.value).startswith(message)


@pytest.mark.parity
def test_hits_equal_alphafolds_parser(reference: Path) -> None:
    with np.load(reference / "pipeline" / "v23_hmmsearch_a3m.npz") as alphafold:
        # The second hit was typed by hand one column short, which AlphaFold does not notice.
        a3m = str(alphafold["a3m"]).replace("GIM-", "GIM--").encode()
        hits = parse_hmmsearch(a3m, str(alphafold["00/query"]))
        assert [hit.index for hit in hits] == [1, 2]
        for number, hit in enumerate(hits):
            column = np.array([not letter.islower() for letter in hit.hit_sequence])
            assert hit.name == str(alphafold[f"0{number}/name"])
            assert hit.aligned_columns == int(alphafold[f"0{number}/aligned_cols"])
            theirs = alphafold[f"0{number}/indices_hit"]
            np.testing.assert_array_equal(hit.indices_hit[column][: len(theirs)], theirs)
            np.testing.assert_array_equal(hit.indices_query[column], alphafold[f"0{number}/indices_query"])
        assert hits[0].hit_sequence == str(alphafold["00/hit_sequence"])


def test_real_a3m_of_hits_is_read(real_data: Path) -> None:
    content = read_text_bytes(real_data / "templates" / "Protenix__9fm7__hmmsearch.a3m.gz", 2**24)
    first = content.split(b">")[1].partition(b"\n")[2]
    columns = len(first.translate(None, b"\nabcdefghijklmnopqrstuvwxyz"))
    hits = parse_hmmsearch(content, "A" * columns)
    assert len(hits) == content.count(b"mol:protein")
    assert hits[0].name == "7wnn_A"
    assert hits[0].indices_hit[2] == 32
