"""Chains of complexes are read from FASTA and tables as they are meant, or refused in one sentence."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.features.complexes.chain_ids import MAX_CHAINS, default_chain_ids, require_pdb_chain_ids
from data_pipeline.features.complexes.chain_sequences import ChainSequenceError, split_chains
from data_pipeline.features.complexes.sequence_files import (
    read_complex_of_records,
    read_fasta_targets,
    read_table_targets,
)
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.features.complexes.target_files import target_of
from data_pipeline.io.errors import InputError
from data_pipeline.parse.fasta import FastaRecord
from data_pipeline.residues import RESTYPES

SEQUENCES = st.text(RESTYPES, min_size=1, max_size=19)


@pytest.mark.parametrize(
    ("text", "chains"),
    [
        ("MKT", ("MKT",)),
        ("MKT:AYI", ("MKT", "AYI")),
        ("MKT:MKT", ("MKT", "MKT")),
        ("MKT*3", ("MKT",) * 3),
        ("MKT*2:AYI:GG*1", ("MKT", "MKT", "AYI", "GG")),
        ("MKT*:AYI*", ("MKT", "AYI")),
    ],
)
def test_chains_and_copies_are_read(text: str, chains: tuple[str, ...]) -> None:
    assert split_chains(text) == chains


@pytest.mark.parametrize(
    ("text", "index", "problem"),
    [
        ("MKT::AYI", 4, "chain 2 is empty"),
        (":AYI", 0, "chain 1 is empty"),
        ("MKT:", 4, "chain 2 is empty"),
        ("", 0, "chain 1 is empty"),
        ("MKT:*2", 4, "chain 2 is empty"),
        ("MKT:A-I", 5, "'-' is not an amino acid letter; a target sequence cannot"),
        ("MKT*0", 4, "the number of copies must be at least 1"),
        ("MKT*2A", 5, "expected a number of copies after '*'"),
        ("MKT*AYI", 4, "expected a number of copies after '*'"),
        ("MKT*2*", 5, "expected a number of copies after '*'"),
        ("M*18315", 0, "more chains than can be named, which is 18,314"),
        ("M*" + "9" * 5000, 2, "more chains than can be named"),
        ("MKTAYI*18000", 0, "more than the maximum of 100,000 residues"),
    ],
)
def test_text_that_is_no_complex_is_refused(text: str, index: int, problem: str) -> None:
    with pytest.raises(ChainSequenceError) as error:
        split_chains(text)
    assert problem in str(error.value)
    assert error.value.index == index


@given(st.lists(st.tuples(SEQUENCES, st.integers(1, 5)), min_size=1, max_size=6))
def test_what_is_written_is_read(chains: list[tuple[str, int]]) -> None:
    text = ":".join(f"{sequence}*{copies}" for sequence, copies in chains)
    assert split_chains(text) == tuple(sequence for sequence, copies in chains for _ in range(copies))


@given(
    st.lists(st.sampled_from(["A", "RN*", "RN*2", "A*12", "A*0", "", "Ax", "*2"]), max_size=3).map(":".join)
    | st.text(RESTYPES[:3] + ":*-01x", max_size=12)
)
def test_any_text_gives_chains_or_the_place_of_a_mistake(text: str) -> None:
    try:
        chains = split_chains(text)
    except ChainSequenceError as error:
        assert 0 <= error.index <= len(text)
    else:
        parts = [re.fullmatch(r"([A-Z]+)(?:\*(\d*))?", part) for part in text.split(":")]
        assert list(chains) == [part[1] for part in parts if part for _ in range(int(part[2] or 1))]
        assert all(parts)


def test_chains_have_different_names_of_which_a_pdb_file_takes_62() -> None:
    names = default_chain_ids(MAX_CHAINS)
    assert len(set(names)) == MAX_CHAINS == 18314
    assert (names[0], names[25:27], names[61:64], names[-1]) == ("A", ("Z", "a"), ("9", "AA", "BA"), "ZZZ")
    require_pdb_chain_ids(names[:62])
    with pytest.raises(InputError, match="got 63 chains, but a PDB file can have at most 62; use mmCIF"):
        require_pdb_chain_ids(names[:63])
    with pytest.raises(InputError, match="chain IDs of PDB files have a single character"):
        require_pdb_chain_ids(["A", "AA"])
    with pytest.raises(InputError, match="got 18,315 chains"):
        default_chain_ids(MAX_CHAINS + 1)


def test_entities_are_the_different_sequences() -> None:
    target = ComplexTarget.of("x", ("MKT", "AYI", "MKT"), ("H", "L", "h"))
    assert [(each.sequence, each.chain_ids) for each in target.entities] == [("MKT", ("H", "h")), ("AYI", ("L",))]
    assert ComplexTarget.of("x", ("MKT", "AYI")).chain_ids == ("A", "B")


@pytest.mark.parametrize(
    ("sequences", "ids", "problem"),
    [
        ((), (), "complex 'x' has no chain"),
        (("MKT", ""), (), "chain B of complex 'x' is empty"),
        (("MKT", "A1"), (), "chain B of complex 'x', residue 2: '1' is not"),
        (("MKT", "AYI"), ("A",), "got 1 chain IDs for 2 chains"),
        (("MKT", "AYI"), ("A", "A"), "two chains have the ID 'A'"),
        (("MKT", "AYI"), ("A", "B-"), "a chain ID must be one to four letters A-Z, a-z or digits, got 'B-'"),
        (("MKT", "AYI"), ("A", "ABCDE"), "a chain ID must be one to four letters A-Z, a-z or digits, got 'ABCDE'"),
        (("XX", "X"), (), "complex 'x' cannot be predicted: it has no known residue"),
        (("M" * 60_000,) * 2, (), "complex 'x' has 120,000 residues; at most 100,000"),
    ],
)
def test_complexes_that_cannot_be_are_refused(sequences: tuple[str, ...], ids: tuple[str, ...], problem: str) -> None:
    with pytest.raises(InputError) as error:
        ComplexTarget.of("x", sequences, ids)
    assert problem in str(error.value)


def test_fasta_and_tables_name_the_same_complexes(tmp_path: Path) -> None:
    fasta, table = tmp_path / "x.fasta", tmp_path / "x.csv"
    fasta.write_text(">one chain_ids=H:L\nmk t\n:AY\nI\n>two\nMKT*2\n>four chain_ids=H\nMKT\n>three\nMKT*\n")
    table.write_text("id,sequence,chain_ids\none,MKT:AYI,H:L\ntwo,mkt*2,\nfour,MKT,H\nthree,MKT,\n")
    expected = [
        ComplexTarget.of("one", ("MKT", "AYI"), ("H", "L")),
        ComplexTarget.of("two", ("MKT", "MKT")),
        ComplexTarget.of("four", ("MKT",), ("H",)),
    ]
    for read, path in ((read_fasta_targets, fasta), (read_table_targets, table)):
        *complexes, single = read(path)
        assert complexes == expected
        assert isinstance(single, FastaRecord)
        assert (single.name, single.sequence) == ("three", "MKT")


def test_a_complex_has_the_description_of_its_header(tmp_path: Path) -> None:
    path = tmp_path / "x.fasta"
    path.write_text(">one Barnase chain_ids=H:L and barstar\nMKT:AYI\n>two chain_ids=A Barnase\nMKT\n")
    whole, single = map(target_of, read_fasta_targets(path))
    assert (whole.description, single.description) == ("Barnase and barstar", "Barnase")


def test_records_of_a_file_are_the_chains_of_one_complex(tmp_path: Path) -> None:
    path = tmp_path / "dimer.fasta"
    path.write_text(">first\nMKT\n>second\nAYI\n")
    assert read_complex_of_records(path) == ComplexTarget.of("dimer", ("MKT", "AYI"))
    path.write_text(">first Barnase\nMKT\n>second Barstar\nAYI\n>third Barnase\nMKT\n")
    assert read_complex_of_records(path).description == "Barnase; Barstar"
    path.write_text(">first Barnase\nMKT\n>second\nAYI\n")
    assert read_complex_of_records(path, ("X", "Y")).chain_ids == ("X", "Y")
    with pytest.raises(InputError, match="3 chain IDs for 2 chains"):
        read_complex_of_records(path, ("X", "Y", "Z"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (">a\nMKT:\nAY I1\n", "line 3, column 5, record 'a': '1' is not an amino acid"),
        (">a\nMKT:\n", "line 1, record 'a': chain 2 is empty"),
        (">a\nMKT::AYI\n", "line 2, column 5, record 'a': chain 2 is empty"),
        (">a\nMKT:AYI\n>A\nMKT\n", "line 3, record 'A': the same name as in line 1"),
        (">a chain_ids=H\nMKT:AYI\n", "line 1: got 1 chain IDs for 2 chains"),
        ("", "the file is empty"),
    ],
)
def test_mistakes_in_a_fasta_file_are_told_with_their_place(content: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "x.fasta"
    path.write_text(content)
    with pytest.raises(InputError) as error:
        read_fasta_targets(path)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("a,MKT:A1I", "line 2, record 'a': letter 6: '1' is not an amino acid"),
        ("a,MKT:", "line 2, record 'a': letter 5: chain 2 is empty"),
        ("../a,MKT", "line 2, record '../a': the name contains"),
        ("", "the table has no record"),
    ],
)
def test_mistakes_in_a_table_are_told_with_their_place(rows: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"id,sequence\n{rows}\n")
    with pytest.raises(InputError) as error:
        read_table_targets(path)
    assert problem in str(error.value)
