"""Features of complexes are those that DeepMind's pipeline makes of the same chains."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.assembly import Chain, ComplexFeatures, complex_features
from data_pipeline.features.monomer import monomer_features
from data_pipeline.features.pairing import PairingRows
from data_pipeline.io.errors import InputError
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
    third = replace(made("C", "LL", "LA", "LC", "LD", "LE"), pairing=pairing_rows("LL LM", "S1"))
    features = complex_features([first, second, third], max_rows=4)
    # Of three pairs two remain; the second chain is empty in none of them, the third one in one.
    assert features.paired_rows == 2
    assert block_heights(features) == [2, 2, 3]


def made(name: str, sequence: str, *rows: str) -> Chain:
    rows = tuple(row for row in rows if row != sequence)
    text = "".join(f">{number}\n{row}\n" for number, row in enumerate((sequence, *rows)))
    return Chain(name=name, features=monomer_features(name, sequence, [parse_a3m(text.encode())]))


LETTERS = "ARNDCQEGHILKMFPSTWYVX-"


def with_deletions(name: str, rows: list[str], deletions: list[list[int]], species: list[str], templates: int) -> Chain:
    """A chain with templates, some of whose rows are deleted residues' neighbours; every row may be paired."""
    msa = np.array([[LETTERS.index(letter) for letter in row] for row in rows], np.int8)
    counts, length = np.array(deletions, np.int32), len(rows[0])
    features = made(name, rows[0]).features
    number = 1 + np.arange(templates, dtype=np.float32)
    features = replace(
        features,
        msa=msa,
        deletion_matrix=counts,
        template_domain_names=tuple(f"{name}{each}" for each in range(templates)),
        template_aatype=(np.arange(templates)[:, None] + np.arange(length)).astype(np.int32) % 20,
        template_all_atom_positions=np.broadcast_to(number[:, None, None, None], (templates, length, 37, 3)).copy(),
        template_all_atom_masks=np.broadcast_to(number[:, None, None] % 2, (templates, length, 37)).copy(),
        template_sum_probs=np.zeros((templates, 1), np.float32),
    )
    pairing = PairingRows(msa=msa, deletion_matrix=counts, species=("", *species))
    return Chain(name=name, features=features, pairing=pairing)


LONG = with_deletions(
    "L",
    ["ACDEFG", "ACDEF-", "ACDWWG", "AC--FG", "WWWWWW"],
    [[0] * 6, [0, 2, 0, 0, 0, 0], [1, 0, 0, 0, 0, 3], [0, 0, 0, 0, 4, 0], [5] * 6],
    ["HUMAN", "MOUSE", "", "HUMAN"],
    templates=3,
)
SHORT = with_deletions("S", ["GX", "GG", "LX"], [[0, 0], [7, 0], [0, 8]], ["MOUSE", "HUMAN"], templates=6)
ALONE = with_deletions("O", ["K"], [[3]], [], templates=0)


UNEVEN = [(LONG, SHORT), (SHORT, LONG), (SHORT, ALONE, LONG), (ALONE, LONG, SHORT, LONG)]


def ordered_by_sequence(chains: tuple[Chain, ...]) -> tuple[list[str], list[Chain]]:
    """The sequences in order, and the chains, named after their places, those of one sequence side by side."""
    chains = tuple(replace(chain, name=f"{chain.name}{place}") for place, chain in enumerate(chains))
    sequences = list(dict.fromkeys(chain.features.sequence for chain in chains))
    return sequences, [chain for sequence in sequences for chain in chains if chain.features.sequence == sequence]


@pytest.mark.parametrize("chains", UNEVEN)
def test_rows_and_deletions_of_uneven_chains_stand_where_they_belong(chains: tuple[Chain, ...]) -> None:
    """The longer chain first and second, one of a single residue and row, and one that comes twice, apart."""
    sequences, ordered = ordered_by_sequence(chains)
    features = complex_features(chains)
    # Pairs by hand: HUMAN's nearest row of the long chain is its row 1, and the rows of MOUSE are 2 and 1.
    by_letter = {"L": [0, 1, 2], "S": [0, 2, 1], "O": [0, -1, -1]}
    pairs = [by_letter[chain.name[0]] for chain in ordered]
    # Of pairs with as many chains, those of the smallest product of row numbers come first.
    places = [abs(float(np.prod([each[row] for each in pairs], dtype=float))) for row in (1, 2)]
    order = [0, 1, 2] if places[0] <= places[1] else [0, 2, 1]
    expected_rows, expected_deletions, asked = [], [], []
    for row in order:
        letters, counts = "", []
        for chain, own in zip(ordered, pairs, strict=True):
            length = chain.features.msa.shape[1]
            kinds = chain.features.msa[own[row]].tolist() if own[row] >= 0 else [GAP] * length
            letters += "".join(LETTERS[kind] for kind in kinds)
            counts += chain.features.deletion_matrix[own[row]].tolist() if own[row] >= 0 else [0] * length
        expected_rows.append(letters)
        expected_deletions.append(counts)
        asked.append([True] * len(letters))
    for sequence in sequences:
        (chain, *_) = [each for each in ordered if each.features.sequence == sequence]
        paired = {tuple(chain.features.msa[row].tolist()) for row in by_letter[chain.name[0]] if row >= 0}
        for kinds, own_counts in zip(chain.features.msa.tolist(), chain.features.deletion_matrix.tolist(), strict=True):
            if tuple(kinds) in paired:
                continue
            letters, counts, here = "", [], []
            for each in ordered:
                length, same = len(each.features.sequence), each.features.sequence == sequence
                letters += "".join(LETTERS[kind] for kind in kinds) if same else "-" * length
                counts += own_counts if same else [0] * length
                here += [same] * length
            expected_rows.append(letters)
            expected_deletions.append(counts)
            asked.append(here)
    assert ["".join(LETTERS[kind] for kind in row) for row in features.msa] == expected_rows
    assert features.deletion_matrix.tolist() == expected_deletions
    assert features.bert_mask.tolist() == asked
    assert features.paired_rows == 3


@pytest.mark.parametrize("chains", UNEVEN)
def test_numbers_and_templates_of_uneven_chains_stand_where_they_belong(chains: tuple[Chain, ...]) -> None:
    sequences, ordered = ordered_by_sequence(chains)
    given = [replace(chain, name=f"{chain.name}{place}") for place, chain in enumerate(chains)]
    features = complex_features(given, max_templates=4)
    assert features.chain_names == tuple(chain.name for chain in ordered)
    assert {len(names) for names in features.template_names} == {4}
    left = 0
    for number, chain in enumerate(ordered, start=1):
        length, own = len(chain.features.sequence), chain.features
        part = slice(left, left + length)
        left += length
        assert features.asym_id[part].tolist() == [number] * length
        assert features.entity_id[part].tolist() == [1 + sequences.index(own.sequence)] * length
        copies = [each for each in ordered[:number] if each.features.sequence == own.sequence]
        assert features.sym_id[part].tolist() == [len(copies)] * length
        assert features.residue_index[part].tolist() == list(range(length))
        assert features.aatype[part].tolist() == [LETTERS.index(letter) for letter in own.sequence]
        for slot in range(4):
            there = slot < len(own.template_domain_names)
            types, masks = own.template_aatype, own.template_all_atom_masks
            assert features.template_aatype[slot, part].tolist() == (types[slot].tolist() if there else [0] * length)
            expected = slot + 1 if there else 0
            assert (features.template_all_atom_positions[slot, part] == expected).all()
            assert (features.template_all_atom_masks[slot, part] == (masks[slot] if there else 0)).all()
            assert features.template_names[number - 1][slot] == (own.template_domain_names[slot] if there else "")


def block_heights(features: ComplexFeatures) -> list[int]:
    """The number of rows of each chain below the pairs."""
    below = features.msa[features.paired_rows :] != GAP
    return [int(below[:, features.asym_id == chain].any(axis=1).sum()) for chain in np.unique(features.asym_id)]


def test_copies_with_different_alignments_are_refused() -> None:
    with pytest.raises(InputError, match="chains X and Y have the same sequence but different alignments"):
        complex_features([made("X", "ACDE"), made("Y", "ACDE", "ACDF")])
    with pytest.raises(InputError, match="at least one chain"):
        complex_features([])
