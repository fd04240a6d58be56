"""What an input error looks like on a terminal."""

from typing import Never

from data_pipeline.errors import InputError, printable


def test_error_names_file_line_column_and_record() -> None:
    error = InputError.at("a.fasta", "'1' is no residue", line=3, column=7, record="T1")
    assert str(error) == "a.fasta, line 3, column 7, record 'T1': '1' is no residue"


def test_error_is_one_printable_line_whatever_the_file_holds() -> None:
    error = InputError.at("a\n\x1b[31m.fasta", "wrong", record="\x07\u202ename" + "x" * 1000)
    assert str(error).isprintable()
    assert len(str(error)) < 300


def test_printable_keeps_ordinary_text() -> None:
    assert printable("sp|P12345|Ünïcode name") == "sp|P12345|Ünïcode name"


def test_printable_reads_no_more_than_it_shows() -> None:
    class Endless(str):
        def __iter__(self) -> Never:
            raise AssertionError

    assert printable(Endless("a" * 1_000), 3) == "aaa..."
    assert printable("\x07\x07", 3) == "\\x0..."
    assert printable("abc", 3) == "abc"
