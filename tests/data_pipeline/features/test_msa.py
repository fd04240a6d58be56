"""Merging alignments gives AlphaFold's MSA."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.msa import msa_features, single_sequence
from data_pipeline.parse.a3m import Alignment, parse_a3m
from data_pipeline.residues import HHBLITS_TO_OUR_AATYPE, RESTYPES_WITH_X_AND_GAP


def test_of_equal_sequences_the_first_is_kept_over_all_alignments() -> None:
    first = parse_a3m(b">q\nACD\n>h\nA-D\n>again\nAaa-D\n")
    second = parse_a3m(b">q\nACD\n>new\nAwWD\n>h\nAkkk-D\n")
    msa, deletions = msa_features([first, second])
    assert ["".join(RESTYPES_WITH_X_AND_GAP[residue] for residue in row) for row in msa] == ["ACD", "A-D", "AWD"]
    np.testing.assert_array_equal(deletions, [[0, 0, 0], [0, 0, 0], [0, 1, 0]])


def test_ambiguous_letters_become_what_hhblits_makes_of_them() -> None:
    msa, _ = msa_features([single_sequence("BJOUXZ")])
    assert "".join(RESTYPES_WITH_X_AND_GAP[residue] for residue in msa[0]) == "DXXCXE"


@pytest.mark.parity
def test_three_alignments_merge_as_in_alphafold(reference: Path) -> None:
    alignments = []
    for database in ("uniref90", "bfd", "mgnify"):
        with np.load(reference / "pipeline" / f"dm200_msa_{database}.npz") as parsed:
            rows = parsed["sequences"].astype("S")
            alignments.append(
                Alignment(
                    names=tuple(map(str, range(len(rows)))),
                    letters=rows.view(np.uint8).reshape(len(rows), -1),
                    deletion_matrix=parsed["deletion_matrix"].astype(np.int32),
                )
            )
    msa, deletions = msa_features(alignments)
    with np.load(reference / "pipeline" / "dm200_make_msa_features.npz") as alphafold:
        np.testing.assert_array_equal(msa, HHBLITS_TO_OUR_AATYPE[alphafold["msa"]])
        np.testing.assert_array_equal(deletions, alphafold["deletion_matrix_int"])


def test_merged_deletions_are_as_wide_as_the_widest() -> None:
    narrow, wide = parse_a3m(b">q\nACD\n>h\nAwC-\n"), parse_a3m(b">q\nACD\n>i\nA" + b"w" * 300 + b"C-\n>j\nA-D\n")
    msa, deletions = msa_features([narrow, wide, single_sequence("ACD")])
    assert (msa.dtype, deletions.dtype) == (np.int8, np.int16)
    np.testing.assert_array_equal(deletions, [[0, 0, 0], [0, 1, 0], [0, 0, 0]])
    msa, deletions = msa_features([wide, narrow])
    np.testing.assert_array_equal(deletions, [[0, 0, 0], [0, 300, 0], [0, 0, 0]])


def test_many_rows_are_merged_in_order() -> None:
    rows = 40_000
    rng = np.random.default_rng(0)
    letters = rng.choice(np.frombuffer(b"ACD-", np.uint8), (rows, 8))
    counts = rng.integers(0, 100, letters.shape).astype(np.int8)
    names = tuple(map(str, range(rows)))
    msa, deletions = msa_features([Alignment(names=names, letters=letters, deletion_matrix=counts)] * 2)
    _, first = np.unique(letters, axis=0, return_index=True)
    first.sort()
    assert 16_384 < len(first) < rows
    types = np.array([RESTYPES_WITH_X_AND_GAP.index(chr(letter)) for letter in letters[first].ravel()])
    np.testing.assert_array_equal(msa.ravel(), types)
    np.testing.assert_array_equal(deletions, counts[first])
