"""Distances are kept small, in the order of residues, with those of the structure beside them."""

from pathlib import Path

import numpy as np

from data_pipeline.residues import ATOM_ORDER, RESTYPES
from helixfold.results.prediction import write_prediction
from tests.results.test_prediction import NOTE, prediction


def test_expected_and_predicted_distances_are_written_in_half_precision(tmp_path: Path) -> None:
    one = prediction()
    write_prediction(tmp_path, one)
    with np.load(tmp_path / "distances_model_1_ptm.npz", allow_pickle=False) as archive:
        found = dict(archive)
    assert one.distances is not None
    assert [found[name].dtype for name in list(found)[1:4]] == [np.float16] * 3
    np.testing.assert_allclose(found["expected_distance"], one.distances.expected, atol=0.008)
    np.testing.assert_allclose(found["contact_probability"], one.distances.contact, atol=0.0003)
    assert found["residue_number"].tolist() == list(range(1, 13))
    assert found["notes"].tolist() == [NOTE]

    protein = one.protein
    atom = np.where(protein.aatype == RESTYPES.index("G"), ATOM_ORDER["CA"], ATOM_ORDER["CB"])
    points = protein.atom_positions[np.arange(12), atom]
    expected = np.linalg.norm(points[:, None] - points[None], axis=-1)
    without = protein.atom_mask[np.arange(12), atom] < 0.5
    expected[without] = expected[:, without] = np.nan
    np.testing.assert_allclose(found["structure_distance"], expected, rtol=1e-3)


def test_a_prediction_without_distances_has_no_such_file(tmp_path: Path) -> None:
    write_prediction(tmp_path, prediction(distances=None))
    assert not list(tmp_path.glob("distances*"))
