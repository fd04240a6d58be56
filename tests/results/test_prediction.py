"""A target's directory holds the files people expect, whole, valid, the same every time, and marked when finished."""

import dataclasses
import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import gemmi
import numpy as np
import pytest
from Bio.PDB import MMCIFParser, PDBParser
from Bio.SVDSuperimposer import SVDSuperimposer
from safetensors.numpy import load_file

from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import STRUCTURE_KINDS, Distances, Prediction, PredictionIdentity
from helixfold.report.plot_files import write_plots
from helixfold.results import prediction as results
from helixfold.results.file_table import slim_down
from helixfold.results.prediction import (
    has_requested_files,
    ranked,
    read_finished,
    representation_names,
    write_prediction,
    write_ranked,
    write_ranking,
    write_timings,
)
from helixfold.results.tables import write_tables
from helixfold.runtime.options import RepresentationFormat
from tests.results.proteins import (
    assert_same_atoms,
    atoms_by_biopython,
    atoms_by_gemmi,
    expected_atoms,
    random_protein,
)
from tests.support import special_complex

NOTE = "untrained demonstration parameters (seed 0)"
REPOSITORY = Path(__file__).parents[2]


def prediction(model: str = "model_1_ptm", *, confidence: float = 60.0, seed: int = 0, **values: Any) -> Prediction:
    protein = random_protein(12, unknown=(4,), seed=seed)
    random = np.random.default_rng(seed)
    plddt = random.uniform(0, 100, 12).astype(np.float32)
    given = {
        "name": model,
        "identity": PredictionIdentity(model=model),
        "structure": dataclasses.replace(protein, b_factors=plddt[:, None] * protein.atom_mask),
        "plddt": plddt,
        "pae": random.uniform(0, 31.75, (12, 12)).astype(np.float32),
        "max_pae": 31.75,
        "ptm": 0.43216,
        "ranking_confidence": confidence,
        "num_recycles": 3,
        "converged": False,
        "notes": (NOTE,),
        "distances": Distances(expected=random.uniform(2, 22, (12, 12)), contact=random.uniform(0, 1, (12, 12))),
    }
    return Prediction(**{**given, **values})


def finished(directory: Path, *predictions: Prediction) -> Path:
    for one in predictions:
        write_prediction(directory, one)
    order = ranked([each for one in predictions if (each := read_finished(directory, one.model)) is not None])
    write_ranked(directory, order)
    write_plots(directory, order)
    write_tables(directory, order)
    write_ranking(directory, order)
    return directory


def test_logits_are_written_where_there_are_any(tmp_path: Path) -> None:
    write_prediction(tmp_path, prediction(logits={"lddt": np.ones((12, 50), np.float32)}))
    with np.load(tmp_path / "logits_model_1_ptm.npz", allow_pickle=False) as archive:
        assert (archive["lddt"] == 1).all()
        assert list(archive) == ["lddt", "notes"]


def test_chains_keep_their_names_in_every_file(tmp_path: Path) -> None:
    protein = random_protein(12, chains=3)
    write_prediction(tmp_path, prediction(structure=protein, chain_ids=("H", "L", "9"), iptm=0.51234))
    for kind in STRUCTURE_KINDS:
        structure = gemmi.read_structure(str(tmp_path / f"unrelaxed_model_1_ptm.{kind}"))
        assert [chain.name for chain in structure[0]] == ["H", "L", "9"]
    found = read_finished(tmp_path, "model_1_ptm")
    assert found is not None
    assert (found.chain_ids, found.iptm) == (("H", "L", "9"), 0.5123)


def read_json(path: Path) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(path.read_text(encoding="ascii"), parse_constant=refuse)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_finished_target_has_these_files_and_no_others(tmp_path: Path) -> None:
    target = finished(tmp_path / "T1", prediction("model_1_ptm"), prediction("model_2_ptm"))
    write_timings(target, {"features": 1.5})
    of_models = {
        name
        for model in ("model_1_ptm", "model_2_ptm")
        for name in (
            f"unrelaxed_{model}.pdb",
            f"unrelaxed_{model}.cif",
            f"confidence_{model}.json",
            f"pae_{model}.json",
            f"pae_{model}.bcif.gz",
            f"distances_{model}.npz",
        )
    }
    ranked = {"ranked_0.pdb", "ranked_0.cif", "ranked_1.pdb", "ranked_1.cif"}
    of_target = {"plddt.png", "pae.png", "T1_plddt.tsv", "T1_0_pae.tsv", "ranking_debug.json", "timings.json"}
    assert names(target) == of_models | ranked | of_target


def test_structures_are_read_back_with_plddt_as_b_factors(tmp_path: Path) -> None:
    one = prediction()
    target = finished(tmp_path / "T1", one)
    for name in ("unrelaxed_model_1_ptm", "ranked_0"):
        pdb, cif = target / f"{name}.pdb", target / f"{name}.cif"
        assert_same_atoms(atoms_by_gemmi(gemmi.read_structure(str(pdb))), expected_atoms(one.protein))
        assert_same_atoms(atoms_by_gemmi(gemmi.read_structure(str(cif))), expected_atoms(one.protein))
        assert_same_atoms(atoms_by_biopython(PDBParser(), pdb.read_text()), expected_atoms(one.protein))
        assert_same_atoms(atoms_by_biopython(MMCIFParser(), cif.read_text()), expected_atoms(one.protein))
    assert "_struct.title T1\n" in (target / "ranked_0.cif").read_text()
    remarks = " ".join(line[11:].strip() for line in (target / "ranked_0.pdb").read_text().splitlines())
    assert "model_1_ptm. The B-factor column holds pLDDT" in remarks


def test_confidence_has_alphafold_dbs_fields_and_ours(tmp_path: Path) -> None:
    plddt = np.array([100, 90, 89.99, 70, 69.996, 50, 49.994, 0, 33.333, 95, 96, 97.126], np.float32)
    one = prediction(plddt=plddt, ptm=None)
    write_prediction(tmp_path, one)
    content = read_json(tmp_path / "confidence_model_1_ptm.json")
    assert content["residueNumber"] == list(range(1, 13))
    assert content["confidenceScore"] == content["plddt"] == [round(float(value), 2) for value in plddt]
    assert "".join(content["confidenceCategory"]) == "HHMMLLDDDHHH"
    fractions = {"very_high": 0.4167, "confident": 0.1667, "low": 0.1667, "very_low": 0.25}
    assert content["fraction_plddt"] == fractions
    assert content["mean_plddt"] == round(float(plddt.mean()), 2)
    assert content["ptm"] is None
    assert (content["model"], content["num_recycles"], content["converged"]) == ("model_1_ptm", 3, False)
    assert content["notes"] == [NOTE]


def test_pae_has_alphafold_dbs_form(tmp_path: Path) -> None:
    one = prediction()
    write_prediction(tmp_path, one)
    (content,) = read_json(tmp_path / "pae_model_1_ptm.json")
    assert list(content) == ["predicted_aligned_error", "max_predicted_aligned_error", "notes"]
    assert content["max_predicted_aligned_error"] == 31.75
    assert content["notes"] == [NOTE]
    assert one.pae is not None
    np.testing.assert_allclose(content["predicted_aligned_error"], one.pae, atol=0.0501)
    assert content["predicted_aligned_error"] == np.round(one.pae.astype(np.float64), 1).tolist()


def test_errors_of_a_special_complex_stand_at_the_aligned_row_and_the_scored_column(tmp_path: Path) -> None:
    """Whole files of every layout; the matrix differs from its transpose at every pair."""
    write_prediction(tmp_path, special_complex.prediction())
    (content,) = read_json(tmp_path / f"pae_{special_complex.MODEL}.json")
    rows = content["predicted_aligned_error"]
    expected = special_complex.pae()
    assert [len(row) for row in rows] == [26] * 26
    assert all(rows[i][j] == round(float(expected[i, j]), 1) for i in range(26) for j in range(26))
    assert all(rows[i][j] != rows[j][i] for i in range(26) for j in range(i))
    assert content["max_predicted_aligned_error"] == 31.75


def test_errors_are_rounded_to_the_nearest_tenth_and_the_largest_is_kept(tmp_path: Path) -> None:
    pae = np.full((12, 12), 3.0, np.float32)
    pae[0, :6] = [0.04, 0.06, 9.96, 31.74, 31.76, 0.26]
    write_prediction(tmp_path, prediction(pae=pae))
    (content,) = read_json(tmp_path / "pae_model_1_ptm.json")
    assert content["predicted_aligned_error"][0] == [0.0, 0.1, 10.0, 31.7, 31.8, 0.3, *[3.0] * 6]


def test_distances_of_a_special_complex_are_between_its_own_atoms(tmp_path: Path) -> None:
    """C-beta, C-alpha of glycine, and none of residues that lack the atom."""
    one = special_complex.prediction()
    write_prediction(tmp_path, one)
    with np.load(tmp_path / f"distances_{one.model}.npz", allow_pickle=False) as archive:
        found = dict(archive)
    every = special_complex.residues()
    assert found["residue_number"].tolist() == [each.number for each in every]
    assert one.distances is not None
    np.testing.assert_allclose(found["expected_distance"], one.distances.expected, atol=0.008)
    np.testing.assert_allclose(found["contact_probability"], one.distances.contact, atol=0.0003)
    places = np.array([each.beta or (np.nan,) * 3 for each in every])
    assert np.isnan(places[:, 0]).sum() == 4
    expected = np.linalg.norm(places[:, None] - places[None], axis=-1)
    np.testing.assert_allclose(found["structure_distance"], expected, rtol=1e-3, atol=1e-3)


def test_structures_of_all_passes_are_laid_on_the_last_one(tmp_path: Path) -> None:
    """Each atom where Biopython's superposition of the C-alpha atoms puts it; the last model is the prediction."""
    last = random_protein(12, chains=2, seed=5)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    turn *= np.linalg.det(turn)
    noise = np.random.default_rng(2).normal(size=last.atom_positions.shape)
    first = dataclasses.replace(
        last, atom_positions=(last.atom_positions @ turn + noise + [5, 6, 7]).astype(np.float32)
    )
    write_prediction(tmp_path, prediction(structure=last, chain_ids=("H", "L"), recycling_iterations=(first, last)))
    models = gemmi.read_structure(str(tmp_path / "recycles_model_1_ptm.pdb"))
    assert [[chain.name for chain in model] for model in models] == [["H", "L"]] * 2
    found = [np.array([at.atom.pos.tolist() for at in model.all()]) for model in models]
    there = last.atom_mask > 0.5
    np.testing.assert_allclose(found[1], last.atom_positions[there], atol=1e-3)
    superposer = SVDSuperimposer()
    superposer.set(last.atom_positions[:, 1].astype(float), first.atom_positions[:, 1].astype(float))
    superposer.run()
    rotation, shift = superposer.get_rotran()
    np.testing.assert_allclose(found[0], first.atom_positions[there] @ rotation + shift, atol=2e-3)


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_representations_are_read_back_by_their_names(tmp_path: Path, form: Any) -> None:
    random = np.random.default_rng(0)
    last, first, second = (
        {"single": random.normal(size=(12, 4)).astype(np.float32), "pair": random.normal(size=(12, 12, 2))}
        for _ in range(3)
    )
    iterations = (random_protein(12),) * 3
    one = prediction(representations=last, recycling_iterations=iterations, pass_representations=(first, second))
    write_prediction(tmp_path, one, representations_format=form)
    path = tmp_path / f"representations_model_1_ptm.{form}"
    found = load_file(path) if form == "safetensors" else dict(np.load(path, allow_pickle=False))
    expected = {
        **last,
        **{f"pass_{n}_{key}": value for n, each in enumerate((first, second)) for key, value in each.items()},
    }
    assert set(found) - {"notes"} == {*expected, "passes"}
    assert found["passes"] == 2
    assert representation_names(path) >= {*expected, "passes"}
    path.with_stem("damaged").write_bytes(b"nothing")
    for other in ("damaged", "missing"):
        assert representation_names(path.with_stem(other)) == set()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_pae_is_written_row_by_row() -> None:
    protein = random_protein(300)
    pae = np.random.default_rng(0).uniform(0, 31.75, (300, 300)).astype(np.float32)
    pieces = list(results.pae_json(prediction(structure=protein, plddt=np.ones(300), pae=pae, distances=None), pae))
    assert max(map(len, pieces)) < 300 * len("[31.75,")


def test_a_model_without_pae_leaves_out_its_files(tmp_path: Path) -> None:
    target = finished(tmp_path, prediction("model_1", pae=None, max_pae=None, ptm=None))
    assert not [name for name in names(target) if name.startswith("pae")]
    assert read_finished(target, "model_1") is not None


def test_notes_stand_in_every_file(tmp_path: Path) -> None:
    target = finished(tmp_path, prediction())
    write_timings(target, {"features": 1.5}, [NOTE])
    for path in target.iterdir():
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                assert NOTE in archive["notes"]
        elif path.suffix != ".png":
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            assert b"untrained demonstration parameters" in b" ".join(content.split()), path.name


def test_timings_keep_their_order_and_have_notes_only_if_given(tmp_path: Path) -> None:
    write_timings(tmp_path / "new", {"search": 2.0, "features": 1.5, "peak_memory_bytes": {"model": 7}})
    content = read_json(tmp_path / "new" / "timings.json")
    assert list(content.items()) == [("search", 2.0), ("features", 1.5), ("peak_memory_bytes", {"model": 7})]


def test_numbers_that_json_does_not_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_timings(tmp_path, {"search": float("nan")})
    assert names(tmp_path) == set()


def test_the_ranking_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    replace = os.replace

    def recording(old: Path, new: Path) -> None:
        written.append(new.name)
        replace(old, new)

    monkeypatch.setattr(os, "replace", recording)
    finished(tmp_path, prediction())
    assert written[-1] == "ranking_debug.json"
    assert set(written) == names(tmp_path)


@pytest.mark.parametrize(
    "name", sorted(["unrelaxed_model_1_ptm.cif", "pae_model_1_ptm.json", "unrelaxed_model_1_ptm.pdb"])
)
def test_a_run_that_dies_in_any_file_leaves_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    replace = os.replace

    def failing(old: Path, new: Path) -> None:
        if new.name == name:
            raise KeyboardInterrupt
        replace(old, new)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(KeyboardInterrupt):
        write_prediction(tmp_path, prediction())
    assert name not in names(tmp_path)
    assert not [left for left in names(tmp_path) if left.startswith(".")]


def test_a_structure_that_a_pdb_file_cannot_hold_has_all_other_files(tmp_path: Path) -> None:
    one = prediction()
    write_prediction(tmp_path, one)
    far = dataclasses.replace(one.protein, atom_positions=one.protein.atom_positions + 20_000)
    problem = write_prediction(tmp_path, prediction(structure=far))
    assert problem is not None
    assert problem.endswith("write mmCIF instead")
    assert read_json(tmp_path / "confidence_model_1_ptm.json")["no_pdb_file"] == problem
    assert names(tmp_path) == {
        "unrelaxed_model_1_ptm.cif",
        "confidence_model_1_ptm.json",
        "pae_model_1_ptm.json",
        "pae_model_1_ptm.bcif.gz",
        "distances_model_1_ptm.npz",
    }


def test_a_complex_with_long_names_of_chains_is_finished_without_pdb_files(tmp_path: Path) -> None:
    target = finished(tmp_path / "T1", prediction())
    assert (target / "ranked_0.pdb").is_file()
    finished(target, prediction(structure=random_protein(12, chains=2), chain_ids=("A", "HEAV")))
    assert not list(target.glob("*.pdb"))
    assert read_json(target / "confidence_model_1_ptm.json")["no_pdb_file"].startswith(
        "chain IDs of PDB files have a single character, got 'HEAV'"
    )
    assert [chain.name for chain in gemmi.read_structure(str(target / "ranked_0.cif"))[0]] == ["A", "HEAV"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tm_by_chain": np.ones((1, 1))}, "tm_by_chain must have a score for each pair of two or more chains"),
        ({"name": "../model_1"}, "name is part of file names"),
        ({"name": ""}, "name is part of file names"),
        ({"name": ".hidden"}, "name is part of file names"),
        ({"name": "m\x00"}, "name is part of file names"),
        ({"name": "m\n"}, "name is part of file names"),
        ({"plddt": np.ones(11)}, "one value for each of 12 residues"),
        ({"plddt": np.full(12, np.nan)}, "plddt must be 0 to 100"),
        ({"plddt": np.full(12, 100.1)}, "plddt must be 0 to 100"),
        ({"chain_ids": ("A", "B")}, r"chain_index must number each of 2 chains from 0, got \[0\]"),
        ({"chain_ids": ("A-1",)}, "a chain ID must be .*, got 'A-1'"),
        ({"chain_ids": ()}, "each of 0 chains"),
        ({"iptm": float("nan")}, "iptm must be finite"),
        ({"pae": None}, "pae and max_pae go together"),
        ({"max_pae": None}, "pae and max_pae go together"),
        ({"pae": np.ones((12, 11))}, r"pae must have shape \(12, 12\)"),
        ({"pae": np.full((12, 12), np.nan)}, "pae must be finite"),
        ({"pae": np.full((12, 12), np.inf)}, "pae must be finite"),
        ({"pae": np.full((12, 12), -0.1)}, "pae must be finite and at least 0"),
        (
            {"distances": Distances(expected=np.ones((2, 2)), contact=np.ones((2, 2)))},
            r"distances must have shape \(12",
        ),
        ({"ptm": float("nan")}, "ptm must be finite"),
        ({"max_pae": float("inf")}, "max_pae must be finite"),
        ({"ranking_confidence": float("nan")}, "ranking_confidence must be finite"),
    ],
)
def test_a_prediction_that_makes_no_sense_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prediction(**values)


@pytest.mark.integration
def test_every_byte_is_the_same_in_another_process(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from tests.results.test_prediction import finished, prediction;"
        "finished(pathlib.Path(sys.argv[1]), prediction('model_1_ptm'), prediction('model_2_ptm', confidence=80.0))"
    )

    def digests(folder: str) -> dict[str, str]:
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / folder / "T1").iterdir()
        }

    # In which sets have another order than here.
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", code, str(tmp_path / "one" / "T1")]
    subprocess.run(command, check=True, cwd=REPOSITORY, env=environment, timeout=60)
    assert len(digests("one")) == 21
    finished(tmp_path / "two" / "T1", prediction("model_1_ptm"), prediction("model_2_ptm", confidence=80.0))
    assert digests("two") == digests("one")


def test_files_that_options_ask_for_are_missed(tmp_path: Path) -> None:
    iterations = (random_protein(12, unknown=(4,)),) * 2
    representations = {"single": np.zeros((12, 4), np.float32)}
    write_prediction(tmp_path, prediction(representations=representations, recycling_iterations=iterations))
    one = read_finished(tmp_path, "model_1_ptm")
    assert one is not None

    def has(form: RepresentationFormat = "npz", **options: Any) -> bool:
        return has_requested_files(tmp_path, one, FoldingOptions(**options), form)

    assert has()
    assert has(save_passes=True, representations=("single",))
    assert not has(representations=("single", "pair"))
    assert not has("safetensors", representations=("single",))
    assert not has(logits=True)
    (tmp_path / "recycles_model_1_ptm.pdb").unlink()
    assert not has(save_passes=True)
    assert has(representations=("single",))
    # A structure that a PDB file cannot hold, and a slim target, have no such file.
    without_pdb = dataclasses.replace(one, kinds=("cif",))
    assert has_requested_files(tmp_path, without_pdb, FoldingOptions(save_passes=True), "npz")
    write_ranked(tmp_path, [one])
    write_ranking(tmp_path, [one])
    slim_down(tmp_path)
    assert has(save_passes=True, representations=("single",))
    assert not has(logits=True)
