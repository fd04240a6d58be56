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
