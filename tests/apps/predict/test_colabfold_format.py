"""`--output-format colabfold`: what a script made for ColabFold's output finds."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.features.complexes.colabfold_a3m import read_complex_a3m
from data_pipeline.features.complexes.feature_file import load_features
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet
from data_pipeline.parse.alignment import read_alignment
from helixfold.cli.main import main
from helixfold.results.colabfold import model_type
from helixfold.results.prediction import read_pae

SEQUENCE = "MKTAYIAKQR"


def predict(*arguments: object, output: Path) -> int:
    given = ("--output", output, "--num-recycles", "0", "--models", "tiny", "--output-format", "colabfold")
    return main(["predict", *map(str, (*arguments, *given))])


@pytest.fixture
def a3m(tmp_path: Path) -> Path:
    path = tmp_path / "sp|P1|X.a3m"
    path.write_text(f">q\n{SEQUENCE}\n>r\n{SEQUENCE[::-1]}\n")
    return path


def best_of(results: Path) -> dict[str, dict[str, Any]]:
    """Return what a post-processing script for ColabFold collects of each finished job."""
    found = {}
    for done in sorted(results.glob("*.done.txt")):
        job = done.name.removesuffix(".done.txt")
        (structure,) = results.glob(f"{job}_unrelaxed_rank_001_*.pdb")
        (file,) = results.glob(f"{job}_scores_rank_001_*.json")
        scores = json.loads(file.read_text())
        pae = json.loads((results / f"{job}_predicted_aligned_error_v1.json").read_text())
        ranks = sorted(results.glob(f"{job}_scores_rank_*.json"))
        match = re.search(r"_rank_(\d+)_(.+)_seed_(\d+)\.json$", file.name)
        assert match is not None
        found[job] = {
            "structure": structure,
            "plddt": np.mean(scores["plddt"]),
            "ptm": scores["ptm"],
            "scores": scores,
            "pae": pae,
            "ranks": len(ranks),
            "model": match[2],
            "seed": int(match[3]),
        }
    return found


def test_a_script_for_colabfold_finds_what_it_reads(a3m: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    # Without many rows the tiny network's errors are the same for all pairs.
    rows = np.random.default_rng(0).choice(list("ACDEFGHIKLMNPQRSTVWY-"), (200, len(SEQUENCE)))
    a3m.write_text(f">q\n{SEQUENCE}\n" + "".join(f">r\n{''.join(row)}\n" for row in rows))
    assert predict(a3m, "--num-seeds", "2", output=output) == 0
    ((job, best),) = best_of(output).items()
    assert job == "sp_P1_X"
    assert (best["ranks"], best["model"]) == (2, "helixfold_tiny")
    ours = output / "sp_P1_X"
    ranking = json.loads((ours / "ranking_debug.json").read_text())
    assert ranking["order"][0] == f"tiny_seed_{best['seed']}"
    assert best["structure"].read_bytes() == (ours / "ranked_0.pdb").read_bytes()
    scores, pae = best["scores"], best["pae"]
    confidence = json.loads((ours / f"confidence_{ranking['order'][0]}.json").read_text())
    assert scores["plddt"] == confidence["plddt"]
    assert scores["ptm"] == round(confidence["ptm"], 2)
    errors, _ = read_pae(ours / f"pae_{ranking['order'][0]}.json", 10)
    np.testing.assert_allclose(scores["pae"], errors, atol=0.006)
    assert np.abs(errors - errors.T).max() > 5
    assert scores["max_pae"] == np.max(scores["pae"])
    assert "UNTRAINED" in scores["notes"][0]
    assert pae == {"predicted_aligned_error": scores["pae"], "max_predicted_aligned_error": scores["max_pae"]}
    for plot in ("plddt", "pae", "coverage"):
        assert (output / f"{job}_{plot}.png").read_bytes() == (ours / f"{plot}.png").read_bytes()
    assert (output / f"{job}.a3m").read_text().startswith(f"#10\t1\n>101\n{SEQUENCE}\n>102\n")
    np.testing.assert_array_equal(
        read_alignment(output / f"{job}.a3m", SEQUENCE).letters, read_alignment(a3m, SEQUENCE).letters
    )
    config = json.loads((output / "config.json").read_text())
    assert (config["num_queries"], config["num_seeds"], config["rank_by"]) == (1, 2, "plddt")
    assert (output / "cite.bibtex").read_text().startswith("@article{Jumper2021,\nauthor = {Jumper, John")
    log = (output / "log.txt").read_text()
    assert re.search(r"^\d{4}(-\d\d){2} [\d:]{8},\d{3} rank_001_helixfold_tiny_seed_00\d pLDDT=", log, re.MULTILINE)
    assert log.endswith(" Done\n")


def test_complexes_have_the_names_and_the_alignment_that_colabfold_gives_them(tmp_path: Path) -> None:
    output, other = tmp_path / "out", "GSHMLEDPVA"
    given = tmp_path / "x.a3m"
    rows = f">r\n{SEQUENCE[::-1]}{other[::-1]}\n>101\n{SEQUENCE}{'-' * 10}\n>s\n{SEQUENCE[:9]}A{'-' * 10}\n"
    given.write_text(f"#10,10\t2,1\n>101\t102\n{SEQUENCE}{other}\n{rows}")
    assert predict(given, output=output) == 0
    ((_, best),) = best_of(output).items()
    assert best["scores"]["iptm"] == round(json.loads((output / "x/confidence_tiny.json").read_text())["iptm"], 2)
    assert json.loads((output / "config.json").read_text())["rank_by"] == "multimer"
    assert "reranking models by 'multimer' metric" in (output / "log.txt").read_text()
    text = (output / "x.a3m").read_text()
    assert text.startswith(f"#10,10\t2,1\n>101\t102\n{SEQUENCE}{other}\n>103\n{SEQUENCE[::-1]}{other[::-1]}\n>104\n")
    again, features = read_complex_a3m(output / "x.a3m"), load_features(output / "x/features.npz")
    assert isinstance(features, ComplexFeatureSet)
    assert again.target("x").sequences == features.chain_sequences


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("model_1", "alphafold2"),
        ("model_5_ptm", "alphafold2_ptm"),
        ("model_1_multimer", "alphafold2_multimer_v1"),
        ("model_2_multimer_v2", "alphafold2_multimer_v2"),
        ("model_3_multimer_v3", "alphafold2_multimer_v3"),
        ("tiny", "helixfold"),
    ],
)
def test_kinds_of_models_have_colabfolds_names(model: str, kind: str) -> None:
    assert model_type(model) == kind


def test_a_finished_target_gets_the_files_later_and_keeps_its_predictions(
    a3m: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert main(["predict", str(a3m), "--output", str(output), "--num-recycles", "0", "--models", "tiny"]) == 0
    assert not list(output.glob("*.done.txt"))
    made = (output / "sp_P1_X" / "unrelaxed_tiny.pdb").stat().st_mtime_ns
    assert predict(a3m, output=output) == 0
    assert (output / "sp_P1_X" / "unrelaxed_tiny.pdb").stat().st_mtime_ns == made
    assert best_of(output)["sp_P1_X"]["model"] == "helixfold_tiny"
    capsys.readouterr()
    assert predict(a3m, output=output) == 0
    assert "finished before, skipped" in capsys.readouterr().out


def test_other_ranks_take_the_place_of_earlier_ones(a3m: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert predict(a3m, output=output) == 0
    first = {path.name for path in output.glob("*_rank_*")}
    (output / "sp_P1_X_more_scores_rank_001_mine.json").write_text("{}")
    assert predict(a3m, "--num-seeds", "2", "--overwrite", output=output) == 0
    names = [path.name for path in output.glob("sp_P1_X_*_rank_*")]
    assert len([name for name in names if "rank_001" in name and "more" not in name]) == 2
    assert len(names) == 5
    assert first
    assert (output / "sp_P1_X_more_scores_rank_001_mine.json").is_file()
