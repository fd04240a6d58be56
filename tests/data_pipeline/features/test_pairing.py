"""Rows of several chains are paired by species as DeepMind's program pairs them."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.features.pairing import _MAX_ROWS as MOST_ROWS
from data_pipeline.features.pairing import PairingRows, pair_rows, species_of
from data_pipeline.parse.a3m import parse_a3m
from tests.data_pipeline.features.chains import pairing_rows, stored_chain


@pytest.mark.parametrize(
    ("name", "species"),
    [
        ("tr|A0A146SKV9|A0A146SKV9_FUNHE/3-120", "FUNHE"),
        ("sp|P0C2L1|A3X1_LOXLA/1-5", "LOXLA"),
        ("sp|P0C2L1_2|A3X1_LOXLA_12", "LOXLA"),
        ("UniRef90_A0A141BHY3/1-51", ""),
        ("tr|A0A2A6NXF8|A0A2A6NXF8_9BRAD", "9BRAD"),
        ("tr|A0A2A6NXF8|A0A2A6NXF8_TOOLONG", ""),
        ("xx tr|A0A2A6NXF8|A0A2A6NXF8_9BRAD", ""),
        ("query", ""),
        ("", ""),
    ],
)
def test_species_are_read_from_uniprots_names(name: str, species: str) -> None:
    assert species_of(name) == species


def test_species_are_deepminds(reference: Path) -> None:
    with np.load(reference / "pipeline" / "v23_species_identifiers.npz") as stored:
        assert [*map(species_of, map(str, stored["description"]))] == [*map(str, stored["species"])]
    for letter in "AB":
        chain = stored_chain(reference, letter, letter)
        content = (reference / "pipeline" / f"synthetic_uniprot_{letter}.sto").read_text()
        assert chain.pairing is not None
        assert set(filter(None, chain.pairing.species)) <= {
            species_of(line.split()[0]) for line in content.splitlines() if line[:2] in ("tr", "sp")
        }


def test_pairs_are_deepminds(reference: Path) -> None:
    chains = [stored_chain(reference, letter, letter).pairing for letter in "AB"]
    with np.load(reference / "pipeline" / "v23_pair_sequences.npz") as stored:
        np.testing.assert_array_equal(pair_rows([each for each in chains if each is not None]), stored["reordered"])


def test_the_most_similar_rows_of_a_species_are_paired_first() -> None:
    first = pairing_rows("AAAA CCCC AACC AAAC", "HUMAN", "HUMAN", "MOUSE")
    second = pairing_rows("GGGG GGGC CCCC", "HUMAN", "YEAST")
    # Row 2 of the first chain is nearer to it than row 1, and there is one row of the second chain to pair.
    np.testing.assert_array_equal(pair_rows([first, second]), [[0, 0], [2, 1]])


def test_rows_that_all_chains_have_come_first_and_chains_may_be_left_out() -> None:
    a = pairing_rows("AA AC CC", "HUMAN", "MOUSE")
    b = pairing_rows("GG GC CC", "MOUSE", "HUMAN")
    c = pairing_rows("LL LC", "MOUSE")
    np.testing.assert_array_equal(pair_rows([a, b, c]), [[0, 0, 0], [2, 1, 1], [1, 2, -1]])


def test_a_species_with_too_many_rows_is_left_out() -> None:
    for count, pairs in ((MOST_ROWS, 2), (MOST_ROWS + 1, 1)):
        msa = np.zeros((count + 1, 3), np.int8)
        many = PairingRows(msa=msa, deletion_matrix=msa, species=("", *["HUMAN"] * count))
        assert len(pair_rows([many, pairing_rows("GGG GGC", "HUMAN")])) == pairs


def test_an_alignment_keeps_the_species_of_the_rows_that_remain() -> None:
    text = ">q\nACDE\n>sp|P0C2L1|A_HUMAN\nACDE\n>sp|P0C2L1|A_MOUSE\nACDF\n>x\nACDG\n>sp|P0C2L1|A_YEAST\nACDF\n"
    rows = PairingRows.of("ACDE", parse_a3m(text.encode()))
    assert rows.species == ("", "MOUSE", "")
    assert len(rows.msa) == len(rows.deletion_matrix) == 3


def pairs_by_loops(chains: list[PairingRows]) -> list[list[int]]:
    """Suppl. Sec. 7.2 of AlphaFold-Multimer, species by species."""
    names = sorted({name for chain in chains for name in chain.species if name})
    found: list[list[int]] = [[0] * len(chains)]
    for name in names:
        own = []
        for chain in chains:
            rows = [row for row, species in enumerate(chain.species) if species == name]
            same = {row: sum(a == b for a, b in zip(chain.msa[row], chain.msa[0], strict=True)) for row in rows}
            own.append(sorted(rows, key=lambda row, same=same: -same[row]))
        present = [rows for rows in own if rows]
        if len(present) > 1:
            found += [[rows[k] if rows else -1 for rows in own] for k in range(min(map(len, present)))]
    counts = [sum(row >= 0 for row in pair) for pair in found]
    places = [abs(math.prod(pair)) for pair in found]
    order = sorted(range(len(found)), key=lambda k: (-counts[k], places[k]))
    return [found[k] for k in order]


@pytest.mark.parametrize("seed", range(6))
def test_pairs_of_uneven_chains_are_those_of_loops(seed: int) -> None:
    """Chains of one row, of one residue, and with many rows of equal similarity."""
    random = np.random.default_rng(seed)
    chains = []
    for rows, length in random.permutation([(1, 4), (9, 1), (15, 6), (5, 3)])[seed % 2 :].tolist():
        msa = random.integers(0, 3, (rows, length)).astype(np.int8)
        species = ("", *random.choice(["", "HUMAN", "MOUSE", "YEAST"], rows - 1).tolist())
        chains.append(PairingRows(msa=msa, deletion_matrix=msa, species=species))
    assert pair_rows(chains).tolist() == pairs_by_loops(chains)


SPECIES = st.lists(st.sampled_from(["", "HUMAN", "MOUSE", "YEAST", "9BRAD"]), max_size=12)


@given(st.lists(SPECIES, min_size=2, max_size=4), st.integers(0, 2**32 - 1))
def test_pairs_are_of_one_species_and_every_row_is_used_once(species: list[list[str]], seed: int) -> None:
    random = np.random.default_rng(seed)
    chains = []
    for own in species:
        msa = random.integers(0, 4, (len(own) + 1, 6)).astype(np.int8)
        chains.append(PairingRows(msa=msa, deletion_matrix=msa, species=("", *own)))
    pairs = pair_rows(chains)
    assert (pairs[0] == 0).all()
    for column, chain in zip(pairs.T, chains, strict=True):
        used = column[column > 0]
        assert len(set(used)) == len(used)
        assert all(chain.species[row] for row in used)
    counts = (pairs >= 0).sum(axis=1)
    assert (counts >= 2).all()
    assert (np.diff(counts) <= 0).all()
    for row in pairs[1:]:
        assert len({chain.species[index] for chain, index in zip(chains, row, strict=True) if index >= 0}) == 1
