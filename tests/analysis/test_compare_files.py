"""Predictions are compared with references of the same name or sequence; files without one are reported."""

from pathlib import Path

import pytest

from helixfold.analysis.compare_files import compare_files
from helixfold.results.find import find_predictions
from tests.apps.score.structure_files import SEQUENCE, write

OTHER = "GSHMWWPDE"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    predicted, known = tmp_path / "predicted", tmp_path / "known"
    for rank in range(3):
        write(predicted / "a" / f"ranked_{rank}.pdb", noise=rank / 2)
    write(predicted / "unnamed" / "ranked_0.pdb", OTHER, seed=3)
    write(predicted / "pair_B" / "ranked_0.pdb", SEQUENCE[:8], seed=5)
    write(known / "a.pdb")
    write(known / "b.pdb", OTHER, seed=3)
    write(known / "pair.pdb", SEQUENCE[:8], SEQUENCE[:8], seed=5)
    write(known / "c.pdb", "DEDEDEDEDE")
    return predicted, known


def test_each_prediction_is_compared_with_its_own_reference(files: tuple[Path, Path]) -> None:
    predicted, known = files
    found = compare_files(find_predictions(predicted), known)
    assert (found.count, found.failures, found.unused) == (3, {}, ["c"])
    assert [(each.target, each.rank, each.reference, each.by_sequence) for each in found.results] == [
        ("a", 0, "a", False),
        ("pair_B", 0, "pair", False),
        ("unnamed", 0, "b", True),
    ]
    scores = [each.scores for each in found.results]
    assert [each.tm_score for each in scores] == pytest.approx([1, scores[1].tm_score, 1])
    # The chain that the name asks for, though the prediction is the other one.
    assert scores[1].reference_chain == "B"
    assert scores[1].tm_score < 0.99
    everything = compare_files(find_predictions(predicted, all_ranks=True), known)
    assert [each.rank for each in everything.results if each.target == "a"] == [0, 1, 2]
    assert everything.count == 5


def test_whole_complexes_are_compared_where_the_name_asks_for_no_chain(tmp_path: Path) -> None:
    for directory in ("predicted", "known"):
        write(tmp_path / directory / "pair.pdb", SEQUENCE[:8], SEQUENCE)
    (result,) = compare_files(find_predictions(tmp_path / "predicted"), tmp_path / "known").results
    assert result.complex is not None
    assert result.complex.tm_score == pytest.approx(1, abs=1e-4)


def test_what_cannot_be_compared_stops_no_other(files: tuple[Path, Path]) -> None:
    predicted, known = files
    (predicted / "a" / "ranked_1.pdb").write_text("nothing")
    (known / "c.pdb").write_text("nothing")
    write(predicted / "lost" / "ranked_0.pdb", "WWWWWWWWWW")
    write(known / "pair.pdb", "DEDEDEDEDE", "PPPPPPPPPP")
    found = compare_files(find_predictions(predicted, all_ranks=True), known)
    assert [each.target for each in found.results] == ["a", "a", "unnamed"]
    pair = f"{predicted / 'pair_B' / 'ranked_0.pdb'} and {known / 'pair.pdb'}"
    assert found.failures.keys() == {"a, rank 1", "c.pdb", "lost", pair}
    assert "none of 3 references" in found.failures["lost"]
    assert found.unused == ["c"]
