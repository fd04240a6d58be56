"""The vocabulary equals AlphaFold's, and nobody can change it at run time."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline import residues

STORED = Path(__file__).parents[1] / "parity" / "data" / "pipeline_constants.npz"


@pytest.fixture(scope="module")
def alphafold() -> dict[str, np.ndarray]:
    with np.load(STORED) as arrays:
        return dict(arrays)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("ATOM37_MASK", "restype_atom37_mask"),
        ("ATOM14_MASK", "restype_atom14_mask"),
        ("ATOM14_TO_RIGID_GROUP", "restype_atom14_to_rigid_group"),
        ("ATOM14_RIGID_GROUP_POSITIONS", "restype_atom14_rigid_group_positions"),
        ("CHI_PI_PERIODIC", "chi_pi_periodic"),
        ("CHI_ATOM_INDICES", "chi_atom_indices"),
        ("HHBLITS_TO_OUR_AATYPE", "MAP_HHBLITS_AATYPE_TO_OUR_AATYPE"),
    ],
)
def test_tables_equal_alphafolds(alphafold: dict[str, np.ndarray], ours: str, theirs: str) -> None:
    np.testing.assert_array_equal(getattr(residues, ours), alphafold[theirs])


@pytest.mark.parity
def test_names_and_orders_equal_alphafolds(alphafold: dict[str, np.ndarray]) -> None:
    assert list(residues.RESTYPES) == alphafold["restypes"].tolist()
    assert list(residues.ATOM_TYPES) == alphafold["atom_types"].tolist()
    np.testing.assert_array_equal(np.array(residues.ATOM14_NAMES), alphafold["atom14_names"])
    np.testing.assert_array_equal(residues.CHI_ANGLES_MASK[:20], alphafold["chi_angles_mask"])
    assert not residues.CHI_ANGLES_MASK[residues.UNKNOWN].any()


@pytest.mark.parity
def test_default_frames_equal_alphafolds(alphafold: dict[str, np.ndarray]) -> None:
    np.testing.assert_allclose(
        residues.RIGID_GROUP_DEFAULT_FRAME, alphafold["restype_rigid_group_default_frame"], atol=1e-6
    )


@pytest.mark.parity
def test_atom_layout_maps_equal_alphafolds(alphafold: dict[str, np.ndarray]) -> None:
    aatype = alphafold["aatype"]
    np.testing.assert_array_equal(residues.ATOM14_TO_ATOM37[aatype], alphafold["residx_atom14_to_atom37"])
    np.testing.assert_array_equal(residues.ATOM37_TO_ATOM14[aatype], alphafold["residx_atom37_to_atom14"])


def test_atom_layout_maps_invert_each_other() -> None:
    for restype, names in enumerate(residues.ATOM14_NAMES):
        for slot, name in enumerate(names):
            if name:
                atom = residues.ATOM14_TO_ATOM37[restype, slot]
                assert residues.ATOM_TYPES[atom] == name
                assert residues.ATOM37_TO_ATOM14[restype, atom] == slot


def test_default_frames_are_rotations_where_the_angle_exists() -> None:
    rotations = residues.RIGID_GROUP_DEFAULT_FRAME[:20, :, :3, :3]
    exists = np.concatenate([np.ones((20, 4), bool), residues.CHI_ANGLES_MASK[:20] > 0], axis=1)
    products = rotations @ rotations.swapaxes(-1, -2)
    np.testing.assert_allclose(products[exists], np.broadcast_to(np.eye(3), products[exists].shape), atol=1e-6)
    assert not rotations[~exists].any()


def test_tables_cannot_be_written() -> None:
    tables = [value for name, value in vars(residues).items() if name.isupper() and isinstance(value, np.ndarray)]
    assert len(tables) == 11
    assert not any(table.flags.writeable for table in tables)
