"""The confidence file sums up chains, domains and the alignment."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest

from data_pipeline.features.alignment_depth import alignment_depth
from data_pipeline.residues import GAP
from helixfold.analysis.interfaces import complex_scores
from helixfold.folding.prediction import Prediction
from helixfold.results.confidence import confidence_content
from tests.results.proteins import random_protein
from tests.results.test_prediction import prediction
from tests.support import special_complex


def of_two_domains(**values: object) -> Prediction:
    """Residues 11 to 90: one domain up to 40, another up to 80, and a tail."""
    labels = np.repeat([0, 1, 2], [30, 40, 10])
    pae = np.where((labels[:, None] == labels) & (labels < 2), 2.0, 20.0).astype(np.float32)
    pae[30:70, :30] = 14  # of the first domain when aligned on the second
    np.fill_diagonal(pae, 0)
    protein = random_protein(80)
    numbered = dataclasses.replace(protein, residue_index=protein.residue_index + 10)
    plddt = np.repeat([90.0, 80.0, 30.0], [30, 40, 10])
    return prediction(**{"structure": numbered, "plddt": plddt, "pae": pae, "distances": None, **values})


def test_domains_are_given_by_residue_numbers_with_their_means() -> None:
    content = confidence_content(of_two_domains())
    assert content["domains"] == [
        {"name": "1", "ranges": [[11, 40]], "residues": 30, "mean_plddt": 90.0, "mean_pae": 2.0},
        {"name": "2", "ranges": [[41, 80]], "residues": 40, "mean_plddt": 80.0, "mean_pae": 2.0},
    ]
    assert content["domain_pae"] == [[2.0, 20.0], [14.0, 2.0]]


def test_the_bands_of_confidence_begin_at_their_least_plddt() -> None:
    plddt = np.array([100, 90, 89.9, 70, 69.9, 50, 49.9, 0] * 10)
    content = confidence_content(of_two_domains(plddt=plddt))
    assert "".join(content["confidenceCategory"]) == "HHMMLLDD" * 10
    shares = {"very_high": 0.25, "confident": 0.25, "low": 0.25, "very_low": 0.25}
    assert content["fraction_plddt"] == shares


def test_without_pae_there_are_no_domains() -> None:
    content = confidence_content(of_two_domains(pae=None, max_pae=None, ptm=None))
    assert (content["domains"], content["domain_pae"]) == ([], [])


def test_a_chain_has_its_numbers_its_mean_and_ptm() -> None:
    (chain,) = confidence_content(of_two_domains())["chains"]
    assert chain == {"chain": "A", "first": 11, "last": 90, "residues": 80, "mean_plddt": 77.5, "ptm": 0.4322}


def test_a_domain_of_a_complex_names_the_chain_of_each_range() -> None:
    pae = np.full((80, 80), 2.0, np.float32)
    np.fill_diagonal(pae, 0)
    (domain,) = confidence_content(of_two_chains(pae=pae, plddt=np.full(80, 90.0)))["domains"]
    # Numbers as they were, 11 to 90 over both chains: one stretch of residues is a range in each.
    assert (domain["ranges"], domain["chains"], domain["residues"]) == ([[11, 40], [41, 90]], ["H", "L"], 80)


def of_two_chains(**values: object) -> Prediction:
    """Chains of 30 and 50 residues, the domains of which are apart."""
    one = of_two_domains()
    chains = dataclasses.replace(one.protein, chain_index=np.repeat([0, 1], [30, 50]))
    return dataclasses.replace(one, structure=chains, chain_ids=("H", "L"), **values)


def test_chains_of_a_complex_have_means_and_their_own_ptm() -> None:
    first, second = confidence_content(of_two_chains())["chains"]
    assert (first["chain"], first["last"], first["mean_plddt"], first["ptm"]) == ("H", 40, 90.0, None)
    assert (second["chain"], second["first"], second["residues"], second["mean_plddt"]) == ("L", 41, 50, 70.0)
    tm = np.array([[0.81234, 0.3], [0.4, 0.7]])
    content = confidence_content(of_two_chains(iptm=0.4, tm_by_chain=tm))
    assert [chain["ptm"] for chain in content["chains"]] == [0.8123, 0.7]
    assert content["chain_pair_iptm"] == [[0.8123, 0.3], [0.4, 0.7]]


def test_pairs_of_chains_have_the_scores_of_their_interface() -> None:
    one = of_two_chains(iptm=0.4, tm_by_chain=np.array([[0.8, 0.3], [0.4, 0.7]]))
    positions = one.protein.atom_positions.copy()
    positions[:, 1] = positions[:, 3] = np.arange(80)[:, None] * [0, 0, 100.0]
    positions[40, 1] = positions[40, 3] = positions[10, 3] + np.float32(3)  # one contact, of residues 11 and 41
    near = dataclasses.replace(one, structure=dataclasses.replace(one.protein, atom_positions=positions))
    (pair,) = confidence_content(near)["interfaces"]
    assert (pair["chains"], pair["contacts"], pair["iptm"]) == (["H", "L"], 1, 0.4)
    assert (pair["interface_plddt"], pair["interface_pae"]) == (85.0, 17.0)  # PAE 20 in one direction, 14 in the other
    expected = complex_scores(near.protein, ("H", "L"), plddt=near.plddt, pae=near.pae).interfaces[0]
    for name in ("ipsae", "pdockq", "pdockq2", "lis"):
        assert pair[name] == round(getattr(expected, name), 4)
    assert [way["aligned"] for way in pair["directions"]] == ["H", "L"]
    assert "interfaces" not in confidence_content(of_two_domains())


def test_the_alignments_depth_is_told_where_it_is_known() -> None:
    msa = np.zeros((3, 80), np.int8)
    msa[1:, 40:] = GAP
    msa[1, :40], msa[2, :40] = 1, 1
    content = confidence_content(of_two_domains(), alignment_depth(msa))
    assert content["msa"] == {
        "rows": 3,
        "effective_rows": 2.0,
        "coverage": [3] * 40 + [1] * 40,
        "effective_coverage": [2.0] * 40 + [1.0] * 40,
    }
    assert "msa" not in confidence_content(of_two_domains())


def test_chains_and_residues_of_a_special_complex_have_their_own_values() -> None:
    one = special_complex.prediction()
    content = confidence_content(one)
    every = special_complex.residues()
    assert content["residueNumber"] == [residue.number for residue in every]
    assert content["plddt"] == content["confidenceScore"] == [residue.plddt for residue in every]
    letters = ["H" if p >= 90 else "M" if p >= 70 else "L" if p >= 50 else "D" for p in content["plddt"]]
    assert content["confidenceCategory"] == letters
    shares = {"very_high": "H", "confident": "M", "low": "L", "very_low": "D"}
    assert content["fraction_plddt"] == {name: round(letters.count(each) / 26, 4) for name, each in shares.items()}
    chains = {name: [each for each in every if each.chain == name] for name in special_complex.chain_names()}
    assert content["chains"] == [
        {
            "chain": name,
            "first": members[0].number,
            "last": members[-1].number,
            "residues": len(members),
            "mean_plddt": pytest.approx(np.mean([each.plddt for each in members]), abs=0.0051),
            "ptm": special_complex.TM_BY_CHAIN[place, place],
        }
        for place, (name, members) in enumerate(chains.items())
    ]
    assert content["mean_plddt"] == pytest.approx(np.mean([each.plddt for each in every]), abs=0.0051)
    assert (content["ptm"], content["iptm"]) == (0.58, 0.43)
    assert content["chain_pair_iptm"] == special_complex.TM_BY_CHAIN.tolist()


def interface_of(first: str, second: str) -> dict[str, object]:
    """Scores of the interface of two chains of the special complex, pair by pair from the definitions."""
    every, pae = special_complex.residues(), special_complex.pae().astype(float)
    sides = [[place for place, each in enumerate(every) if each.chain == name] for name in (first, second)]
    contacts = [
        (i, j)
        for i, j in itertools.product(*sides)
        if (a := every[i].beta) and (b := every[j].beta) and math.dist(a, b) <= 8
    ]
    touching = sorted({i for pair in contacts for i in pair})
    plddt = float(np.mean([every[i].plddt for i in touching])) if contacts else None
    scores: dict[str, list[float]] = {"ipsae": [], "pdockq2": [], "lis": []}
    for aligned, scored, pairs in ((*sides, contacts), (*sides[::-1], [(j, i) for i, j in contacts])):
        of_residues = []
        for i in aligned:
            errors = [pae[i, j] for j in scored if pae[i, j] < 10]
            scale = 1.24 * (max(len(errors), 27) - 15) ** (1 / 3) - 1.8
            of_residues.append(np.mean([1 / (1 + (error / scale) ** 2) for error in errors]) if errors else 0)
        scores["ipsae"].append(max(of_residues))
        certain = [1 / (1 + (pae[pair] / 10) ** 2) for pair in pairs]
        score = 1.31 / (1 + math.exp(-0.075 * ((plddt or 0) * np.mean(certain) - 84.733))) + 0.005 if pairs else 0
        scores["pdockq2"].append(score)
        small = [1 - pae[i, j] / 12 for i in aligned for j in scored if pae[i, j] <= 12]
        scores["lis"].append(float(np.mean(small)) if small else 0)
    both = [pae[i, j] for i, j in contacts] + [pae[j, i] for i, j in contacts]
    pdockq = 0
    if plddt is not None:
        pdockq = 0.724 / (1 + math.exp(-0.052 * (plddt * math.log10(len(contacts)) - 152.611))) + 0.018
    tm, order = special_complex.TM_BY_CHAIN, special_complex.chain_names()
    one, other = order.index(first), order.index(second)
    return {
        "chains": [first, second],
        "contacts": len(contacts),
        "interface_residues": [sum(every[i].chain == name for i in touching) for name in (first, second)],
        "interface_plddt": plddt,
        "interface_pae": float(np.mean(both)) if contacts else None,
        "iptm": max(tm[one, other], tm[other, one]),
        "ipsae": max(scores["ipsae"]),
        "pdockq": pdockq,
        "pdockq2": max(scores["pdockq2"]),
        "lis": float(np.mean(scores["lis"])),
        "directions": [
            {"aligned": one, "scored": other, **{name: values[way] for name, values in scores.items()}}
            for way, (one, other) in enumerate(((first, second), (second, first)))
        ],
    }


def near(expected: Any) -> Any:
    if isinstance(expected, dict):
        return {key: near(value) for key, value in expected.items()}
    if isinstance(expected, list):
        return [near(value) for value in expected]
    return pytest.approx(expected, abs=1e-4) if isinstance(expected, float) else expected


def test_every_pair_of_chains_of_a_special_complex_has_its_scores() -> None:
    """Glycines with C-alpha, residues without C-beta, and slots that are masked."""
    content = confidence_content(special_complex.prediction())
    pairs = list(itertools.combinations(special_complex.chain_names(), 2))
    assert content["interfaces"] == [near(interface_of(*pair)) for pair in pairs]
    touching = [pair for pair in pairs if interface_of(*pair)["contacts"]]
    assert touching == [("H", "L"), ("L", "h")]
