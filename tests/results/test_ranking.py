"""Predictions are ranked as their files have them, and only whole ones count."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from helixfold.results.prediction import ranked, read_finished, read_pae, write_prediction, write_ranked, write_ranking
from tests.results.proteins import random_protein
from tests.results.test_prediction import NOTE, finished, names, prediction, read_json


def test_models_are_ranked_by_confidence_and_equal_ones_stay_in_order(tmp_path: Path) -> None:
    confidences = {"model_1_ptm": 60.0, "model_2_ptm": 70.0, "model_3_ptm": 60.0}
    predictions = [prediction(name, confidence=value, seed=len(name)) for name, value in confidences.items()]
    target = finished(tmp_path, *predictions)
    content = read_json(target / "ranking_debug.json")
    assert content["plddts"] == confidences
    assert content["order"] == ["model_2_ptm", "model_1_ptm", "model_3_ptm"]
    assert content["notes"] == [NOTE]
    for rank, model in enumerate(content["order"]):
        for kind in ("pdb", "cif"):
            ranked, unrelaxed = target / f"ranked_{rank}.{kind}", target / f"unrelaxed_{model}.{kind}"
            assert ranked.read_bytes() == unrelaxed.read_bytes()


def test_complexes_are_ranked_by_iptm_unless_some_predictions_have_none(tmp_path: Path) -> None:
    chains = {"structure": random_protein(12, chains=2), "chain_ids": ("A", "B")}
    scores = {"model_1_ptm": (0.3, 90.0), "model_2_ptm": (0.8, 40.0)}  # of the complex, and pLDDT
    predictions = [
        prediction(name, confidence=score, iptm=score, plddt=np.full(12, plddt), **chains)
        for name, (score, plddt) in scores.items()
    ]
    content = read_json(finished(tmp_path / "all", *predictions) / "ranking_debug.json")
    assert content["iptm+ptm"] == {"model_1_ptm": 0.3, "model_2_ptm": 0.8}
    assert content["order"] == ["model_2_ptm", "model_1_ptm"]
    third = prediction("model_3", confidence=60.0, plddt=np.full(12, 60.0), pae=None, max_pae=None, ptm=None, **chains)
    content = read_json(finished(tmp_path / "some", *predictions, third) / "ranking_debug.json")
    assert content["order"] == ["model_1_ptm", "model_3", "model_2_ptm"]


@pytest.mark.parametrize("damaged", [[[0.5]], [[0.5, 0.5], [0.5, "x"]], [0.5, 0.5]])
def test_damaged_scores_of_chains_are_made_again(tmp_path: Path, damaged: object) -> None:
    tm = np.array([[0.5, 0.25], [0.75, 0.125]])
    write_prediction(
        tmp_path, prediction(structure=random_protein(12, chains=2), chain_ids=("A", "B"), iptm=0.5, tm_by_chain=tm)
    )
    found = read_finished(tmp_path, "model_1_ptm")
    assert found is not None
    assert found.tm_by_chain is not None
    assert (found.tm_by_chain == tm).all()
    path = tmp_path / "confidence_model_1_ptm.json"
    path.write_text(json.dumps({**read_json(path), "chain_pair_iptm": damaged}))
    assert read_finished(tmp_path, "model_1_ptm") is None


def test_a_relaxed_structure_is_the_ranked_one(tmp_path: Path) -> None:
    target = finished(tmp_path, prediction("model_1_ptm", confidence=60.0), prediction("model_2_ptm", confidence=70.0))
    (target / "relaxed_model_1_ptm.pdb").write_text("relaxed")
    order = [read_finished(target, name) for name in ("model_2_ptm", "model_1_ptm")]
    write_ranked(target, [found for found in order if found is not None])
    assert (target / "ranked_1.pdb").read_text() == "relaxed"
    assert (target / "ranked_1.cif").read_bytes() == (target / "unrelaxed_model_1_ptm.cif").read_bytes()
    assert (target / "ranked_0.pdb").read_bytes() == (target / "unrelaxed_model_2_ptm.pdb").read_bytes()


def test_ranks_of_an_earlier_run_with_more_models_are_removed(tmp_path: Path) -> None:
    target = finished(tmp_path, prediction("model_1_ptm"), prediction("model_2_ptm"), prediction("model_3_ptm"))
    (target / "ranked_1_mine.pdb").touch()
    finished(target, prediction("model_1_ptm"))
    assert {name for name in names(target) if name.startswith("ranked")} == {
        "ranked_0.pdb",
        "ranked_0.cif",
        "ranked_1_mine.pdb",
    }


@pytest.mark.parametrize("count", [0, 2])
def test_nothing_or_the_same_prediction_twice_cannot_be_ranked(tmp_path: Path, count: int) -> None:
    write_prediction(tmp_path, prediction())
    found = read_finished(tmp_path, "model_1_ptm")
    assert found is not None
    with pytest.raises(ValueError, match="one or more predictions with different names"):
        ranked([found] * count)


def test_a_prediction_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    one = prediction()
    write_prediction(tmp_path, one)
    found = read_finished(tmp_path, one.model)
    assert found is not None
    np.testing.assert_allclose(found.plddt, one.plddt, atol=0.006)
    assert (found.name, found.ranking_confidence, found.ptm) == (one.model, one.ranking_confidence, 0.4322)
    assert (found.num_recycles, found.converged, found.notes) == (3, False, (NOTE,))
    pae, largest = read_pae(tmp_path / "pae_model_1_ptm.json", len(one.plddt))
    assert one.pae is not None
    np.testing.assert_allclose(pae, one.pae, atol=0.0501)
    assert largest == 31.75


@pytest.mark.parametrize(
    "missing",
    ["unrelaxed_model_1_ptm.pdb", "unrelaxed_model_1_ptm.cif", "confidence_model_1_ptm.json", "pae_model_1_ptm.json"],
)
def test_a_prediction_counts_only_with_all_its_files(tmp_path: Path, missing: str) -> None:
    write_prediction(tmp_path, prediction())
    assert read_finished(tmp_path, "model_1_ptm") is not None
    (tmp_path / missing).unlink()
    assert read_finished(tmp_path, "model_1_ptm") is None
    assert read_finished(tmp_path / "absent", "model_1_ptm") is None


DAMAGE: dict[str, Any] = {
    "cut": None,
    "no table": [1, 2],
    "deep": "[" * 100_000,
    "missing": {"ptm": None},
    "no numbers": {"plddt": ["x"]},
    "too much": {"plddt": [100.5], "residueNumber": [1]},
    "far too much": {"plddt": [1e60], "residueNumber": [1]},
    "not finite": {"ranking_confidence": float("nan")},
    "huge": {"num_recycles": float("inf")},
    "ragged": {"plddt": [[1], [2, 3]]},
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_confidence_file_means_that_the_prediction_is_made_again(tmp_path: Path, case: str) -> None:
    write_prediction(tmp_path, prediction())
    path = tmp_path / "confidence_model_1_ptm.json"
    whole, damage = path.read_text(), DAMAGE[case]
    if case == "cut":
        path.write_text(whole[: len(whole) // 2])
    elif case == "deep":
        path.write_text(damage)
    elif case == "missing" or isinstance(damage, list):
        path.write_text(json.dumps(damage))
    else:
        path.write_text(json.dumps({**json.loads(whole), **damage}))
    assert read_finished(tmp_path, "model_1_ptm") is None


def test_a_damaged_pae_file_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "pae_x.json"
    for text in (
        "",
        "[]",
        "{}",
        '[{"predicted_aligned_error":[[1,2]],"max_predicted_aligned_error":3}]',
        '[{"predicted_aligned_error":[[1]],"max_predicted_aligned_error":3}]',
        '[{"predicted_aligned_error":[[1,1e60],[1,1]],"max_predicted_aligned_error":3}]',
        "[" * 100_000,
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=r"pae_x\.json: is damaged; pass --overwrite to predict the target again"):
            read_pae(path, 2)


def test_seeds_are_listed_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    order = [name for seed in (10, 9, 2) if (name := f"tiny_seed_{seed}")]
    for place, name in enumerate(order):
        write_prediction(tmp_path, prediction(name, confidence=50.0 - place))
    write_ranking(tmp_path, ranked([each for name in order if (each := read_finished(tmp_path, name)) is not None]))
    content = read_json(tmp_path / "ranking_debug.json")
    assert list(content["plddts"]) == ["tiny_seed_2", "tiny_seed_9", "tiny_seed_10"]
    assert content["order"] == order
