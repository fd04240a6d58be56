"""Windows and selections of columns cover every chain of a complex, each by the numbers of its own residues."""

import numpy as np

from data_pipeline.alignment_variants import VariantSettings, chains_of, masked_columns
from data_pipeline.residue_ranges import read_ranges
from data_pipeline.residues import GAP, RESTYPES, UNKNOWN
from tests.support.complex_targets import feature_set


def test_windows_slide_along_each_chain_of_a_complex() -> None:
    settings = VariantSettings(window=(5, 2))
    whole, *windows = settings.without_clusters([8, 3, 6], ["A", "B", "C"])
    assert whole.columns == ()
    assert [variant.description.removeprefix("alanine at ") for variant in windows] == [
        *("A:1-5", "A:3-7", "A:4-8"),
        "B:1-3",
        *("C:1-5", "C:2-6"),
    ]
    assert len({variant.name for variant in windows}) == 6


def test_columns_of_several_chains_are_replaced_in_one_variant() -> None:
    features = feature_set("ABA")
    assert chains_of(features) == ([8, 8, 8], ["A", "C", "B"])
    for kind, letter in (("alanine", RESTYPES.index("A")), ("unknown", UNKNOWN)):
        found = masked_columns(read_ranges("B:2-3,A:8,C:1"), kind).of(features)  # type: ignore[arg-type]
        for part in ("multimer", "residue_gap"):
            before, after = (getattr(each, part).msa.tolist() for each in (features, found))
            assert after[0] == before[0]
            for row, rows in enumerate(before[1:], start=1):
                expected = [
                    letter if column in (7, 8, 17, 18) and own != GAP else own for column, own in enumerate(rows)
                ]
                # The chains stand in the order A, C, B: columns 0 to 7, 8 to 15 and 16 to 23.
                assert after[row] == expected
            others = (getattr(each, part).deletion_matrix for each in (features, found))
            np.testing.assert_array_equal(*others)
