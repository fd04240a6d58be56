"""A structure of several chains is a template of them all, and shows the model how they are arranged."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.complexes.complex_input import ComplexInput
from data_pipeline.features.complexes.feature_file import features_digest, load_features, save_features
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet
from data_pipeline.features.complexes.pipeline import prepare_complex
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.io.errors import InputError
from data_pipeline.residues import GAP
from data_pipeline.search.plan import SearchPlan
from data_pipeline.templates.from_files import UserTemplateOptions
from helixfold.folding.model_input import batch_of, draw, model_input
from helixfold.model.batch import MultimerBatch
from helixfold.model.presets import preset, tiny_multimer
from tests.data_pipeline.templates.structures import QUERY, make_chain, make_structure, write

OTHER = "GSGWPDNCGTYMPDNWCGHTGGSPNDWYCMTPGGNDHW"
THIRD = "AEELLKKAVEEAKRRGDPELAKLLLELAKEHNLEHH"


def complex_of(*sequences: str, **more: object) -> ComplexInput:
    return ComplexInput(target=ComplexTarget.of("x", sequences), **more)  # type: ignore[arg-type]


@pytest.fixture
def arrangement(tmp_path: Path) -> Path:
    """A structure of the second sequence, two copies of the first one, of which one lacks residues, and a ligand."""
    copies = make_chain("Y", QUERY, seed=1), make_chain("Z", "G" + QUERY[:-4], seed=2)
    return write(tmp_path, make_structure(make_chain("X", OTHER), *copies, make_chain("P", "MKT")))


def test_each_chain_of_a_structure_is_the_template_of_one_chain(arrangement: Path) -> None:
    given = complex_of(QUERY, OTHER, QUERY, THIRD, cross_chain_templates=(arrangement,))
    prepared = prepare_complex(given)
    features = prepared.features.multimer
    assert features.chain_names == ("A", "C", "B", "D")
    assert features.template_spans_chains == (True, False, False, False)
    assert features.template_names == tuple((name, "", "", "") for name in ("1abc_Y", "1abc_Z", "1abc_X", ""))
    masks, types = features.template_all_atom_masks[0], features.template_aatype[0]
    second = features.asym_id == 2
    expected = make_chain("Z", "G" + QUERY[:-4], seed=2).atom_positions[1:]
    found = features.template_all_atom_positions[0, second]
    np.testing.assert_allclose(found[:-4], expected, atol=1e-3)
    assert (types[second] == GAP).tolist() == [False] * (len(QUERY) - 4) + [True] * 4
    assert masks[features.asym_id == 3].any(-1).all()
    assert not masks[features.asym_id == 4].any()
    assert not features.template_all_atom_masks[1:].any()
    assert prepared.notes == (
        f"{arrangement} is a template across chains: A like 1abc_Y, C like 1abc_Z, B like 1abc_X",
    )


def test_templates_of_single_chains_move_behind_those_across_chains(arrangement: Path, tmp_path: Path) -> None:
    own = tuple(
        write(tmp_path, make_structure(make_chain("A", QUERY, seed=seed)), f"own{seed}.pdb") for seed in range(4)
    )
    before = prepare_complex(complex_of(QUERY, OTHER, templates=own)).features.multimer
    given = complex_of(QUERY, OTHER, templates=own, cross_chain_templates=(arrangement, arrangement))
    features = prepare_complex(given).features.multimer
    assert features.template_spans_chains == (True, True, False, False)
    assert features.template_names[0] == ("1abc_Y", "1abc_Y", *before.template_names[0][:2])
    for name in ("template_aatype", "template_all_atom_positions", "template_all_atom_masks"):
        np.testing.assert_array_equal(getattr(features, name)[2:], getattr(before, name)[:2])


def test_a_structure_without_two_chains_of_the_complex_is_an_error(arrangement: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"at least two chains of the complex \(A, B\), only A is in it \(chain X: .*"):
        prepare_complex(complex_of(QUERY, THIRD, cross_chain_templates=(arrangement,)))
    with pytest.raises(InputError, match="none is in it"):
        prepare_complex(complex_of(THIRD, THIRD, cross_chain_templates=(arrangement,)))
    late = SearchPlan(user_templates=UserTemplateOptions(latest_release=date(2000, 1, 1)))
    with pytest.raises(InputError, match="none is in it"):
        prepare_complex(complex_of(QUERY, OTHER, cross_chain_templates=(arrangement,)), late)
    with pytest.raises(InputError, match=r"missing\.pdb"):
        prepare_complex(complex_of(QUERY, OTHER, cross_chain_templates=(tmp_path / "missing.pdb",)))


def test_files_of_features_keep_which_templates_span_chains(arrangement: Path, tmp_path: Path) -> None:
    plain = prepare_complex(complex_of(QUERY, OTHER)).features
    features = prepare_complex(complex_of(QUERY, OTHER, cross_chain_templates=(arrangement,))).features
    for given in (plain, features):
        save_features(tmp_path / "x.npz", given)
        found = load_features(tmp_path / "x.npz")
        assert isinstance(found, ComplexFeatureSet)
        assert found.multimer.template_spans_chains == given.multimer.template_spans_chains
        assert features_digest(found) == features_digest(given)
    with np.load(tmp_path / "x.npz") as arrays:
        assert arrays["template_spans_chains"].tolist() == [True, False, False, False]


def test_only_models_of_complexes_read_templates_across_chains(arrangement: Path) -> None:
    features = prepare_complex(complex_of(QUERY, OTHER, cross_chain_templates=(arrangement,))).features
    with pytest.raises(InputError, match=r"model_1_ptm was trained on single chains .* pass models of complexes"):
        model_input(features, preset("model_1_ptm"))
    model = tiny_multimer()
    for each, expected in ((features, [[True, False]]), (without_templates(features), None)):
        given = model_input(each, model)
        batch = batch_of([draw(given, model, [0])], model, merge_slots=True)
        assert isinstance(batch, MultimerBatch)
        assert (None if batch.template_spans_chains is None else batch.template_spans_chains.tolist()) == expected


def without_templates(features: ComplexFeatureSet) -> ComplexFeatureSet:
    return replace(features, multimer=replace(features.multimer, template_spans_chains=()))
