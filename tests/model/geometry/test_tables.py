"""Constants are looked up by residue type."""

import numpy as np
import torch

from data_pipeline import residues
from helixfold.model.geometry.tables import per_residue


def test_every_residue_gets_the_row_of_its_type() -> None:
    aatype = torch.tensor([[3, 0, 20], [5, 5, 1]])
    np.testing.assert_array_equal(per_residue("ATOM14_MASK", aatype), residues.ATOM14_MASK[aatype.numpy()])
    assert per_residue("RIGID_GROUP_DEFAULT_FRAME", aatype).shape == (2, 3, 8, 4, 4)


def test_the_type_of_numbers_follows_the_caller() -> None:
    aatype = torch.zeros(1, 2, dtype=torch.int64)
    assert per_residue("CHI_ANGLES_MASK", aatype, torch.float64).dtype == torch.float64
    assert not per_residue("ATOM37_TO_ATOM14", aatype).is_floating_point()


def test_changing_what_was_looked_up_does_not_change_the_table() -> None:
    aatype = torch.zeros(1, 2, dtype=torch.int64)
    per_residue("ATOM14_MASK", aatype).zero_()
    assert per_residue("ATOM14_MASK", aatype).sum() > 0
