"""The table of chains: what is written is read back, and anything else is refused with its line."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.training_sets.index import IndexEntry, chain_name_problem, read_index, write_index
from tests.data_pipeline.training_sets.stored import entry

KEY = "0123456789abcdef" * 2
PRINTABLE = st.characters(exclude_categories=("C", "Z"), include_characters=" ")
NAMES = st.text(PRINTABLE, min_size=1, max_size=30).filter(lambda name: chain_name_problem(name) is None)


@given(
    st.lists(
        st.builds(
            IndexEntry,
            name=NAMES,
            cluster=NAMES,
            length=st.integers(1, 10**6),
            msa_rows=st.integers(1, 10**6),
            release_date=st.none() | st.dates(),
            resolution=st.none() | st.floats(0, exclude_min=True, allow_infinity=False),
            is_distillation=st.booleans(),
            key=st.just(KEY),
        ),
        unique_by=lambda chain: chain.name,
    )
)
def test_any_entries_come_back(tmp_path_factory: pytest.TempPathFactory, entries: list[IndexEntry]) -> None:
    path = tmp_path_factory.mktemp("index") / "index.tsv"
    write_index(path, entries)
    assert read_index(path) == tuple(entries)


def test_the_table_is_one_that_people_can_read(tmp_path: Path) -> None:
    unknown = replace(entry("2xyz_B", KEY), release_date=None, resolution=None, is_distillation=True)
    write_index(tmp_path / "index.tsv", [entry("1abc_A", KEY, cluster="one"), unknown])
    assert (tmp_path / "index.tsv").read_text() == (
        "name\tcluster\tlength\tmsa_rows\trelease_date\tresolution\tis_distillation\tkey\n"
        f"1abc_A\tone\t30\t5\t2018-04-30\t2.1\tno\t{KEY}\n"
        f"2xyz_B\t2xyz_B\t30\t5\t\t\tyes\t{KEY}\n"
    )
    windows = (tmp_path / "index.tsv").read_bytes().replace(b"\n", b"\r\n")
    (tmp_path / "windows.tsv").write_bytes(windows)
    assert read_index(tmp_path / "windows.tsv") == (entry("1abc_A", KEY, cluster="one"), unknown)


@pytest.mark.parametrize(
    ("column", "cell", "problem"),
    [
        (0, "", "name must be a name"),
        (0, " 1abc_A", "must be a name without blanks at its ends, got ' 1abc_A'"),
        (2, "0", "length must be a whole number from 1, got '0'"),
        (2, "-3", "length must be a whole number from 1, got '-3'"),
        (2, "²", "length must be"),
        (3, "0", "msa_rows must be a whole number from 1, got '0'"),
        (4, "30.4.2018", "release_date must be a date"),
        (5, "-1", "resolution must be a number above 0 (Angstrom), or empty, got '-1'"),
        (5, "nan", "resolution must be a number above 0 (Angstrom), or empty, got 'nan'"),
        (5, "inf", "resolution must be a number above 0 (Angstrom), or empty, got 'inf'"),
        (6, "True", "is_distillation must be yes or no, got 'True'"),
        (7, KEY.upper(), "key must be"),
        (7, KEY + "\tmore", "9 columns, expected 8"),
    ],
)
def test_a_wrong_cell_is_an_error_with_its_line(tmp_path: Path, column: int, cell: str, problem: str) -> None:
    path = tmp_path / "index.tsv"
    write_index(path, [entry("1abc_A", KEY), entry("2xyz_B", KEY)])
    lines = path.read_text().splitlines()
    cells = lines[2].split("\t")
    cells[column] = cell
    path.write_text("\n".join([*lines[:2], "\t".join(cells)]) + "\n")
    with pytest.raises(InputError, match=r"index\.tsv, line 3: ") as caught:
        read_index(path)
    assert problem in str(caught.value)


def test_other_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "index.tsv"
    write_index(path, [entry("1abc_A", KEY), entry("1abc_A", KEY)])
    with pytest.raises(InputError, match="line 3: '1abc_A' is also in line 2"):
        read_index(path)
    for content in (b"", b"name\tlength\n", b"\xff\xfe\x00", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"index\.tsv"):
            read_index(path)


def test_an_index_without_depths_says_how_to_get_them(tmp_path: Path) -> None:
    path = tmp_path / "index.tsv"
    path.write_text(f"name\tcluster\tlength\trelease_date\tresolution\tis_distillation\tkey\na\ta\t3\t\t\tno\t{KEY}\n")
    with pytest.raises(InputError, match=r"line 1: written by an earlier version; repeat the command"):
        read_index(path)


def test_names_that_tables_change_are_refused() -> None:
    assert chain_name_problem("1abc_A") is None
    assert chain_name_problem("domain 3 of β") is None
    for name in ("", " a", "a\t", "a\nb", "=1+1", '"a', "x" * 300):
        assert chain_name_problem(name) is not None
