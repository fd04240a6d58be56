"""Features of a complex come back from their file as they were; a file with any wrong field is refused."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.complexes.alignments import EntityAlignment
from data_pipeline.features.complexes.feature_file import load_features, save_features
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from tests.data_pipeline.sampling.samples import random_features
from tests.support.complex_targets import ROWS, feature_set

A, B = ROWS


def require_equal(found: object, expected: object) -> None:
    for field in fields(expected):  # type: ignore[arg-type]
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(other, np.ndarray):
            assert one.dtype == other.dtype, field.name
            np.testing.assert_array_equal(one, other, err_msg=field.name)
        else:
            assert one == other, field.name


def test_features_come_back_as_they_were(tmp_path: Path) -> None:
    features = feature_set("ABA")
    assert features.sequence == f"{A}:{A}:{B}"
    for name in ("one.npz", "other.npz"):
        save_features(tmp_path / name, features)
    found = load_features(tmp_path / "one.npz")
    assert isinstance(found, ComplexFeatureSet)
    require_equal(found.multimer, features.multimer)
    require_equal(found.residue_gap, features.residue_gap)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "other.npz").read_bytes()


def test_templates_keep_their_names_but_for_those_of_earlier_files(tmp_path: Path) -> None:
    features = feature_set("AB")
    names = (("1abc_A", "my 'b'", "", ""), ("pdb_00001abc_AAAA", "", "", ""))
    multimer = replace(features.multimer, template_names=names)
    for given in (multimer, replace(multimer, template_names=())):
        save_features(tmp_path / "x.npz", replace(features, multimer=given))
        found = load_features(tmp_path / "x.npz")
        assert isinstance(found, ComplexFeatureSet)
        assert found.multimer.template_names == given.template_names


def test_a_single_chains_file_is_what_it_was(tmp_path: Path) -> None:
    features = random_features(3, 5, 1)
    features.save(tmp_path / "one.npz")
    save_features(tmp_path / "other.npz", features)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "other.npz").read_bytes()
    require_equal(load_features(tmp_path / "other.npz"), features)


def test_a_complex_of_one_chain_keeps_its_templates_for_models_of_single_chains(tmp_path: Path) -> None:
    given = random_features(3, 5, 2)
    templates = {field.name: getattr(given, field.name) for field in fields(Features) if "template" in field.name}
    target = ComplexTarget.of("one", (given.sequence,), ("H",))
    entity = EntityAlignment(sequence=given.sequence, templates=templates)  # type: ignore[arg-type]
    save_features(tmp_path / "x.npz", ComplexFeatureSet.of(target, [entity]))
    found = load_features(tmp_path / "x.npz")
    assert isinstance(found, ComplexFeatureSet)
    assert found.multimer.chain_names == ("H",)
    np.testing.assert_array_equal(found.residue_gap.template_aatype, given.template_aatype)
    assert found.domain_name == "one"


def changed(place: tuple[int, ...], value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array[place] = value
        return array

    return change


WRONG: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray | None], str]] = {
    "no mask": ("bert_mask", lambda _: None, "bert_mask missing"),
    "a field too many": ("note", lambda _: np.zeros(1), "'note' is not a feature"),
    "real numbers of chains": ("asym_id", lambda a: a.astype(np.float32), "asym_id is float32 (24,)"),
    "a mask of numbers": ("bert_mask", lambda a: a.astype(np.int8), "bert_mask is int8"),
    "a short mask": ("bert_mask", lambda a: a[1:], "expected (4, 24)"),
    "five templates": ("template_aatype", lambda a: np.concatenate([a, a[:1]]), "expected (4, 24)"),
    "no chains": ("chain_names", lambda a: a[:0], "and 0 chains; expected at least 1"),
    "a chain too few": ("chain_names", lambda a: a[1:], "template_names is <U1 (3, 4), expected (2, 4)"),
    "a chain twice": ("chain_names", lambda a: a[[0, 0, 1]], "chain_names: two chains have the ID 'A'"),
    "a chain's name that leaves": ("chain_names", lambda _: np.array(["A", "../x", "B"]), "a chain ID must be"),
    "another chain": ("asym_id", changed((8,), 1), "asym_id does not match the chains of the sequence"),
    "another entity": ("entity_id", changed((20,), 1), "entity_id does not match"),
    "another copy": ("sym_id", changed((3,), 2), "sym_id does not match"),
    "residues out of order": ("residue_index", changed((9,), 0), "residue_index does not count up"),
    "residues below 0": ("residue_index", changed((0,), -1), "residue_index does not count up"),
    "another sequence": ("sequence", lambda _: np.asarray(f"{A}:{A}:{B[::-1]}"), "aatype does not match the sequence"),
    "chains apart": (
        "sequence",
        lambda _: np.asarray(f"{A}:{A}:{B[:4]}:{B[4:]}"),
        "chain_names: got 3 chain IDs for 4",
    ),
    "an empty chain": ("sequence", lambda _: np.asarray(f"{A}::{A}{B}"), "the sequence has an empty chain"),
    "other first residues": ("msa", changed((0, 0), 3), "the first row of msa is not the sequence"),
    "a letter that is none": ("msa", changed((2, 0), 22), "msa has values outside 0..21"),
    "names of five templates": ("template_names", lambda a: a[:, [0, 0, 0, 0, 0]], "expected (3, 4)"),
    "numbers for names": ("template_names", lambda a: np.zeros(a.shape), "template_names is float64 (3, 4)"),
    "a template's letter": ("template_aatype", changed((0, 0), -1), "template_aatype has values outside 0..21"),
    "no number": ("template_all_atom_positions", changed((0, 0, 0, 0), np.nan), "has values that are not finite"),
    "deletions below 0": ("deletion_matrix", changed((0, 0), -1), "deletion_matrix has negative values"),
    "pairs beyond the rows": ("paired_rows", lambda _: np.asarray(5), "paired_rows is 5 of 4 MSA rows"),
    "pairs below none": ("paired_rows", lambda _: np.asarray(-1), "paired_rows is -1 of 4 MSA rows"),
    "no alignment for other models": ("residue_gap_msa", lambda _: None, "for monomer models, msa missing"),
    "a field of other models": ("residue_gap_x", lambda _: np.zeros(1), "for monomer models, 'x' is not a feature"),
    "another first row": ("residue_gap_msa", changed((0, 0), 3), "for monomer models, the first row of msa is not"),
    "numbers without a gap": (
        "residue_gap_residue_index",
        changed((8,), 7),
        "for monomer models, residue_index does not",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_named_in_one_sentence(name: str, tmp_path: Path) -> None:
    field, change, problem = WRONG[name]
    save_features(tmp_path / "right.npz", feature_set("ABA"))
    arrays: Mapping[str, np.ndarray] = dict(np.load(tmp_path / "right.npz"))
    new = change(arrays.get(field, np.zeros(0)))
    np.savez(
        tmp_path / "wrong.npz",
        **{each: array for each, array in arrays.items() if each != field},
        **({} if new is None else {field: new}),
    )
    with pytest.raises(InputError) as error:
        load_features(tmp_path / "wrong.npz")
    text = str(error.value)
    assert text.startswith(str(tmp_path / "wrong.npz"))
    assert problem in text
    assert text.endswith("; create the features again")
    assert "\n" not in text


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    save_features(tmp_path / "x.npz", feature_set("AB"))
    content = (tmp_path / "x.npz").read_bytes()
    for length in range(0, len(content), len(content) // 7):
        (tmp_path / "x.npz").write_bytes(content[:length])
        with pytest.raises(InputError, match=r"x\.npz"):
            load_features(tmp_path / "x.npz")
