"""Results of other programs are read as the same predictions, and get a report."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import helixfold
from data_pipeline.io.errors import InputError
from data_pipeline.parse.structures import read_structure
from helixfold.cli.main import main
from helixfold.folding.prediction import Prediction
from helixfold.report.load import load_results
from helixfold.results.prediction import write_prediction, write_ranked, write_ranking
from tests.folding.test_prediction import HAIRPIN, prediction


@pytest.fixture
def finished(tmp_path: Path) -> tuple[Path, list[Prediction]]:
    """A directory of helixfold with two predictions, the second of which is the better one."""
    directory = tmp_path / "hairpin"
    made = [prediction(name="model_1_ptm"), prediction(name="model_2_ptm", ranking_confidence=80.0, ptm=0.7)]
    for each in made:
        write_prediction(directory, each)
    write_ranked(directory, made[::-1])
    write_ranking(directory, made[::-1])
    return directory, made


def test_results_of_helixfold_are_read_with_structure_and_pae(finished: tuple[Path, list[Prediction]]) -> None:
    directory, made = finished
    found = helixfold.load_results(directory)
    assert [each.name for each in found] == ["model_2_ptm", "model_1_ptm"]
    for each, original in zip(found, made[::-1], strict=True):
        assert (each.ptm, each.num_recycles, each.program) == (original.ptm, 3, "helixfold")
        np.testing.assert_allclose(each.coordinates, original.coordinates, atol=1e-3)
        np.testing.assert_allclose(each.plddt, original.plddt, atol=0.01)
        assert each.pae is not None
        np.testing.assert_allclose(each.pae, original.pae, atol=0.051)
        assert each.file is not None
    # One level above, too, where there is no other target.
    assert [each.name for each in load_results(str(directory.parent))] == ["model_2_ptm", "model_1_ptm"]


def colabfold(directory: Path, target: str) -> np.ndarray:
    """Write two ranks under ColabFold's names, the second one relaxed; return the first's pLDDT."""
    directory.mkdir(exist_ok=True)
    residues = len(read_structure(HAIRPIN).chains[0].aatype)
    for rank, ptm, kind in ((1, 0.81, "unrelaxed"), (2, 0.42, "unrelaxed"), (2, 0.42, "relaxed")):
        tag = f"alphafold2_ptm_model_{3 - rank}_seed_007"
        one = prediction(name=tag, program="ColabFold", notes=())
        one.save_pdb(directory / f"{target}_{kind}_rank_{rank:03d}_{tag}.pdb")
        pae = np.full((residues, residues), float(rank)).tolist()
        scores = {"plddt": one.plddt.tolist(), "max_pae": 31.5, "pae": pae, "ptm": ptm}
        (directory / f"{target}_scores_rank_{rank:03d}_{tag}.json").write_text(json.dumps(scores))
    sequence = read_structure(HAIRPIN).chains[0].sequence
    (directory / f"{target}.a3m").write_text(f"#{residues}\t1\n>101\n{sequence}\n>hit\n{'-' * 5}{sequence[5:]}\n")
    return one.plddt


def test_results_of_colabfold_have_ranks_seeds_errors_and_the_alignment(tmp_path: Path) -> None:
    plddt = colabfold(tmp_path, "hairpin")
    best, second = load_results(tmp_path)
    assert (best.name, best.model, best.seed) == (
        "alphafold2_ptm_model_2_seed_007",
        "alphafold2_ptm_model_2",
        7,
    )
    assert (best.ptm, best.iptm, best.max_pae, best.program) == (0.81, None, 31.5, "ColabFold")
    assert best.file is not None
    assert second.file is not None
    assert ("unrelaxed" in best.file.name, "_relaxed_" in second.file.name) == (True, True)
    np.testing.assert_allclose(best.plddt, plddt, atol=0.01)
    assert best.pae is not None
    assert second.pae is not None
    assert (best.pae.max(), second.pae.min()) == (1, 2)
    assert best.notes == (f"made by ColabFold, and read by helixfold from {best.file.name}",)
    assert best.plot_coverage().get_title().startswith("2 sequences")
    assert best.plot_pae().get_title() == best.name


def test_one_of_several_targets_is_named(tmp_path: Path) -> None:
    colabfold(tmp_path, "one")
    colabfold(tmp_path, "two")
    with pytest.raises(InputError, match="has 2 targets; pass one of them as target: one, two"):
        load_results(tmp_path)
    with pytest.raises(InputError, match="has no target 'three'; it has one, two"):
        load_results(tmp_path, "three")
    (best, _) = load_results(tmp_path, target="two")
    assert best.file is not None
    assert best.file.name.startswith("two_")


def test_scores_that_do_not_fit_their_structure_are_refused(tmp_path: Path) -> None:
    colabfold(tmp_path, "one")
    (scores,) = tmp_path.glob("one_scores_rank_001*")
    scores.write_text(json.dumps({"max_pae": 31.5, "pae": [[1.0, 2.0], [3.0, 4.0]], "ptm": 0.5}))
    with pytest.raises(InputError, match=r"rank_001.*pae must have shape"):
        load_results(tmp_path)
    scores.write_text(json.dumps({"max_pae": 31.5, "pae": [[1.0, 2.0], [3.0]], "ptm": 0.5}))
    with pytest.raises(InputError, match=r"scores_rank_001"):
        load_results(tmp_path)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """An entry of AlphaFold DB."""
    prediction().save_cif(tmp_path / "AF-P0CG47-F1-model_v4.cif")
    residues = len(prediction().plddt)
    pae = np.arange(residues**2).reshape(residues, residues) % 30
    content = [{"predicted_aligned_error": pae.tolist(), "max_predicted_aligned_error": 31.75}]
    (tmp_path / "AF-P0CG47-F1-predicted_aligned_error_v4.json").write_text(json.dumps(content))
    return tmp_path


def test_an_entry_of_alphafold_db_is_a_prediction(database: Path) -> None:
    (found,) = load_results(database)
    assert (found.name, found.program, found.max_pae) == ("AF-P0CG47-F1-model_v4", "AlphaFold DB", 31.75)
    np.testing.assert_allclose(found.plddt, prediction().plddt, atol=0.01)
    np.testing.assert_allclose(found.coordinates, prediction().coordinates, atol=1e-3)
    assert found.pae is not None
    assert found.pae[0, 7] == 7
    with gzip.open(database / "AF-P0CG47-F1-model_v4.cif.gz", "wb") as file:
        file.write((database / "AF-P0CG47-F1-model_v4.cif").read_bytes())
    (database / "AF-P0CG47-F1-model_v4.cif").unlink()
    assert load_results(database)[0].plddt.tolist() == found.plddt.tolist()
    (database / "AF-P0CG47-F1-predicted_aligned_error_v4.json").write_text("[{}]")
    with pytest.raises(InputError, match="holds no PAE of this structure in the format of AlphaFold DB"):
        load_results(database)


def test_real_results_of_alphafold_multimer_are_read(real_data: Path, tmp_path: Path) -> None:
    """One prediction of five, since the others are not there."""
    model = "model_1_multimer_v3_pred_0"
    for path in (real_data / "predictions").glob("AlphaPulldown__TEST_and_TEST__*.gz"):
        (tmp_path / path.name.split("__")[2].removesuffix(".gz")).write_bytes(gzip.decompress(path.read_bytes()))
    ranking = json.loads((tmp_path / "ranking_debug.json").read_text())
    (tmp_path / "ranking_debug.json").write_text(json.dumps({**ranking, "order": [model]}))
    (found,) = load_results(tmp_path)
    assert (found.name, found.program, found.chain_ids, found.ptm) == (model, "AlphaFold 2", ("B", "C"), None)
    assert found.ranking_confidence == pytest.approx(0.041376362512519124)
    confidence = json.loads((tmp_path / f"confidence_{model}.json").read_text())
    np.testing.assert_allclose(found.plddt, confidence["confidenceScore"], atol=0.01)
    assert found.pae is not None
    assert found.pae[0, :3].tolist() == pytest.approx([0.8, 2.4, 4.9])
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "made by AlphaFold 2, and read by helixfold" in page


@pytest.mark.parametrize("content", ["nothing", "text"])
def test_a_directory_without_results_is_refused(content: str, tmp_path: Path) -> None:
    if content == "text":
        (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(InputError, match="no results of helixfold, ColabFold, AlphaFold 2 or AlphaFold DB"):
        load_results(tmp_path)


def test_targets_of_others_get_reports_beside_their_files(
    tmp_path: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(database)]) == 0
    page = (database / "report.html").read_text()
    assert "made by AlphaFold DB, and read by helixfold from AF-P0CG47-F1-model_v4.cif" in page
    assert "How these predictions were made is not recorded" in page
    directory = tmp_path / "colabfold"
    for target in ("one", "two"):
        colabfold(directory, target)
    before = {path.name for path in directory.iterdir()}
    assert main(["report", str(directory)]) == 0
    assert {path.name for path in directory.iterdir()} - before == {"one_report.html", "two_report.html"}
    assert str(directory / "two_report.html") in capsys.readouterr().out


def test_reports_of_helixfolds_own_targets_stay_as_they_were(finished: tuple[Path, list[Prediction]]) -> None:
    directory, _ = finished
    assert main(["report", str(directory)]) == 0
    assert "read by helixfold from" not in (directory / "report.html").read_text()
    shutil.rmtree(directory)
