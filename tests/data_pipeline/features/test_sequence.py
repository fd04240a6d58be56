"""Residue types from letters."""

import numpy as np

from data_pipeline.features.sequence import aatype_from_sequence
from data_pipeline.residues import RESTYPES, UNKNOWN


def test_the_twenty_letters_are_numbered_and_all_others_are_unknown() -> None:
    np.testing.assert_array_equal(aatype_from_sequence(RESTYPES), np.arange(20))
    np.testing.assert_array_equal(aatype_from_sequence("BJOUXZ"), np.full(6, UNKNOWN))
