"""Windows and selections of columns cover every chain of a complex, each by the numbers of its own residues."""

import numpy as np
import pytest

from data_pipeline.features.monomer import monomer_features
from data_pipeline.io.errors import InputError
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.residue_ranges import read_ranges
from data_pipeline.residues import GAP, RESTYPES, UNKNOWN
from data_pipeline.sampling.alignment_clusters import AlignmentClusters, ClusterSettings
from data_pipeline.sampling.alignment_variants import (
    AlignmentVariant,
    VariantSettings,
    chains_of,
    cluster_variants,
    column_mask,
    masked_columns,
    single_chain,
)
from tests.support.complex_targets import feature_set

CHAIN = monomer_features("one", "MKTA", [parse_a3m(b">q\nMKTA\n>a\nM-wTA\n>b\nGGGG\n>c\nAKT-\n")])


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


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("2-3", "--mask-columns 2-3 needs a chain for a complex, such as A:2-3"),
        ("A:1,D:4", "--mask-columns D:4 has an unknown chain; the chains are A, C, B"),
        ("B:8-9", "--mask-columns B:8-9 is beyond the last residue, 8"),
    ],
)
def test_columns_that_a_complex_lacks_are_refused(words: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        column_mask(feature_set("ABA"), read_ranges(words))
    assert str(caught.value) == problem


def test_columns_of_a_single_chain_may_be_named_with_or_without_it() -> None:
    for words in ("2,4", "A:2,A:4"):
        found = masked_columns(read_ranges(words), "alanine").of(CHAIN)
        rows = ["".join(f"{''.join(RESTYPES)}X-"[each] for each in row) for row in found.msa.tolist()]  # type: ignore[union-attr]
        assert rows == ["MKTA", "M-TA", "GAGA", "AAT-"]
        assert found.deletion_matrix is CHAIN.deletion_matrix  # type: ignore[union-attr]
    with pytest.raises(InputError, match="--mask-columns 5 is beyond the last residue, 4"):
        column_mask(CHAIN, read_ranges("5"))


def test_variants_are_named_after_what_they_change() -> None:
    settings = VariantSettings(columns=(read_ranges("1,A:2-3"),) * 2, depths=((2, 3), (2, 3), (1, 1)), window=(3, 3))
    found = settings.without_clusters([4], ["A"])
    assert [each.name for each in found[1:]] == ["alanine_1_A2-3", "alanine_1-3", "alanine_2-4", "msa_2_3", "msa_1_1"]
    assert found[4].description == "at most 2 rows and 3 extra rows"
    assert (found[4].max_msa_rows, found[4].max_extra_rows) == (2, 3)
    long = [masked_columns(read_ranges(",".join(map(str, range(1, last)))), "unknown").name for last in (60, 61)]
    assert all(name.startswith("unknown_1_") and len(name) == len("unknown_1_") + 8 for name in long)
    assert long[0] != long[1]
    assert VariantSettings(replacement="unknown").is_empty
    assert not VariantSettings(depths=((1, 1),)).is_empty


def test_each_cluster_has_the_targets_row_and_its_own() -> None:
    clusters = AlignmentClusters(labels=np.array([-2, 1, 0, 1]), eps=7.0)
    settings = ClusterSettings(eps=7.0)
    found = list(cluster_variants(settings, clusters))
    assert [(each.name, each.rows) for each in found] == [("cluster_000", (0, 2)), ("cluster_001", (0, 1, 3))]
    assert found[1].description == "cluster 1 (DBSCAN, eps 7, min_samples 3, gaps below 0.25)"
    features = found[1].of(CHAIN)
    np.testing.assert_array_equal(features.msa, CHAIN.msa[[0, 1, 3]])  # type: ignore[union-attr]
    np.testing.assert_array_equal(features.deletion_matrix, CHAIN.deletion_matrix[[0, 1, 3]])  # type: ignore[union-attr]
    assert AlignmentVariant().of(CHAIN) is CHAIN
    with pytest.raises(InputError, match="complex is a complex, but --cluster-msa is"):
        single_chain(feature_set("AB"))
