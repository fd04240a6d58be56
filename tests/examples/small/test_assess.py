"""The small model's assessment: honest intervals, one score for every chain, and numbers that anybody can recompute."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helixfold.presets import tiny
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.untrained import untrained_model
from tests.data_pipeline.datasets.memory_store import entry
from tests.data_pipeline.transforms.samples import random_features
from tests.examples.small.scripts import small_script

assess, chains, intervals = map(small_script, ("assess", "chains", "intervals"))
scoring, summary = map(small_script, ("scoring", "summary"))


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(60):
        found = intervals.mean(rng.normal(0.3, 0.1, 40).tolist())
        assert found.low < found.value < found.high
        covered += found.low <= 0.3 <= found.high
    assert covered >= 51
    exact = 1.96 * 0.1 / np.sqrt(40)
    assert found.high - found.low == pytest.approx(2 * exact, rel=0.35)


def test_the_same_scores_have_the_same_interval() -> None:
    values = np.random.default_rng(1).random(30).tolist()
    assert intervals.mean(values) == intervals.mean(values)


def test_correlation_is_numpys_and_its_interval_is_over_chains() -> None:
    rng = np.random.default_rng(2)
    pairs = []
    for _ in range(25):
        x = 50 + rng.normal(size=rng.integers(5, 40))
        pairs.append((x, 0.1 * x + rng.normal(size=len(x)) * 0.1))
    found = intervals.pearson(pairs)
    x, y = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    assert found.value == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert found.low < found.value < found.high
    # Chains that are copies of each other tell no more than one of them.
    twice = intervals.pearson([(np.tile(x, 9), np.tile(y, 9)) for x, y in pairs])
    assert twice.high - twice.low == pytest.approx(found.high - found.low, rel=0.1)


def test_what_never_varies_has_no_correlation() -> None:
    assert intervals.pearson([(np.full(4, 50.0), np.arange(4.0)), (np.full(3, 50.0), np.arange(3.0))]) is None


def rows(count: int = 12) -> list["summary.Row"]:
    rng = np.random.default_rng(3)
    made = []
    for number in range(count):
        one = entry(f"chain{number}", length=40 * (number + 1), msa_rows=1 if number % 2 else 20)
        for method in ("model", "untrained", "secondary_structure", "nearest_chain"):
            lddt = rng.random(8)
            score = scoring.Score(
                lddt_ca=float(lddt.mean()),
                tm=float(rng.random()),
                plddt=float(rng.random() * 100) if method == "model" else None,
                residue_lddt_ca=tuple(lddt.tolist()),
                residue_plddt=tuple((100 * rng.random(8)).tolist()) if method == "model" else (),
            )
            about = {"states": 10, "right": 7} if method == "secondary_structure" else {}
            about |= {"e_value": 1e-9 if number < 4 else 2.0} if method == "nearest_chain" else {}
            kind = "held_out" if number < 8 else "training"
            made.append(summary.Row(set=kind, entry=one, method=method, score=score, about=about))
    return made


def test_the_summary_is_what_the_table_says() -> None:
    made = rows()
    table = list(csv.DictReader(summary.scores_table(made).splitlines(), delimiter="\t"))
    found = summary.summarised(made)

    def column(method: str, name: str, kind: str = "held_out") -> np.ndarray:
        return np.array([float(row[name]) for row in table if row["method"] == method and row["set"] == kind])

    held_out = found["sets"]["held_out"]
    assert held_out["chains"] == 8
    for method in ("model", "untrained", "secondary_structure", "nearest_chain"):
        for measure in ("lddt_ca", "tm"):
            got = held_out["methods"][method][measure]
            assert got["mean"] == pytest.approx(column(method, measure).mean(), abs=2e-4)
            assert got["median"] == pytest.approx(np.median(column(method, measure)), abs=2e-4)
            assert got["low"] < got["mean"] < got["high"]
        assert held_out["same_fold"][method] == (column(method, "tm") > 0.5).sum()
    difference = column("model", "lddt_ca") - column("nearest_chain", "lddt_ca")
    assert held_out["model_minus"]["nearest_chain"]["lddt_ca"]["mean"] == pytest.approx(difference.mean(), abs=2e-4)
    own = [row for row in made if row.method == "model" and row.set == "held_out"]
    residues = np.corrcoef(
        np.concatenate([row.score.residue_plddt for row in own]),
        np.concatenate([row.score.residue_lddt_ca for row in own]),
    )[0, 1]
    assert held_out["plddt_pearson"]["residues"]["pearson"] == pytest.approx(residues, abs=1e-4)
    over_chains = np.corrcoef(column("model", "plddt"), column("model", "lddt_ca"))[0, 1]
    assert held_out["plddt_pearson"]["chains"]["pearson"] == pytest.approx(over_chains, abs=2e-3)
    assert found["secondary_structure_q3"] == {"held_out": 0.7, "training": 0.7}


def test_every_held_out_chain_is_in_one_range_of_lengths_and_of_depths_and_has_a_relative_or_none() -> None:
    found = summary.summarised(rows())
    for name in ("held_out_by_length", "held_out_by_depth", "held_out_by_relative"):
        assert sum(group["chains"] for group in found[name].values()) == 8, name
    assert [group["chains"] for group in found["held_out_by_relative"].values()] == [4, 4]
    assert list(found["held_out_by_length"]) == ["1 to 63", "64 to 127", "128 to 255", "256 or more"]
    assert list(found["held_out_by_depth"]) == ["1", "16 or more"]


def test_shuffled_residues_are_the_same_ones_with_their_columns() -> None:
    features = random_features(n=3, r=40)
    places = np.arange(40)
    # Each column tells where it comes from.
    found = assess.shuffled(replace(features, deletion_matrix=np.tile(places, (3, 1))))
    order = found.deletion_matrix[0]
    assert sorted(order.tolist()) == places.tolist() != order.tolist()
    assert found.sequence == "".join(features.sequence[place] for place in order)
    np.testing.assert_array_equal(found.aatype, features.aatype[order])
    np.testing.assert_array_equal(found.msa, features.msa[:, order])
    assert assess.shuffled(features).sequence == found.sequence


@pytest.mark.slow
@pytest.mark.long
def test_an_assessment_goes_on_where_it_stopped(store: Path, tmp_path: Path) -> None:
    preset = tiny()
    weights = tmp_path / "small.safetensors"
    network = untrained_model(preset.model, 5)
    save_checkpoint(weights, network.state_dict(), preset.model.to_dict(), preset.without_model())
    place = weights, store / "store", store / "held_out.txt", tmp_path / "assessment"
    assert assess.assess(*place, num_recycles=0) == 0
    first = json.loads((tmp_path / "assessment" / "summary.json").read_text())
    assert first["sets"]["held_out"]["chains"] == 2
    assert first["sets"]["training"]["chains"] == 7
    assert first["model"]["parameters"] == sum(each.numel() for each in network.parameters())
    table = (tmp_path / "assessment" / "scores.tsv").read_text()
    assert len(table.splitlines()) == 1 + 5 * 9
    made = {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "assessment").glob("*/*.json"))}
    lost = sorted(made)[:2]
    for path in lost:
        path.unlink()
    assert assess.assess(*place, num_recycles=0, processes=2) == 0
    assert (tmp_path / "assessment" / "scores.tsv").read_text() == table
    again = {path: path.stat().st_mtime_ns for path in made}
    assert [path for path in made if again[path] != made[path]] == lost


def test_a_chain_that_fails_stops_no_other_and_is_in_no_mean(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = tiny()
    weights = tmp_path / "small.safetensors"
    parameters = untrained_model(preset.model, 5).state_dict()
    save_checkpoint(weights, parameters, preset.model.to_dict(), preset.without_model())
    fold = assess.fold

    def failing(network: object, run: object, features: object, *given: object, **named: object) -> object:
        if features.domain_name == "helix_long_A":
            raise RuntimeError("no room")
        return fold(network, run, features, *given, **named)

    monkeypatch.setattr(assess, "fold", failing)
    code = assess.assess(weights, store / "store", store / "held_out.txt", tmp_path / "out", num_recycles=0)
    assert code == 1
    assert "helix_long_A, model: RuntimeError: no room" in capsys.readouterr().err
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert found["sets"]["held_out"]["chains"] == 1
    assert set(found["failures"]) == {f"helix_long_A, {method}" for method in ("model", "untrained", "shuffled")}
