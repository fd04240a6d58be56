"""Predictions find their references by name, and by sequence where names say nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.structure import Structure
from helixfold.analysis.matching import StructureFile, by_name, by_sequence, find_references
from helixfold.analysis.residues import ComparisonError
from tests.analysis.test_residues import FULL, chain


def files(*names: str) -> list[StructureFile]:
    return [StructureFile(name=name, path=Path(f"{name}.pdb")) for name in names]


def structure(sequence: str, name: str = "one") -> Structure:
    return Structure(name=name, release_date=None, resolution=None, method="", chains=(chain(sequence),), skipped={})


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        ("T1031", ["T1031-D1", "T1031-D2"]),
        ("t1024", ["T1024"]),
        ("T103", []),
        ("1abc_A", ["1abc"]),
        ("1ABC_b", ["1abc"]),
        ("1abcd", []),
        ("other", []),
    ],
)
def test_names_match_whole_or_up_to_a_separator(prediction: str, expected: list[str]) -> None:
    references = files("T1024", "T1024-D1", "T1031-D1", "T1031-D2", "1abc")
    assert [match.reference.name for match in by_name(prediction, references)] == expected


def test_a_name_may_say_which_chain() -> None:
    assert by_name("1abc_B", files("1abc"))[0].chain == "B"
    assert by_name("1abc", files("1abc"))[0].chain is None


def test_sequences_match_if_only_one_does() -> None:
    one, two, other = files("one", "two", "other")
    different = structure("PEPTIDESAREHEREANDTHERE")
    found = by_sequence(structure(FULL), [(other, different), (one, structure(FULL[2:]))])
    assert (found[0].reference, found[0].by_sequence) == (one, True)
    longer = by_sequence(structure(FULL), [(two, structure(FULL)), (one, structure(FULL[5:]))])
    assert longer[0].reference == two
    with pytest.raises(ComparisonError, match=r"2 references have its sequence \(one.pdb, two.pdb\); give one of them"):
        by_sequence(structure(FULL), [(one, structure(FULL)), (two, structure(FULL))])
    with pytest.raises(ComparisonError, match="none of 1 references has its name or a similar sequence"):
        by_sequence(structure(FULL), [(other, different)])
    with pytest.raises(ComparisonError, match="none of 1 references"):
        by_sequence(structure(FULL), [(other, replace(different, chains=()))])


def test_what_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no structures"):
        find_references(tmp_path)
    with pytest.raises(InputError, match="no such file or directory"):
        find_references(tmp_path / "absent")
    (tmp_path / "twice").mkdir()
    for name in ("a.cif", "A.pdb"):
        (tmp_path / "twice" / name).touch()
    with pytest.raises(InputError, match=r"A.pdb has the same name; keep one"):
        find_references(tmp_path / "twice")
