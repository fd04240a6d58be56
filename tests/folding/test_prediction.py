"""A prediction is written, superposed, scored, drawn and shown by its own methods."""

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import gemmi
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from data_pipeline.io.errors import InputError
from data_pipeline.parse.fasta import read_fasta
from data_pipeline.parse.structures import read_structure
from data_pipeline.pipeline import Target, prepare
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER, RESTYPES_WITH_X
from data_pipeline.structure import protein_from_chains
from helixfold.analysis.complexes import ComplexComparison
from helixfold.analysis.scores import Scores
from helixfold.folding.prediction import Prediction, PredictionIdentity
from tests.support import special_complex
from tests.support.sources import ROOT

HAIRPIN = ROOT / "examples/structures/helical_hairpin.pdb"
SPECTRIN = ROOT / "examples/templates/1shg.pdb"
NOTE = "DEMONSTRATION: by a model that <knows> little"


def moved(protein: Protein, seed: int = 0) -> Protein:
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    turn *= np.linalg.det(turn)
    positions = protein.atom_positions @ turn + np.array([30, -20, 10])
    return replace(protein, atom_positions=positions.astype(np.float32))


def prediction(protein: Protein | None = None, **values: object) -> Prediction:
    protein = protein or protein_from_chains(read_structure(HAIRPIN).chains)
    residues = len(protein.aatype)
    plddt = np.linspace(20, 95, residues)
    given = {
        "name": "model_1_ptm",
        "identity": PredictionIdentity(model="model_1_ptm"),
        "structure": replace(protein, b_factors=plddt[:, None] * protein.atom_mask),
        "plddt": plddt,
        "pae": np.random.default_rng(0).uniform(0, 30, (residues, residues)),
        "max_pae": 31.75,
        "ptm": 0.512,
        "ranking_confidence": 57.5,
        "num_recycles": 3,
        "converged": False,
        "notes": (NOTE,),
    }
    return Prediction(**{**given, **values})  # type: ignore[arg-type]


def test_coordinates_are_nan_where_a_residue_lacks_the_atom() -> None:
    one = prediction()
    assert one.coordinates.shape == (len(one.plddt), 37, 3)
    assert (np.isfinite(one.coordinates).all(-1) == (one.protein.atom_mask > 0.5)).all()
    np.testing.assert_array_equal(one.coordinates[:, ATOM_ORDER["CA"]], one.protein.positions_of("CA"))


def test_structures_are_written_in_both_formats_with_plddt_and_notes(tmp_path: Path) -> None:
    one = prediction()
    one.save_pdb(tmp_path / "one.pdb")
    one.save_cif(str(tmp_path / "one.cif"))
    for path in (tmp_path / "one.pdb", tmp_path / "one.cif"):
        structure = gemmi.read_structure(str(path))  # whose atoms exist as long as it does
        assert [each.atom.b_iso for each in structure[0].all()] == pytest.approx(
            one.protein.b_factors[one.protein.atom_mask > 0.5], abs=0.01
        )
        assert "little" in path.read_text()
    # The errors are not in a file beside it.
    assert "pae_model_1_ptm" not in (tmp_path / "one.cif").read_text()


def test_an_mmcif_file_does_not_attribute_the_model_of_another_program_to_helixfold(tmp_path: Path) -> None:
    one = prediction(program="ColabFold")
    with pytest.raises(ValueError, match="is a prediction by ColabFold"):
        one.save_cif(tmp_path / "one.cif")
    assert not any(tmp_path.iterdir())
    one.save_pdb(tmp_path / "one.pdb")
    assert "Predicted by ColabFold, model_1_ptm" in (tmp_path / "one.pdb").read_text()


def test_the_pae_is_written_as_alphafold_db_writes_it(tmp_path: Path) -> None:
    one = prediction()
    one.save_pae(tmp_path / "pae.json")
    (content,) = json.loads((tmp_path / "pae.json").read_text())
    np.testing.assert_allclose(content["predicted_aligned_error"], one.pae, atol=0.0501)
    assert content["max_predicted_aligned_error"] == one.max_pae
    with pytest.raises(ValueError, match="model_1_ptm has no PAE"):
        prediction(pae=None, max_pae=None).save_pae(tmp_path / "none.json")


@pytest.mark.parametrize("kind", ["path", "text", "structure", "protein", "prediction"])
def test_a_prediction_is_superposed_on_whatever_holds_the_structure(kind: str) -> None:
    known = read_structure(HAIRPIN)
    true = protein_from_chains(known.chains)
    references = {
        "path": HAIRPIN,
        "text": str(HAIRPIN),
        "structure": known,
        "protein": true,
        "prediction": prediction(true),
    }
    one = prediction(moved(true))
    found = one.superpose_on(references[kind])  # type: ignore[arg-type]
    assert found.name == one.name
    np.testing.assert_allclose(found.coordinates, prediction(true).coordinates, atol=2e-3)
    scores = one.score_against(references[kind])  # type: ignore[arg-type]
    assert isinstance(scores, Scores)
    assert scores.rmsd == pytest.approx(0, abs=1e-3)
    assert scores.tm_score == pytest.approx(1)


def test_homologs_are_compared_by_their_alignment() -> None:
    """The SH3 domains of Src and spectrin; 56 residues are aligned, and few of them are equal."""
    spectrin = read_structure(SPECTRIN)
    (record,) = read_fasta(ROOT / "examples/src_sh3.fasta")
    length = len(record.sequence)
    mask = np.zeros((length, 37), np.float32)
    mask[:, ATOM_ORDER["CA"]] = 1
    walk = np.cumsum(np.random.default_rng(1).normal(size=(length, 3)) * 2, 0)
    protein = Protein(
        aatype=np.array([RESTYPES_WITH_X.index(letter) for letter in record.sequence]),
        atom_positions=(mask[..., None] * walk[:, None]).astype(np.float32),
        atom_mask=mask,
        residue_index=np.arange(1, length + 1),
        chain_index=np.zeros(length, np.int64),
        b_factors=mask,
    )
    src = prediction(protein)
    scores = src.score_against(spectrin)
    assert isinstance(scores, Scores)
    assert 50 <= scores.compared <= 58
    assert 0.2 < scores.identity < 0.4
    # Atoms of a homolog that is where the alignment says lie on each other.
    assert prediction(moved(protein)).superpose_on(src).score_against(src).rmsd == pytest.approx(0, abs=1e-3)
    lain = src.superpose_on(spectrin).coordinates[:, 1]
    spans = [np.linalg.norm(each.mean(0) - spectrin.chains[0].atom_positions[:, 1].mean(0)) for each in (lain, walk)]
    assert spans[0] < 10 < spans[1]


def test_residues_and_pairs_are_compared_where_the_reference_has_them() -> None:
    true = protein_from_chains(read_structure(HAIRPIN).chains)
    kept = np.r_[4 : len(true.aatype)]  # the reference lacks the first residues
    known = replace(true, **{name: getattr(true, name)[kept] for name in vars(true) if name != "cyclic_chains"})
    bent = true.atom_positions.copy()
    bent[-3:] += [0, 0, 9]
    one = prediction(moved(replace(true, atom_positions=bent)))
    lddt, difference = one.residue_lddt(known), one.distance_difference(known)
    spans, true_spans = (
        np.linalg.norm(each[:, None] - each, axis=-1)
        for each in (points[4:, ATOM_ORDER["CA"]] for points in (bent, true.atom_positions))
    )
    assert np.isnan(lddt[:4]).all()
    for residue in range(len(spans)):
        near = (true_spans[residue] < 15) & (np.arange(len(spans)) != residue)
        errors = abs(spans - true_spans)[residue, near]
        expected = np.mean([(errors < limit).mean() for limit in (0.5, 1, 2, 4)])
        assert lddt[4 + residue] == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(difference[4:, 4:], spans - true_spans, atol=2e-3)
    assert np.isnan(difference[:4]).all()
    assert np.isnan(difference[:, :4]).all()


def test_residues_of_all_chains_of_a_complex_are_compared() -> None:
    one = special_complex.prediction()
    order = np.argsort(-one.protein.chain_index, kind="stable")
    values = {name: getattr(one.protein, name)[order] for name in vars(one.protein) if name != "cyclic_chains"}
    values["chain_index"] = one.protein.chain_index.max() - values["chain_index"]
    turned = replace(one.protein, **values)
    lddt, difference = one.residue_lddt(turned), one.distance_difference(turned)
    assert np.nanmin(lddt) == 1
    assert np.isfinite(lddt).sum() > len(lddt) / 2
    assert np.nanmax(np.abs(difference)) < 1e-3


def test_all_chains_of_a_complex_are_superposed_and_scored() -> None:
    one = special_complex.prediction()
    swapped = replace(one, structure=moved(one.protein))
    scores = swapped.score_against(one)
    assert isinstance(scores, ComplexComparison)
    assert len(scores.chains) == len(one.chain_ids)
    assert scores.rmsd == pytest.approx(0, abs=1e-3)
    np.testing.assert_allclose(swapped.superpose_on(one).coordinates, one.coordinates, atol=5e-3)


def test_a_reference_without_residues_in_common_is_refused() -> None:
    short = protein_from_chains(read_structure(HAIRPIN).chains)
    two = replace(short, **{name: getattr(short, name)[:2] for name in vars(short) if name != "cyclic_chains"})
    with pytest.raises(InputError, match="2 common residues with C-alpha atoms"):
        prediction().superpose_on(two)


def test_plots_are_axes_with_labels_and_units() -> None:
    features = prepare(
        Target(
            name="ubiquitin",
            sequence=(ROOT / "examples/ubiquitin.fasta").read_text().splitlines()[1],
            alignments=(ROOT / "examples/ubiquitin.a3m",),
        )
    ).features
    one = prediction(features=features)
    panels = Figure().subplots(1, 3)
    drawn = [
        one.plot_plddt(panels[0]),
        one.plot_pae(panels[1]),
        one.plot_coverage(panels[2]),
    ]
    assert drawn == [*panels]
    assert [axes.get_ylabel() for axes in drawn] == [
        "pLDDT (0 to 100)",
        "Aligned residue",
        "Sequences, most similar on top",
    ]
    assert [axes.get_xlabel() for axes in drawn] == ["Residue", "Scored residue", "Residue"]
    np.testing.assert_array_equal(drawn[0].lines[0].get_ydata(), one.plddt)
    np.testing.assert_array_equal(drawn[1].images[0].get_array(), one.pae)
    np.testing.assert_array_equal(drawn[2].lines[-1].get_ydata(), (features.msa != 21).sum(0))
    bars = [axes.get_ylabel() for axes in drawn[0].figure.axes if axes not in drawn]
    assert bars == ["Expected position error (Å)", "Identity to the target"]


def test_a_plot_without_axes_is_a_new_figure() -> None:
    from matplotlib import pyplot  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = prediction().plot_plddt(), special_complex.prediction().plot_pae()
    assert isinstance(first, Axes)
    assert first.figure is not second.figure
    # Chains are named beside the map.
    assert {text.get_text().strip() for text in second.texts} == {*special_complex.prediction().chain_ids}
    pyplot.close("all")


def test_what_a_prediction_does_not_have_is_not_drawn() -> None:
    with pytest.raises(ValueError, match="model_1_ptm has no PAE: models with _ptm and _multimer predict it"):
        prediction(pae=None, max_pae=None).plot_pae()
    with pytest.raises(ValueError, match="the MSA of model_1_ptm was not read with it"):
        prediction().plot_coverage()


def test_a_prediction_is_a_line_of_text_and_a_small_table() -> None:
    one = prediction()
    assert repr(one) == f"<Prediction model_1_ptm: {len(one.plddt)} residues, mean pLDDT 57.5, pTM 0.51>"
    table = one._repr_html_()
    assert "by a model that &lt;knows&gt; little" in table
    assert "<th>pTM</th><td>0.51</td>" in table
    assert len(table) < 1000
    several = special_complex.prediction()
    assert f" residues in {len(several.chain_ids)} chains, " in repr(several)


def test_a_structure_is_shown() -> None:
    assert "MODEL" in prediction().view()._make_html()


def test_a_structure_is_shown_next_to_a_reference_superposed() -> None:
    true = protein_from_chains(read_structure(HAIRPIN).chains)
    html = prediction(moved(true)).view(HAIRPIN)._make_html()
    assert '"reference"' in html
    assert '"model_1_ptm"' in html
    models = [re.findall(r"ATOM +\d+  CA .{14}(.{24})", text) for text in re.findall(r"addModel\((.*)\)", html)]
    points = [np.array([[float(line[start : start + 8]) for start in (0, 8, 16)] for line in each]) for each in models]
    np.testing.assert_allclose(points[0], points[1], atol=5e-3)


def test_recycling_iterations_are_a_film_with_a_counter() -> None:
    true = protein_from_chains(read_structure(HAIRPIN).chains)
    iterations = (moved(true, 1), moved(true, 2), true)
    html = prediction(true, recycling_iterations=iterations).film(HAIRPIN)._make_html()
    for number in (1, 2, 3):
        assert f'"recycling iteration {number} of 3"' in html
    assert html.count("MODEL  ") == 4  # with the reference
    with pytest.raises(ValueError, match="predict with save_passes=True"):
        prediction(true).film()
