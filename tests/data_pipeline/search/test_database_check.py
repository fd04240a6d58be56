"""An index tells how long a database is, whatever the order of its lines."""

from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.search.database_check import check_index

FIRST, LAST = "0\t0\t40\n", "1\t40\t60\n"


@pytest.mark.parametrize("index", [FIRST + LAST, LAST + FIRST])
def test_a_database_is_as_long_as_the_farthest_line_of_its_index_says(index: str, tmp_path: Path) -> None:
    database, content = tmp_path / "db", b"x" * 100
    Path(f"{database}.index").write_text(index)
    database.write_bytes(content)
    check_index(database)
    database.write_bytes(content[:-1])
    with pytest.raises(InputError, match="its index needs 100 bytes, but the data has 99"):
        check_index(database)


def test_a_database_may_be_divided_into_files(tmp_path: Path) -> None:
    (tmp_path / "db.index").write_text(FIRST + LAST)
    for number, size in enumerate((60, 40)):
        (tmp_path / f"db.{number}").write_bytes(b"x" * size)
    check_index(tmp_path / "db")
    (tmp_path / "db.1").write_bytes(b"x" * 39)
    with pytest.raises(InputError, match="the data has 99"):
        check_index(tmp_path / "db")


def test_a_line_that_is_no_entry_is_told(tmp_path: Path) -> None:
    (tmp_path / "db.index").write_text(f"{FIRST}1\t40\n")
    (tmp_path / "db").write_bytes(b"x" * 100)
    with pytest.raises(
        InputError, match=r"db\.index, line 2: each line of an index must have a key, an offset and a length"
    ):
        check_index(tmp_path / "db")
