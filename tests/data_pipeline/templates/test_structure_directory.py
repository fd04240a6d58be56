"""Structure files are found wherever mirrors put them, and the tables beside them are read."""

from datetime import date
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.templates.result import RejectionReason, UnusableHitError
from data_pipeline.templates.structure_directory import (
    StructureDirectory,
    is_structure_name,
    read_obsolete,
    read_release_dates,
)
from tests.data_pipeline.templates.structures import make_chain, make_structure, write

STRUCTURE = make_structure(make_chain("A", "KTAYLAKQRE"))


@pytest.mark.parametrize(
    "name", ["1abc.pdb", "1ABC.pdb", "ab/1abc.ent", "ab/pdb1abc.ent", "pdb1abc.ent", "AB/1ABC.pdb"]
)
def test_files_are_found_flat_or_divided(tmp_path: Path, name: str) -> None:
    write(tmp_path, STRUCTURE, name)
    assert StructureDirectory(tmp_path).load("1abc").chains[0].sequence == "KTAYLAKQRE"


def test_structures_are_parsed_once_while_they_are_recent(tmp_path: Path) -> None:
    path = write(tmp_path, STRUCTURE)
    source = StructureDirectory(tmp_path)
    first = source.load("1abc")
    path.unlink()
    assert source.load("1abc") is first
    for number in range(8):
        write(tmp_path, STRUCTURE, f"{number}xyz.pdb")
        source.load(f"{number}xyz")
    with pytest.raises(UnusableHitError) as error:
        source.load("1abc")
    assert error.value.reason is RejectionReason.NO_FILE


def test_missing_and_unreadable_files_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "2abc.cif").write_text("not a structure")
    source = StructureDirectory(tmp_path)
    with pytest.raises(UnusableHitError, match=r"no mmCIF or PDB file of 1abc") as error:
        source.load("1abc")
    assert error.value.reason is RejectionReason.NO_FILE
    with pytest.raises(UnusableHitError, match=r"2abc\.cif") as error:
        source.load("2abc")
    assert error.value.reason is RejectionReason.UNREADABLE


def test_directories_without_structures_are_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory"):
        StructureDirectory(tmp_path / "none")
    (tmp_path / "ab").mkdir()
    (tmp_path / "README.txt").write_text("")
    with pytest.raises(InputError, match="no file in it or in its subdirectories"):
        StructureDirectory(tmp_path)
    (tmp_path / "ab" / "1abc.cif.gz").write_text("")
    StructureDirectory(tmp_path)


def test_names_tell_structure_files() -> None:
    assert is_structure_name("1ABC.CIF.GZ")
    assert not is_structure_name("1abc.hhr")


def test_obsolete_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "obsolete.dat"
    path.write_text(
        " LIST OF OBSOLETE COORDINATE ENTRIES AND SUCCESSORS\n"
        "OBSLTE    31-JUL-94 116L     216L\n"
        "OBSLTE    06-NOV-19 6G9Y\n"
        "OBSLTE    26-SEP-06 2H33     2JM5 2OWI\n"
    )
    assert read_obsolete(path) == {"116l": "216l", "6g9y": None, "2h33": "2jm5"}
    path.write_text("OBSLTE    31-JUL-94\n")
    with pytest.raises(InputError, match=r"obsolete\.dat, line 1: no entry in this line"):
        read_obsolete(path)


def test_successors_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    write(tmp_path, STRUCTURE)
    obsolete = {"1old": "1mid", "1mid": "1abc", "1one": "1two", "1two": "1one", "1bad": None}
    source = StructureDirectory(tmp_path, obsolete=obsolete, release_dates={"1bad": date(2000, 1, 1)})
    assert source.current_entry("1old") == "1abc"
    assert source.current_entry("1one") == "1two"
    assert source.current_entry("1bad") == "1bad"  # its date is known, so it is current
    with pytest.raises(UnusableHitError) as error:
        StructureDirectory(tmp_path, obsolete=obsolete).current_entry("1bad")
    assert error.value.reason is RejectionReason.OBSOLETE
    # A circle further on does not go back to the entry itself.
    farther = StructureDirectory(tmp_path, obsolete={"1abc": "2abc", "2abc": "3abc", "3abc": "2abc"})
    assert farther.current_entry("1abc") == "3abc"


def test_release_dates_are_read(tmp_path: Path) -> None:
    path = tmp_path / "release_dates.txt"
    path.write_text("1ABC: 2001-02-03\n\n2abc:1999-12-31 00:00\n")
    assert read_release_dates(path) == {"1abc": date(2001, 2, 3), "2abc": date(1999, 12, 31)}
    path.write_text("1abc: 2001-02-03\n2abc 1999\n")
    with pytest.raises(InputError, match=r"release_dates\.txt, line 2: the line must be 'entry: year-month-day'"):
        read_release_dates(path)
