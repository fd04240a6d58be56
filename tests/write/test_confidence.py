"""The confidence file sums up chains, domains and the alignment."""

import dataclasses

import numpy as np

from data_pipeline.features.alignment_depth import alignment_depth
from data_pipeline.residues import GAP
from helixfold.analysis.interfaces import complex_scores
from helixfold.prediction import Prediction
from helixfold.write.confidence import confidence_content
from tests.write.proteins import random_protein
from tests.write.test_results import prediction


def of_two_domains(**values: object) -> Prediction:
    """Residues 11 to 90: one domain up to 40, another up to 80, and a tail."""
    labels = np.repeat([0, 1, 2], [30, 40, 10])
    pae = np.where((labels[:, None] == labels) & (labels < 2), 2.0, 20.0).astype(np.float32)
    pae[30:70, :30] = 14  # of the first domain when aligned on the second
    np.fill_diagonal(pae, 0)
    protein = random_protein(80)
    numbered = dataclasses.replace(protein, residue_index=protein.residue_index + 10)
    plddt = np.repeat([90.0, 80.0, 30.0], [30, 40, 10])
    return prediction(**{"protein": numbered, "plddt": plddt, "pae": pae, "distances": None, **values})


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
    return dataclasses.replace(one, protein=chains, chain_ids=("H", "L"), **values)


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
    near = dataclasses.replace(one, protein=dataclasses.replace(one.protein, atom_positions=positions))
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
