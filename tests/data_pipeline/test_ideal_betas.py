"""A residue without C-beta gets one where alanine has it, if its backbone is whole."""

import numpy as np

from data_pipeline.ideal_betas import with_ideal_betas
from data_pipeline.residue_geometry import IDEAL_ATOMS
from data_pipeline.residues import ATOM_ORDER

BETA = ATOM_ORDER["CB"]


def test_a_missing_beta_is_where_alanine_has_it() -> None:
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    rotation *= np.sign(np.linalg.det(rotation))
    positions, mask = np.zeros((2, 37, 3), np.float32), np.zeros((2, 37), np.float32)
    for name, group, *place in IDEAL_ATOMS["ALA"]:
        if group == 0:
            positions[:, ATOM_ORDER[name]], mask[:, ATOM_ORDER[name]] = rotation @ place + [5, -7, 9], 1
    expected = positions[0, BETA].copy()
    positions[:, BETA], mask[:, BETA] = 0, 0
    mask[1, ATOM_ORDER["N"]] = 0
    found, known = with_ideal_betas(positions, mask)
    np.testing.assert_allclose(found[0, BETA], expected, atol=1e-3)
    assert known[:, BETA].tolist() == [1, 0]  # without a whole backbone there is no place for it
