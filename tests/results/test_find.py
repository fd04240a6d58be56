"""Predicted structures are found by the names that programs give them; the best one is what most callers want."""

from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from helixfold.results.find import find_predictions
from helixfold.results.prediction import best_structure


def touched(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def test_predictions_are_found_as_programs_leave_them(tmp_path: Path) -> None:
    ours = touched(
        tmp_path / "ours", "b/ranked_0.pdb", "b/ranked_0.cif", "b/ranked_1.pdb", "a/ranked_0.pdb", "failures.json"
    )
    assert [(each.name, each.rank, each.path.name) for each in find_predictions(ours)] == [
        ("a", 0, "ranked_0.pdb"),
        ("b", 0, "ranked_0.cif"),
    ]
    assert [(each.name, each.rank) for each in find_predictions(ours, all_ranks=True)] == [("a", 0), ("b", 0), ("b", 1)]
    assert [each.name for each in find_predictions(ours / "b")] == ["b"]
    colabfold = touched(
        tmp_path / "colabfold",
        "x_unrelaxed_rank_001_alphafold2_ptm_model_3_seed_000.pdb",
        "x_relaxed_rank_001_alphafold2_ptm_model_3_seed_000.pdb",
        "x_unrelaxed_rank_1000_alphafold2_ptm_model_2_seed_000.pdb",
        "x_unrelaxed_rank_002_alphafold2_ptm_model_1_seed_000.pdb",
        "x_scores_rank_001.json",
    )
    (best,) = find_predictions(colabfold)
    assert (best.name, best.path.name.startswith("x_relaxed")) == ("x", True)
    assert [each.rank for each in find_predictions(colabfold, all_ranks=True)] == [0, 1, 999]
    plain = touched(tmp_path / "plain", "P.PDB", "q.cif.gz", "notes.txt")
    assert [each.name for each in find_predictions(plain)] == ["P", "q"]
    assert [each.name for each in find_predictions(plain / "q.cif.gz")] == ["q"]


def test_the_pdb_file_is_the_best_structure_if_there_is_one(tmp_path: Path) -> None:
    assert best_structure(tmp_path) is None
    touched(tmp_path, "ranked_0.cif", "ranked_1.pdb", "ranked_1.cif")
    assert best_structure(tmp_path) == tmp_path / "ranked_0.cif"
    assert best_structure(tmp_path, 1) == tmp_path / "ranked_1.pdb"


def test_a_directory_without_predictions_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it has no predictions: neither <target>/ranked_0\.pdb nor"):
        find_predictions(tmp_path)
    with pytest.raises(InputError, match="no such file or directory"):
        find_predictions(tmp_path / "absent")
