import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.parse import cif
from data_pipeline.parse.cif import Category, read_blocks


def table(*rows: str, columns: tuple[str, ...] = ("id", "value")) -> Category:
    names = "\n".join(f"_t.{column}" for column in columns)
    text = f"data_a\nloop_\n{names}\n" + "\n".join(rows) + "\n"
    return Category(read_blocks(text.encode(), "x.cif")[0], "_t.", columns[0], "x.cif")


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"hello", 1, "expected block header"),
        (b"data_a\nloop_\n_a.b\n_a.c\n1 2 3\n", 2, "Wrong number of values"),
        (b"data_a\n_a.b 1\n_a.b 2\n", 3, "duplicate tag"),
        (b"data_a\n_a.b 'open\n", 2, "unterminated"),
        (b"data_a\n_a.b \0\n", 2, "parse error"),
    ],
)
def test_what_is_no_cif_is_refused_with_its_line(content: bytes, line: int, problem: str) -> None:
    with pytest.raises(InputError, match=rf"^x\.cif, line {line}: not readable as CIF \(.*{problem}"):
        read_blocks(content, "x.cif")


def test_text_in_another_encoding_is_read() -> None:
    block = read_blocks("data_a\n_a.name 'Müller'\n_a.b 1\n".encode("latin-1"), "x.cif")[0]
    assert Category(block, "_a.", "b", "x.cif").integers("b", unset=0).tolist() == [1]
    assert Category(block, "_a.", "b", "x.cif").text("name") == ["M\ufffdller"]


@pytest.mark.parametrize("chunk", [2**24, 120])
def test_more_values_than_memory_allows_are_refused_before_parsing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cif, "_CHUNK", chunk)
    content = b"data_a\nloop_\n_a.b\n" + b"1 " * 100
    assert len(read_blocks(content, "x.cif")) == 1
    monkeypatch.setattr(cif, "MAX_VALUES", 100)
    with pytest.raises(InputError, match="more than the maximum of 100 values"):
        read_blocks(content, "x.cif")


def test_quotes_and_unset_values_are_no_part_of_the_text() -> None:
    assert table("1 'a b'", "2 ?", "3 .", "4 '?'").text("value") == ["a b", "", "", "?"]


def test_codes_number_distinct_values_by_first_appearance() -> None:
    codes, values = table("1 b", "2 'a'", "3 a", "4 b").codes("value")
    assert (codes.tolist(), values) == ([0, 1, 1, 0], ("b", "a"))


def test_a_column_that_is_not_there_is_unset_in_every_row() -> None:
    rows = table("1 b", "2 a")
    assert rows.text("other") == ["", ""]
    assert rows.integers("other", unset=-1).tolist() == [-1, -1]
    assert rows.reals("other", unset=0.5).tolist() == [0.5, 0.5]


def test_numbers_may_have_an_uncertainty_or_be_unknown() -> None:
    reals = table("1 1.5(2)", "2 ?", "3 -2e1", "4 nan").reals("value", unset=np.nan)
    np.testing.assert_array_equal(reals, np.array([1.5, np.nan, -20, np.nan], np.float32))
    assert reals.dtype == np.float32


@pytest.mark.parametrize("value", ["abc", "1e999", "inf", "1e39", "1_0x"])
def test_what_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(InputError, match=rf"x\.cif: _t\.value has '{value}', expected a number"):
        table("1 1.0", f"2 {value}").reals("value", unset=0.0)


@pytest.mark.parametrize("value", ["abc", "1.5", "99999999999", "-2147483648"])
def test_what_is_no_whole_number_of_32_bits_is_refused(value: str) -> None:
    with pytest.raises(InputError, match=rf"_t\.value has '{value}', expected a number"):
        table("1 1", f"2 {value}").integers("value", unset=0)


def test_columns_of_other_length_are_refused() -> None:
    text = b"data_a\nloop_\n_t.id\n1\n2\nloop_\n_t.value\n1\n2\n3\n"
    rows = Category(read_blocks(text, "x.cif")[0], "_t.", "id", "x.cif")
    with pytest.raises(InputError, match=r"_t\.value has 3 values, other columns 2"):
        rows.raw("value")


@pytest.mark.parametrize(
    ("chosen", "values"), [([0, 1], ["a", "b"]), ([1, 3], ["b", "d"]), ([0, 1, 2, 3], list("abcd"))]
)
def test_only_chosen_rows_are_read(chosen: list[int], values: list[str]) -> None:
    rows = table("1 a", "2 b", "3 c", "4 d")
    rows.choose(np.array(chosen))
    assert rows.text("value") == values
    assert rows.text("other") == [""] * len(values)
