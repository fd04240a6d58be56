"""Ideal geometry equals AlphaFold's, and nobody can change it at run time."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline import stereochemistry
from data_pipeline.residues import ATOM14_MASK, ATOM14_NAMES, RESTYPES, UNKNOWN
from data_pipeline.stereochemistry import distance_bounds

STORED = Path(__file__).parents[1] / "parity" / "data" / "modules" / "constants.npz"


@pytest.fixture(scope="module")
def alphafold() -> dict[str, np.ndarray]:
    with np.load(STORED) as arrays:
        return dict(arrays)


@pytest.mark.parity
def test_bounds_of_distances_equal_alphafolds(alphafold: dict[str, np.ndarray]) -> None:
    least, most = distance_bounds(12.0, 1.5)
    np.testing.assert_array_equal(least, alphafold["atom14_dists_bounds_lower_bound"])
    np.testing.assert_array_equal(np.minimum(most, 1e10), alphafold["atom14_dists_bounds_upper_bound"])


@pytest.mark.parity
def test_deviations_of_distances_equal_alphafolds(alphafold: dict[str, np.ndarray]) -> None:
    (least, most), (_, mean) = distance_bounds(1.0, 1.5), distance_bounds(0.0, 1.5)
    bound = np.isfinite(most) & (most > 0)
    expected = alphafold["atom14_dists_bounds_stddev"][bound]
    np.testing.assert_allclose(most[bound] - mean[bound], expected, atol=5e-7)
    np.testing.assert_allclose(mean[bound] - least[bound], expected, atol=5e-7)


@pytest.mark.parity
def test_peptide_bonds_and_radii_equal_alphafolds(alphafold: dict[str, np.ndarray]) -> None:
    lengths = stereochemistry.C_N_LENGTH, stereochemistry.C_N_LENGTH_TO_PROLINE
    assert [norm.mean for norm in lengths] == alphafold["between_res_bond_length_c_n"].tolist()
    assert [norm.deviation for norm in lengths] == alphafold["between_res_bond_length_stddev_c_n"].tolist()
    assert [*stereochemistry.CA_C_N_COSINE] == alphafold["between_res_cos_angles_ca_c_n"].tolist()
    assert [*stereochemistry.C_N_CA_COSINE] == alphafold["between_res_cos_angles_c_n_ca"].tolist()
    np.testing.assert_array_equal(stereochemistry.VAN_DER_WAALS_RADIUS, alphafold["van_der_waals_radius_atom37"])


def test_only_two_different_atoms_of_a_residue_have_bounds() -> None:
    least, most = distance_bounds(12.0, 1.5)
    pairs = ATOM14_MASK[:, :, None] * ATOM14_MASK[:, None] * (1 - np.eye(14))
    np.testing.assert_array_equal(most > 0, pairs > 0)
    np.testing.assert_array_equal(least > 0, pairs > 0)
    assert not most[UNKNOWN].any()
    np.testing.assert_array_equal(most, most.swapaxes(1, 2))


def test_cysteines_bond_is_as_far_off_as_is_tolerated() -> None:
    cysteine = RESTYPES.index("C")
    beta, sulphur = (ATOM14_NAMES[cysteine].index(name) for name in ("CB", "SG"))
    least, most = distance_bounds(10.0, 1.5)
    assert least[cysteine, beta, sulphur] == pytest.approx(1.812 - 0.16)
    assert most[cysteine, beta, sulphur] == pytest.approx(1.812 + 0.16)


def test_tables_cannot_be_written() -> None:
    for table in (*distance_bounds(12.0, 1.5), stereochemistry.VAN_DER_WAALS_RADIUS):
        assert not table.flags.writeable
