"""Labels are AlphaFold's to the last bit, and the two names of ambiguous atoms are each other's."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from data_pipeline import residues
from data_pipeline.features.ground_truth import ATOM14_ALTERNATIVE, ATOM14_IS_AMBIGUOUS, GroundTruth, ground_truth
from data_pipeline.features.labels import ChainLabels

# Computed from the labels; the rest of AlphaFold's label features are frames and torsions, which the losses compute.
FIELDS = [field.name for field in fields(GroundTruth)]


def labels(positions: np.ndarray, mask: np.ndarray) -> ChainLabels:
    return ChainLabels(
        all_atom_positions=positions,
        all_atom_mask=mask,
        confidence=np.ones(len(mask), np.float32),
        resolution=1.8,
        is_distillation=False,
    )


def assert_equal(found: GroundTruth, expected: dict[str, np.ndarray]) -> None:
    for name in FIELDS:
        array = getattr(found, name)
        assert array.dtype == expected[name].dtype, name
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.parity
def test_ground_truth_equals_alphafolds_function_for_function(reference: Path) -> None:
    prefix = "ground_truth_features|"
    with np.load(reference / "modules" / "functions.npz") as functions:
        given_ = {name: functions[f"{prefix}in:{name}"] for name in ("aatype", "all_atom_positions", "all_atom_mask")}
        expected = {name: functions[f"{prefix}out:{name}"] for name in FIELDS if name != "aatype"} | given_
        found = ground_truth(given_["aatype"], labels(given_["all_atom_positions"], given_["all_atom_mask"]))
        assert_equal(found, expected)
        renaming = "compute_renamed_ground_truth|in:"
        for name in ("atom14_gt_positions", "atom14_alt_gt_positions", "atom14_atom_is_ambiguous"):
            np.testing.assert_array_equal(getattr(found, name), functions[renaming + name])
        for name in ("atom14_gt_exists", "atom14_alt_gt_exists", "atom14_atom_exists"):
            np.testing.assert_array_equal(getattr(found, name), functions[renaming + name])


@pytest.mark.parity
def test_ground_truth_equals_what_alphafolds_loss_reads(reference: Path) -> None:
    with np.load(reference / "cases" / "monomer_ptm_loss" / "features.npz") as features:
        expected = {name: features[name][0] for name in FIELDS}
        found = ground_truth(expected["aatype"], labels(expected["all_atom_positions"], expected["all_atom_mask"]))
        assert_equal(found, expected)


@pytest.mark.parity
def test_pseudo_beta_equals_alphafolds(reference: Path) -> None:
    with np.load(reference / "modules" / "functions.npz") as functions:
        aatype, positions, masks = (
            functions[f"pseudo_beta_fn|in:{name}"] for name in ("aatype", "all_atom_positions", "all_atom_masks")
        )
        found = ground_truth(aatype, labels(positions, masks))
        np.testing.assert_array_equal(found.pseudo_beta, functions["pseudo_beta_fn|out:pseudo_beta"])
        np.testing.assert_array_equal(found.pseudo_beta_mask, functions["pseudo_beta_fn|out:pseudo_beta_mask"])


@pytest.mark.parity
def test_atom_layouts_equal_those_of_alphafolds_feature_pipeline(reference: Path) -> None:
    with np.load(reference / "pipeline" / "tf_monomer_transforms.npz") as steps:
        aatype = steps["n03_squeeze_features|aatype"]
        r = len(aatype)
        found = ground_truth(aatype, labels(np.zeros((r, 37, 3), np.float32), np.zeros((r, 37), np.float32)))
        for name in ("atom14_atom_exists", "atom37_atom_exists"):
            np.testing.assert_array_equal(getattr(found, name), steps[f"n12_make_atom14_masks|{name}"])


# The other name of each atom whose name a rotation by half a turn exchanges.
OTHER_NAMES = {
    **{("ASP", one): other for one, other in (("OD1", "OD2"), ("OD2", "OD1"))},
    **{("GLU", one): other for one, other in (("OE1", "OE2"), ("OE2", "OE1"))},
    **{
        (residue, one): other
        for residue in ("PHE", "TYR")
        for one, other in (("CD1", "CD2"), ("CD2", "CD1"), ("CE1", "CE2"), ("CE2", "CE1"))
    },
}


@pytest.mark.parametrize("seed", range(3))
def test_every_atom_has_its_place_by_name(seed: int) -> None:
    """Of all residue types with missing atoms: glycine's pseudo-beta is its C-alpha, and of X, nothing is asked."""
    rng = np.random.default_rng(seed)
    aatype = rng.permutation(np.tile(np.arange(21), 2)).astype(np.int32)
    positions = rng.normal(size=(42, 37, 3)).astype(np.float32)
    mask = (rng.random((42, 37)) < 0.8).astype(np.float32)
    truth = ground_truth(aatype, labels(positions, mask))
    for row, kind in enumerate(aatype.tolist()):
        residue = residues.THREE_LETTER[kind]
        for slot, name in enumerate(residues.ATOM14_NAMES[kind]):
            assert bool(truth.atom14_atom_exists[row, slot]) == bool(name)
            for field, own in (("gt", name), ("alt_gt", OTHER_NAMES.get((residue, name), name))):
                there = bool(own) and bool(mask[row, residues.ATOM_ORDER[own]])
                assert bool(getattr(truth, f"atom14_{field}_exists")[row, slot]) == there
                expected = positions[row, residues.ATOM_ORDER[own]] if there else np.zeros(3)
                np.testing.assert_array_equal(getattr(truth, f"atom14_{field}_positions")[row, slot], expected)
            assert bool(truth.atom14_atom_is_ambiguous[row, slot]) == ((residue, name) in OTHER_NAMES)
        names = set(filter(None, residues.ATOM14_NAMES[kind]))
        assert {residues.ATOM_TYPES[slot] for slot in np.flatnonzero(truth.atom37_atom_exists[row])} == names
        beta = residues.ATOM_ORDER["CA" if residue == "GLY" else "CB"]
        np.testing.assert_array_equal(truth.pseudo_beta[row], positions[row, beta])
        assert truth.pseudo_beta_mask[row] == mask[row, beta]


def test_twelve_atoms_of_four_residue_types_have_two_names() -> None:
    named = {
        (residues.THREE_LETTER[restype], residues.ATOM14_NAMES[restype][slot])
        for restype, slot in zip(*np.nonzero(ATOM14_IS_AMBIGUOUS), strict=True)
    }
    rings = {(residue, atom) for residue in ("PHE", "TYR") for atom in ("CD1", "CD2", "CE1", "CE2")}
    assert named == rings | {("ASP", "OD1"), ("ASP", "OD2"), ("GLU", "OE1"), ("GLU", "OE2")}


@given(
    aatype=arrays.arrays(np.int32, st.integers(1, 30), elements=st.integers(0, 20)),
    seed=st.integers(0, 2**16),
)
def test_the_alternative_of_the_alternative_is_the_truth(aatype: np.ndarray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    r = len(aatype)
    mask = (rng.random((r, 37)) < 0.7).astype(np.float32)
    truth = ground_truth(aatype, labels(rng.random((r, 37, 3), np.float32), mask))
    rows, other = np.arange(r)[:, None], ATOM14_ALTERNATIVE[aatype]
    np.testing.assert_array_equal(truth.atom14_alt_gt_positions[rows, other], truth.atom14_gt_positions)
    np.testing.assert_array_equal(truth.atom14_alt_gt_exists[rows, other], truth.atom14_gt_exists)
    unambiguous = truth.atom14_atom_is_ambiguous == 0
    np.testing.assert_array_equal(truth.atom14_alt_gt_positions[unambiguous], truth.atom14_gt_positions[unambiguous])
    # No atom is lost or made: each layout has those atoms of the residue's type that were observed.
    observed = truth.all_atom_mask * truth.atom37_atom_exists
    np.testing.assert_array_equal(truth.atom14_gt_exists.sum(axis=1), observed.sum(axis=1))
    np.testing.assert_array_equal(truth.atom14_alt_gt_exists.sum(axis=1), observed.sum(axis=1))
    assert (truth.atom14_gt_exists <= truth.atom14_atom_exists).all()
    assert not truth.atom14_gt_positions[truth.atom14_gt_exists == 0].any()
