"""What an input error looks like on a terminal."""

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
