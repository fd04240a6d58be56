"""FASTA as people write it is read; everything else is one sentence with file, line, column and record."""

import gzip
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.parse.fasta import (
    FastaRecord,
    directory_name,
    file_name_problem,
    file_names,
    filesystem_key,
    find_invalid_letter,
    kind_problem,
    read_fasta,
    target_name_problem,
)
from data_pipeline.residues import AMBIGUOUS_LETTERS, RESTYPES
from tests.data_pipeline.parse.in_memory import parse_fasta


def test_records_come_in_order_with_name_description_sequence_and_line() -> None:
    assert parse_fasta(b">one first of two\nACD\nEFG\n\n>two\nKLM") == [
        FastaRecord(name="one", description="first of two", sequence="ACDEFG", line=1),
        FastaRecord(name="two", description="", sequence="KLM", line=5),
    ]


@pytest.mark.parametrize(
    "content",
    [
        b">a\nacdefg\n",
        b"\n\n>a\n\nACD\n\nEFG\n\n",
        b">a\nACDEFG*\n",
        b">a\nACD\nEFG*\n\n  \n",
        b">a\n  ACD EFG  \n",
        b"> a \nACDEFG",
        b">a\tx\nACDEFG",
    ],
)
def test_harmless_variants_read_the_same(content: bytes) -> None:
    (record,) = parse_fasta(content)
    assert (record.name, record.sequence) == ("a", "ACDEFG")


def test_ambiguous_letters_are_kept() -> None:
    assert parse_fasta(b">a\nABJOUXZ\n")[0].sequence == "ABJOUXZ"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "FASTA: the file is empty"),
        (b" \n\n", "FASTA: the file is empty"),
        (b"ACDE\n>a\nACD", "FASTA, line 1: a sequence before any"),
        (b"\x7fELF\x01\0\0", "FASTA, line 1: binary data before any"),
        (b">a\n>b\nACD", "FASTA, line 1, record 'a': the record has no sequence"),
        (b">a\nACD\n>b\n*\n", "FASTA, line 3, record 'b': the record has no sequence"),
        (b">a\nACD\nEF1G\n", "FASTA, line 3, column 3, record 'a': '1' is not an amino acid letter"),
        (
            b">a\nAC D-F\n",
            "FASTA, line 2, column 5, record 'a': '-' is not an amino acid letter; a target sequence cannot",
        ),
        (b">a\nAC.\n", "FASTA, line 2, column 3, record 'a': '.' is not"),
        (b">a\nAC*D\n", "FASTA, line 2, column 3, record 'a': '*' is not"),
        (b">a\nAC*\nD\n", "FASTA, line 2, column 3, record 'a': '*' is not"),
        (b">a\nAC\0D\n", r"FASTA, line 2, column 3, record 'a': '\x00' is not"),
        ("\N{LATIN SMALL LETTER LONG S}".join((">a\nAC", "D\n")).encode(), "FASTA, line 2, column 3, record 'a': "),
        (b">a\nAC\xff\n", "FASTA, line 2, column 3, record 'a': "),
        (b">a\nACD\n>b\nACD\n>a x\nACD\n", "FASTA, line 5, record 'a': the same name as in line 1; give"),
        (b">T1\nACD\n>t1\nACD\n", "FASTA, line 3, record 't1': the same name as in line 1 ('T1') on some"),
        (
            ">\u00e9\nACD\n>e\u0301\nACD\n".encode(),
            "FASTA, line 3, record 'e\u0301': the same name as in line 1 ('\u00e9') on",
        ),
        (b">a|b\nACD\n>a_b\nACD\n", "FASTA, line 3, record 'a_b': the same name as in line 1 ('a|b') once it is a dir"),
        (b">\nACD\n", "FASTA, line 1: the name is empty"),
        (b">a\nACD\n>\xff\nACD\n", "FASTA, line 3, record '\ufffd': the name is not valid UTF-8"),
        (b">a\n" + b"A" * 100_001, "FASTA, line 1, record 'a': it has 100,001 residues; at most 100,000"),
    ],
)
def test_bad_input_is_told_with_its_place(content: bytes, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_fasta(content)
    assert str(error.value).startswith(message)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "name",
    [
        *("", "a\\b", "..", "../a", "a/..", "a/../b", "./a", "/./a/..", "-/a", "a/.", "a..b", ".a", "-a", "a."),
        *("a\0b", "a\nb", "a\x1bb", "a\u202eb"),
        *("con", "CON", "nul.txt", "COM1", "lpt9.a3m", "c:a", "x" * 200, "\u00e9" * 100, "\ud800"),
    ],
)
def test_names_unfit_for_a_directory_are_refused(name: str) -> None:
    assert (target_name_problem(name) or "").startswith("the name ")


@pytest.mark.parametrize("name", ["a/b", "/a", "a/", "/", "/etc/passwd", "con/a"])
def test_slashes_are_allowed_in_names_of_targets_and_not_in_names_of_files(name: str) -> None:
    assert target_name_problem(name) is None
    assert "could lead to another directory" in (file_name_problem(name) or "")
    assert file_name_problem(directory_name(name)) is None
    # The user's files of such a target are sought in no other directory than the one that is named.
    assert file_names(name) == (directory_name(name),)


@pytest.mark.parametrize(
    "name", ["T1034", "sp|P12345|NAME_HUMAN", "1abc:A", "console", "a.b", "a-b", "x" * 199, "\u00e9" * 99, "101"]
)
def test_names_people_use_are_accepted(name: str) -> None:
    assert target_name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("sp|P0CG48|UBC_HUMAN", "sp_P0CG48_UBC_HUMAN"),
        ("tr/Q8", "tr_Q8"),
        ("tr|A0A024|X", "tr_A0A024_X"),
        ("gi|129295|sp|P01013|", "gi_129295_sp_P01013_"),
        ("pdb|1ABC|A", "pdb_1ABC_A"),
        ("1abc:A", "1abc_A"),
        ("a b(1)", "a_b_1_"),
        ("T1034.v2-x_y", "T1034.v2-x_y"),
        ("cafe\u0301", "caf\u00e9"),
    ],
)
def test_directories_have_names_that_any_shell_and_system_takes(name: str, directory: str) -> None:
    assert directory_name(name) == directory
    assert directory_name(directory) == directory


def test_gzip_file_is_read_and_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.fasta.gz"
    path.write_bytes(gzip.compress(b">a\r\nACD\r\n"))
    assert read_fasta(path)[0].sequence == "ACD"
    path.write_bytes(gzip.compress(b">a\nAC4\n"))
    with pytest.raises(InputError, match=r"a\.fasta\.gz, line 2, column 3, record 'a'"):
        read_fasta(path)


names = st.text(string.ascii_letters + string.digits + "_-.|:=", min_size=1, max_size=20).filter(
    lambda name: target_name_problem(name) is None
)
sequences = st.text(RESTYPES + AMBIGUOUS_LETTERS, min_size=1, max_size=50)


@settings(max_examples=100, deadline=None)
@given(
    records=st.lists(
        st.tuples(names, sequences), min_size=1, max_size=5, unique_by=lambda record: filesystem_key(record[0])
    ),
    width=st.integers(1, 60),
)
def test_what_is_written_is_read(records: list[tuple[str, str]], width: int) -> None:
    lines: list[str] = []
    for name, sequence in records:
        lines += [f">{name}", *(sequence[start : start + width] for start in range(0, len(sequence), width))]
    parsed = parse_fasta("\n".join(lines).encode())
    assert [(record.name, record.sequence) for record in parsed] == records


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=60) | st.text(">acDZ1-* \n\t\0;\u00df").map(str.encode))
def test_any_bytes_give_records_or_an_input_error(content: bytes) -> None:
    try:
        records = parse_fasta(content, path="any.fasta")
    except InputError as error:
        message = str(error)
    else:
        message = "any.fasta"
        assert all(record.sequence and target_name_problem(record.name) is None for record in records)
    assert all(line.startswith(("any.fasta", "... and ")) and line.isprintable() for line in message.split("\n"))


def test_real_files_are_read(real_data: Path) -> None:
    counts = {
        path.name: len(read_fasta(path))
        for pattern in ("casp*.fasta", "cameo*.fasta", "minidb*", "train_chains*", "PaddleHelix*")
        for path in (real_data / "fasta").glob(pattern)
        if path.name != "casp14_domains_mapra.fasta"
    }
    assert counts["casp14_targets_full_length.fasta"] == 81
    assert counts["minidb_uniref90__subsampled_1000.fasta.gz"] == 1000


def test_real_file_that_lacks_a_line_end_is_refused_where_it_does(real_data: Path) -> None:
    with pytest.raises(InputError, match=r"line 30, column 107, record 'T1064': '>' is not"):
        read_fasta(real_data / "fasta" / "casp14_domains_mapra.fasta")


@pytest.mark.parametrize(
    ("sequence", "problem"),
    [
        ("ACGTACGT", "this is DNA"),
        ("ACGTNNNNACGT", "this is DNA"),
        ("ACGUACGUACGUACGUAC", "this is RNA"),
        ("UUUU", "this is RNA"),
        ("METGLYALA", "these are three-letter codes; write one letter per residue: MGA,"),
        ("ALAALAALAALA", "these are three-letter codes; write one letter per residue: AAAA,"),
        ("MSEGLYALA", "MGA"),
    ],
)
def test_dna_rna_and_three_letter_codes_are_recognised(sequence: str, problem: str) -> None:
    assert problem in str(kind_problem(sequence))
    assert "pass --as-protein (helixfold predict and features; in Python, as_protein=True)" in str(
        kind_problem(sequence)
    )


@pytest.mark.parametrize("sequence", ["ALA-GLY-SER", "ACGT-ACGT"])
def test_codes_with_hyphens_are_never_residues(sequence: str) -> None:
    index, problem = find_invalid_letter(sequence) or (None, "")
    assert index == sequence.index("-")
    assert problem.startswith(("these are three-letter codes", "this is DNA"))
    assert "--as-protein" not in problem


@pytest.mark.parametrize(
    "sequence",
    [
        "GAGAGAGAGAGAGAGAGAGAGAGA",  # silk
        "AATAATAATAATAATAATAATAAT",  # antifreeze glycoprotein
        "GAGAGSGAGAGSGAGAGS",
        "TTTTTTTTTTTTTTTTTTTT",
        "ACGT",
        "GCCTTACCGT" + "K",
        "MUSECUCGK",  # with selenocysteine
        "ALAALA",
        "METGLYALAK",
        "KALAALAALAALA",
        "SGRGKGGKGLGKGGAKRHRK",
    ],
)
def test_real_peptides_are_residues(sequence: str) -> None:
    assert kind_problem(sequence) is None
