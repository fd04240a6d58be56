"""Features of complexes are those that DeepMind's pipeline makes of the same chains."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import InputError
from data_pipeline.features.assembly import Chain, ComplexFeatures, complex_features
from data_pipeline.features.monomer import monomer_features
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.residues import GAP
from tests.data_pipeline.features.chains import pairing_rows, stored_chain

PER_RESIDUE = ("aatype", "residue_index", "asym_id", "sym_id", "entity_id")
ROWS = ("msa", "deletion_matrix", "bert_mask")
TEMPLATES = ("template_aatype", "template_all_atom_positions")


@pytest.mark.parametrize(
    ("letters", "case"), [("AB", "heterodimer_AB"), ("AAB", "heterotrimer_AAB"), ("AA", "homodimer")]
)
def test_features_of_complexes_are_deepminds(reference: Path, letters: str, case: str) -> None:
    features = complex_features([stored_chain(reference, letter, str(n)) for n, letter in enumerate(letters)])
    with np.load(reference / "pipeline" / f"v23_merge_{case}.npz") as stored:
        for name in (*PER_RESIDUE, *ROWS, *TEMPLATES):
            np.testing.assert_array_equal(getattr(features, name), stored[name], err_msg=name)
        np.testing.assert_array_equal(features.template_all_atom_masks, stored["template_all_atom_mask"])
        assert stored["cluster_bias_mask"].tolist() == [1, *[0] * (len(features.msa) - 1)]
    assert (features.paired_rows > 1) == ("B" in letters)


def test_chains_of_one_sequence_become_neighbours() -> None:
    chains = [made("X", "ACDE"), made("Y", "GGG"), made("Z", "ACDE")]
    features = complex_features(chains)
    assert features.chain_names == ("X", "Z", "Y")
    assert features.asym_id.tolist() == [1] * 4 + [2] * 4 + [3] * 3
    assert features.entity_id.tolist() == [1] * 8 + [2] * 3
    assert features.sym_id.tolist() == [1] * 4 + [2] * 4 + [1] * 3
    assert features.residue_index.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]


def test_rows_that_are_paired_are_not_repeated_below() -> None:
    first = replace(made("A", "ACDE", "ACDF", "ACDG"), pairing=pairing_rows("ACDE ACDF", "HUMAN"))
    second = replace(made("B", "GGGG", "GGGC"), pairing=pairing_rows("GGGG GGGL", "HUMAN"))
    features = complex_features([first, second])
    letters = ["".join("ARNDCQEGHILKMFPSTWYVX-"[each] for each in row) for row in features.msa]
    assert letters == ["ACDEGGGG", "ACDFGGGL", "ACDG----", "----GGGC"]
    assert features.paired_rows == 2
    assert features.bert_mask.tolist() == [[True] * 8, [True] * 8, [True] * 4 + [False] * 4, [False] * 4 + [True] * 4]


def test_half_of_the_rows_may_be_paired_and_empty_ones_do_not_count() -> None:
    rows = [f"AC{a}{b}" for a in "ACDEFG" for b in "ACDEFG"]
    species = [f"S{number}" for number in range(len(rows) - 1)]
    first = replace(made("A", *rows), pairing=pairing_rows(" ".join(rows), *species))
    second = replace(made("B", "GG", "GC", "GD"), pairing=pairing_rows("GG GH", "S0"))
    third = replace(made("C", "LL"), pairing=pairing_rows("LL LM", "S1"))
    features = complex_features([first, second, third], max_rows=4)
    # Of three pairs two remain; the second chain is empty in none of them, the third one in one.
    assert features.paired_rows == 2
    assert block_heights(features) == [2, 2, 0]


def block_heights(features: ComplexFeatures) -> list[int]:
    """The number of rows of each chain below the pairs."""
    below = features.msa[features.paired_rows :] != GAP
    return [int(below[:, features.asym_id == chain].any(axis=1).sum()) for chain in np.unique(features.asym_id)]


def made(name: str, sequence: str, *rows: str) -> Chain:
    rows = tuple(row for row in rows if row != sequence)
    text = "".join(f">{number}\n{row}\n" for number, row in enumerate((sequence, *rows)))
    return Chain(name=name, features=monomer_features(name, sequence, [parse_a3m(text.encode())]))


def test_copies_with_different_alignments_are_refused() -> None:
    with pytest.raises(InputError, match="chains X and Y have the same sequence and different alignments"):
        complex_features([made("X", "ACDE"), made("Y", "ACDE", "ACDF")])
    with pytest.raises(InputError, match="at least one chain"):
        complex_features([])
