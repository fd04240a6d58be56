"""What a network is told of a structure: its fold without sequence and side chains, or only the target of a binder."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.complexes.feature_set import ComplexFeatureSet
from data_pipeline.features.schema import Features
from data_pipeline.residues import ATOM_ORDER, GAP
from helixfold.apps.score.score import BinderChains, as_anonymous_template, as_template_of_target
from helixfold.apps.score.structures import read_scored
from tests.apps.score.structure_files import SEQUENCE, write

BACKBONE = [ATOM_ORDER[name] for name in ("N", "CA", "C", "CB", "O")]
BETA = ATOM_ORDER["CB"]


def test_a_template_tells_neither_residues_nor_side_chains(tmp_path: Path) -> None:
    structure = read_scored(write(tmp_path / "a.pdb"))
    found = as_anonymous_template(structure)
    assert isinstance(found, Features)
    assert (found.template_aatype == GAP).all()
    atoms = found.template_all_atom_masks[0].nonzero()[1]
    assert set(atoms.tolist()) == set(BACKBONE)
    assert (found.template_all_atom_masks[0, :, BETA] == 1).all()  # glycine, too
    assert len(found.msa) == 1
    assert structure.mask[:, ATOM_ORDER["CG"]].any()
    kept = (structure.mask > 0) & (found.template_all_atom_masks[0] > 0)
    np.testing.assert_array_equal(found.template_all_atom_positions[0][kept], structure.positions[kept])


@pytest.mark.parametrize("names", [(), ("B",), ("A", "B")])
def test_a_binders_target_alone_is_a_template(tmp_path: Path, names: tuple[str, ...]) -> None:
    structure = read_scored(write(tmp_path / "a.pdb", SEQUENCE[:9], SEQUENCE, SEQUENCE[:9]))  # read as A, C, B
    expected = {(): "A", ("B",): "B", ("A", "B"): "AB"}[names]
    mask = BinderChains(names=names).mask(structure)
    order = [chain.name for chain in structure.chains]
    assert {order[number] for number in structure.chain_index[mask]} == set(expected)
    found = as_template_of_target(structure, mask)
    assert isinstance(found, ComplexFeatureSet)
    for masks, types in (
        (found.multimer.template_all_atom_masks[0], found.multimer.template_aatype[0]),
        (found.residue_gap.template_all_atom_masks[0], found.residue_gap.template_aatype[0]),
    ):
        assert not masks[mask].any()
        np.testing.assert_array_equal(masks[~mask], structure.mask[~mask])
        assert (types[mask] == GAP).all()
        assert (types[~mask] < 20).all()
    assert not found.multimer.template_all_atom_masks[1:].any()
