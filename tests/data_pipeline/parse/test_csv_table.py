"""CSV tables of targets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from tests.data_pipeline.parse.in_memory import parse_csv


def test_columns_are_found_by_name_and_others_ignored() -> None:
    records = parse_csv(b'note,Sequence, id\n"a, b",mkt a,one\n,\n,VV,two\n'.replace(b",\n,VV", b",,\n,VV"))
    assert [(record.name, record.sequence, record.line) for record in records] == [("one", "MKTA", 2), ("two", "VV", 4)]


def test_a_stop_codon_ends_a_sequence_as_in_fasta() -> None:
    (record,) = parse_csv(b"id,sequence\none,MKTA*\n")
    assert record.sequence == "MKTA"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "first line must name"),
        (b"id,id,sequence\n", "first line must name"),
        (b"id,sequence\n", "no record"),
        (b"id;sequence\none;MK\n", "separated by commas, got semicolons"),
        (b"id,sequence\none\n", "line 2: the row has 1 cells, but the first line has 2"),
        (b"id,sequence\none,MK1\n", "line 2, record 'one': residue 3: '1' is not an amino acid"),
        (b"id,sequence\none,\n", "record 'one': the record has no sequence"),
        (b"id,sequence\n../a,MK\n", "could lead to another directory"),
        (b"id,sequence\n,MK\n", "line 2: the name is empty"),
        (b'id,sequence\n"one,MK\n', "not a CSV table"),
        (b"id,sequence\none," + b"A" * 100_001 + b"\n", "at most 100,000"),
    ],
)
def test_wrong_tables_are_one_sentence(content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        parse_csv(content, path="some.csv")
    assert str(caught.value).startswith("some.csv")


@given(content=st.one_of(st.binary(max_size=80), st.binary(max_size=40).map(lambda tail: b"id,sequence\n" + tail)))
def test_any_bytes_are_records_or_an_error(content: bytes) -> None:
    try:
        records = parse_csv(content)
    except InputError:
        return
    assert all(record.name and record.sequence for record in records)


def test_cells_of_a_tsv_table_have_tabs_between() -> None:
    records = parse_csv(b"id\tsequence\tnote\na,b\tMKTA\tx\ntwo\tVV\t\n", delimiter="\t")
    assert [(record.name, record.sequence) for record in records] == [("a,b", "MKTA"), ("two", "VV")]
    with pytest.raises(InputError, match="each once and separated by tabs"):
        parse_csv(b"id,sequence\none,MK\n", delimiter="\t")
