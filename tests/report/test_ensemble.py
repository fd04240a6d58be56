"""The page and the tables of an ensemble tell conformations apart, also from what an earlier run left."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.protein import Protein
from helixfold.cli.main import main
from helixfold.report import ensemble
from helixfold.report.ensemble import write_ensemble
from helixfold.report.target_page import write_report
from tests.report.browser import Browser
from tests.report.reported import HAIRPIN, chain_of, write_target

STRUCTURES = Path(__file__).parents[2] / "examples" / "structures"


def bent(angle: float) -> Protein:
    """The hairpin with its second half turned."""
    protein = chain_of(HAIRPIN)
    half, positions = len(protein.aatype) // 2, protein.atom_positions.copy()
    cosine, sine = np.cos(angle), np.sin(angle)
    rotation = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]], np.float32)
    hinge = positions[half, 1].copy()
    positions[half:] = (positions[half:] - hinge) @ rotation.T + hinge
    return replace(protein, atom_positions=positions)


NAMES = [f"model_1_ptm_seed_{seed}" for seed in range(7)]
STATES = [0, 1, 0, 0, 1, 0, 0]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    directory = tmp_path / "hairpin"
    write_target(directory, models=NAMES, noise=0.1, states=[bent(2.2 * state) for state in STATES])
    origins = {
        name: {"model": "model_1_ptm", "seed": number, "weights": "0", "standing": "trained"}
        for number, name in enumerate(NAMES)
    }
    origins[NAMES[1]]["alignment"] = "cluster 3 (DBSCAN, eps 7, min_samples 3, gaps below 0.25)"
    (directory / "settings.json").write_text(json.dumps({"predictions": origins}))
    return directory


def table(path: Path) -> list[dict[str, str]]:
    header, *lines = path.read_text().splitlines()
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


def test_samples_are_grouped_and_compared_to_the_best_and_to_references(target: Path) -> None:
    assert write_ensemble(target, references=[HAIRPIN, STRUCTURES / "polyproline.pdb"])
    lines = {line["prediction"]: line for line in table(target / "ensemble.tsv")}
    ranked = json.loads((target / "ranking_debug.json").read_text())["order"]
    assert list(lines) == ranked
    assert [lines[name]["conformation"] for name in NAMES] == [str(1 + state) for state in STATES]
    assert lines[NAMES[1]]["alignment"] == "cluster 3"
    assert lines[NAMES[0]]["alignment"] == "all"
    assert lines[ranked[0]]["tm_to_best"] == "1.0"
    near, far = lines[NAMES[2]], lines[NAMES[1]]
    stem = HAIRPIN.stem
    assert float(near[f"tm_to_{stem}"]) > 0.9
    assert float(far[f"tm_to_{stem}"]) < 0.7
    assert float(near[f"rmsd_to_{stem}"]) < 1 < float(far[f"rmsd_to_{stem}"])
    rmsf = [float(line["rmsf"]) for line in table(target / "ensemble_rmsf.tsv")]
    assert len(rmsf) == len(chain_of(HAIRPIN).aatype)
    assert max(rmsf[-4:]) > 2 * min(rmsf)
    page = (target / "ensemble.html").read_text()
    assert "polyproline is not compared: they have" in page
    assert "cluster 3 (1)" in page


def test_more_samples_than_are_compared_get_the_conformation_that_they_are_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the first, third, fifth and seventh, which are compared, most are in the state that fewer of all are in.
    states = [1, 0, 1, 0, 1, 0, 0]
    order = write_target(tmp_path / "first", models=NAMES, noise=0.1)
    target, by_name = tmp_path / "hairpin", dict(zip(order, states, strict=True))
    write_target(target, models=NAMES, noise=0.1, states=[bent(2.2 * by_name[name]) for name in NAMES])
    monkeypatch.setattr(ensemble, "_MAX_COMPARED", 4)
    write_ensemble(target)
    assert [line["conformation"] for line in table(target / "ensemble.tsv")] == [str(1 + state) for state in states]
    assert "4 of 7, evenly selected by rank" in (target / "ensemble.html").read_text()


def test_five_models_are_no_ensemble_without_a_reference(tmp_path: Path) -> None:
    write_target(tmp_path / "five", models=[f"model_{number}_ptm" for number in range(1, 6)])
    assert not write_ensemble(tmp_path / "five")
    assert not (tmp_path / "five" / "ensemble.html").exists()
    assert write_ensemble(tmp_path / "five", references=[HAIRPIN])


def test_the_command_writes_it_from_what_is_there(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(target), "--reference", str(HAIRPIN)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(target / "ensemble.html"), str(target / "report.html")]
    assert f"tm_to_{HAIRPIN.stem}" in (target / "ensemble.tsv").read_text()
    assert 'href="./ensemble.html"' in (target / "report.html").read_text()
    assert main(["report", str(target), "--reference", "missing.pdb"]) == 2
    assert "missing.pdb" in capsys.readouterr().err
    # A slim target has ranked structures alone.
    for path in target.glob("unrelaxed_*"):
        path.unlink()
    assert main(["report", str(target.parent)]) == 0
    (target / "ranked_3.pdb").unlink()
    (target / "ranked_3.cif").unlink()
    with pytest.raises(InputError, match="has no structure file; fold the target again"):
        write_ensemble(target)


def test_the_report_shows_the_best_of_many(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helixfold.report.target_page._MAX_PREDICTIONS", 2)
    write_ensemble(target)
    write_report(target)
    page = (target / "report.html").read_text()
    order = json.loads((target / "ranking_debug.json").read_text())["order"]
    assert "All 7 predictions, grouped by conformation" in page
    assert "this page has the 2 best" in page
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert [model["name"] for model in data["models"]] == order[:2]


def test_the_page_is_drawn(target: Path, browser: Browser) -> None:
    write_ensemble(target, references=[HAIRPIN])
    with browser.without_webgl():
        for width, dark in ((920, False), (390, True)):
            browser.open(target / "ensemble.html", width=width, dark=dark)
            assert browser.complaints() == []
            assert browser.too_wide() == 0
            for canvas in ("#heat", "#scatter"):
                assert len(np.unique(browser.picture(canvas).reshape(-1, 3), axis=0)) > 20
    assert browser.fetched() == [(target / "ensemble.html").resolve().as_uri()]
    browser.point("#heat", 60, 60)
    assert "TM-score" in browser.find("#heat-readout").text
    browser.point("#rmsf", 200, 60)
    assert " Å" in browser.find("#rmsf-readout").text
