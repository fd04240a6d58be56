"""Complexes are compared as the package DockQ compares them, whatever the order and the names of chains."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.parse.gemmi_chains import parse_pdb
from data_pipeline.residues import ATOM37_MASK, ATOM_ORDER
from data_pipeline.structure import Chain
from helixfold.analysis import complexes
from helixfold.analysis.complexes import ComplexComparison, compare_complexes
from helixfold.analysis.dockq import DockQ, dockq, native_interface
from helixfold.analysis.metrics import rmsd, superposed_scores
from helixfold.analysis.residues import paired
from tests.analysis.made_complexes import REAL, SMALL, chosen, made_prediction, rotation, symmetric, true_complex
from tests.analysis.uneven_chains import displaced, uneven_chains, without_residues

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "interfaces.json").read_text(encoding="utf-8"))
NOWHERE = Path("nowhere")
CA = ATOM_ORDER["CA"]


def chains_of(pdb: str) -> tuple[Chain, ...]:
    return parse_pdb(pdb.encode()).chains


def compared(predicted: Sequence[Chain], reference: Sequence[Chain]) -> ComplexComparison:
    found = compare_complexes(predicted, reference)
    assert found is not None
    return found


def noisy(chain: Chain, size: float, seed: int) -> Chain:
    points = chain.atom_positions + size * np.random.default_rng(seed).normal(size=chain.atom_positions.shape)
    return replace(chain, atom_positions=(points * chain.atom_mask[..., None]).astype(np.float32))


def agree(name: str, data: Path) -> None:
    """RMSDs of DockQ are computed in single precision."""
    true = true_complex(name, data)
    found, expected = compared(chains_of(made_prediction(name, true)), chains_of(true)), CASES["made"][name]["dockq"]
    assert dict(found.chains) == expected["chains"]
    assert found.dockq == pytest.approx(expected["mean"], abs=1e-5)
    assert ["".join(each.reference_chains) for each in found.interfaces] == list(expected["interfaces"])
    for each in found.interfaces:
        theirs = expected["interfaces"]["".join(each.reference_chains)]
        assert each.native_contacts == theirs["nat_total"]
        assert each.fnat == pytest.approx(theirs["fnat"], abs=1e-6)
        assert (each.irms, each.lrms) == pytest.approx((theirs["iRMSD"], theirs["LRMSD"]), rel=1e-4)
        assert each.dockq == pytest.approx(theirs["DockQ"], abs=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_small_complexes_score_as_with_dockq(name: str) -> None:
    agree(name, NOWHERE)


# The largest ones take minutes; others are like them.
TIERS: dict[str, Any] = dict.fromkeys(("1hv4", "3l4q", "7qpd", "8efu"), pytest.mark.long)
TIERS |= dict.fromkeys(("1k6p", "2q2k", "4lup", "5mtn", "5zng"), ())  # unit tests


@pytest.mark.parametrize("name", [pytest.param(name, marks=TIERS.get(name, pytest.mark.integration)) for name in REAL])
def test_real_complexes_score_as_with_dockq(name: str, real_data: Path) -> None:
    agree(name, real_data)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "hairpins" else pytest.mark.integration) for name in SMALL]
)
def test_a_complex_is_itself_wherever_it_lies_and_however_its_chains_are_ordered(name: str) -> None:
    true = chains_of(true_complex(name, NOWHERE))
    turn = rotation(np.array([3.0, 1.0, 2.0]), 1.3)
    moved = [replace(chain, atom_positions=(chain.atom_positions @ turn.T + 9).astype(np.float32)) for chain in true]
    orders = list(permutations(range(len(true))))
    for order in orders[:: -(-len(orders) // 6)]:  # six at most
        found = compared([moved[number] for number in order], true)
        assert found.dockq == pytest.approx(1, abs=1e-6)
        assert (found.tm_score, found.interface_lddt) == pytest.approx((1, 1), abs=1e-6)
        assert found.rmsd == pytest.approx(0, abs=1e-4)
        assert {each.capri for each in found.interfaces} == {"high"}


@pytest.mark.parametrize("is_reference", [True, False])
def test_a_third_of_each_chain_is_found_in_the_whole_one(is_reference: bool) -> None:
    """Chains are the same protein by the residues of the shorter one."""
    whole = chains_of(true_complex("hairpins", NOWHERE))
    pieces = [chosen(chain, np.arange(len(chain.sequence)) < len(chain.sequence) // 3) for chain in whole]
    found = compared(whole, pieces) if is_reference else compared(pieces, whole)
    assert len(found.chains) == 2
    assert found.rmsd == pytest.approx(0, abs=1e-4)


def test_neither_order_nor_names_of_predicted_chains_matter() -> None:
    true = chains_of(true_complex("unlike", NOWHERE))
    predicted = chains_of(made_prediction("unlike", true_complex("unlike", NOWHERE)))
    found = compared(predicted, true)
    renamed = {chain.name: f"{chain.name}x" for chain in predicted}
    again = compared([replace(chain, name=renamed[chain.name]) for chain in predicted[::-1]], true)
    assert again.chains == tuple((theirs, renamed[ours]) for theirs, ours in found.chains)
    assert (again.dockq, again.tm_score, again.interface_lddt) == pytest.approx(
        (found.dockq, found.tm_score, found.interface_lddt)
    )


@pytest.mark.integration
def test_many_equal_chains_are_assigned_by_superposition(monkeypatch: pytest.MonkeyPatch) -> None:
    true = symmetric(("helix_short",), 9, 20.0)
    order = np.random.default_rng(5).permutation(9).tolist()
    predicted = [noisy(true[number], 0.5, number) for number in order]
    # Nine chains have 362,880 assignments.
    found = compared(predicted, true)
    ring = {(theirs, ours) for theirs, ours in found.chains}
    names = [chain.name for chain in true]
    # Any turn of the ring is a good one.
    turns = [{(names[(k + turn) % 9], names[k]) for k in range(9)} for turn in range(9)]
    assert ring in turns
    assert found.dockq is not None
    assert found.dockq > 0.7
    monkeypatch.setattr(complexes, "_MAX_ASSIGNMENTS", 0)
    for name in SMALL:
        pdb = true_complex(name, NOWHERE)
        few = compared(chains_of(made_prediction(name, pdb)), chains_of(pdb))
        assert few.dockq == pytest.approx(CASES["made"][name]["dockq"]["mean"], abs=1e-5)


def test_superposing_one_chain_assigns_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complexes.ChainMapping, "_improved", lambda _, assignment: assignment)
    monkeypatch.setattr(complexes, "_MAX_ASSIGNMENTS", 0)
    rng = np.random.default_rng(3)
    (chain,) = symmetric(("helix_short",), 1, 0.0)
    true = []
    for number in range(8):
        turned = chain.atom_positions @ rotation(rng.normal(size=3), 2.0).T + 60 * rng.normal(size=3)
        true.append(replace(chain, name=str(number), atom_positions=turned.astype(np.float32)))
    turn = rotation(np.array([1.0, 5.0, 2.0]), 0.9)
    moved = [replace(each, atom_positions=(each.atom_positions @ turn.T + 70).astype(np.float32)) for each in true]
    found = compared([noisy(moved[number], 0.3, number) for number in rng.permutation(8).tolist()], true)
    assert all(theirs == ours for theirs, ours in found.chains)


@pytest.mark.integration
def test_the_assignment_has_the_largest_dockq_though_another_has_a_smaller_rmsd() -> None:
    rng = np.random.default_rng(0)
    differ = 0
    for _ in range(10):
        # Neighbours along a bent line touch, and predicted chains are turned and moved at random.
        (first, second) = symmetric(("helix_long",), 2, 5.0)
        turned = second.atom_positions @ rotation(np.array([0.0, 0.0, 1.0]), 1.0) + np.array([9.0, 4.0, 6.0])
        true = [first, second, replace(second, name="C", atom_positions=turned.astype(np.float32))]
        predicted = [
            replace(
                chain,
                atom_positions=(
                    chain.atom_positions @ rotation(rng.normal(size=3), 0.5 * rng.random()).T + 4 * rng.normal(size=3)
                ).astype(np.float32),
            )
            for chain in true
        ]
        totals, rmsds = {}, {}
        for order in permutations(range(3)):
            pairings = [paired(predicted[ours], chain) for ours, chain in zip(order, true, strict=True)]
            totals[order] = sum(
                dockq(pairings[one], pairings[other], native_interface(true[one], true[other])).dockq
                for one, other in combinations(range(3), 2)
            )
            points = np.concatenate([predicted[ours].atom_positions[:, CA] for ours in order])
            rmsds[order] = rmsd(points, np.concatenate([chain.atom_positions[:, CA] for chain in true]))
        assert compared(predicted, true).dockq == pytest.approx(max(totals.values()) / 3, abs=1e-6)
        differ += totals[min(rmsds, key=rmsds.__getitem__)] < max(totals.values()) - 1e-6
    assert differ


def test_exchanging_chains_improves_an_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complexes, "_MAX_ASSIGNMENTS", 0)
    wrong = {0: 1, 1: 0, 2: 2, 3: 3}
    monkeypatch.setattr(complexes, "_superposed", lambda _: [wrong])
    true = symmetric(("helix_short",), 3, 12.0)
    true.append(replace(noisy(true[0], 0, 0), name="D", atom_positions=true[0].atom_positions + np.float32(6)))
    found = compared([noisy(chain, 0.1, number) for number, chain in enumerate(true)], true)
    assert found.dockq is not None
    assert found.dockq > 0.9


def test_chains_that_are_not_predicted_are_left_out() -> None:
    true = chains_of(true_complex("helices", NOWHERE))
    found = compared(true[:2], true)
    assert (len(found.chains), found.reference_chains, len(found.interfaces)) == (2, 3, 1)
    assert found.dockq == pytest.approx(1)
    assert found.residues == sum(len(chain.aatype) for chain in true[:2])
    # And predicted chains that are not known.
    found = compared(true, true[1:])
    assert (len(found.chains), found.reference_chains) == (2, 2)
    assert found.dockq == pytest.approx(1)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_fewer_equal_chains_stand_for_those_that_lie_alike(order: tuple[int, int]) -> None:
    """Either the prediction or the reference has two of three equal chains, which lie unlike the other pairs."""
    (first, second) = symmetric(("helix_long",), 2, 5.0)
    turned = second.atom_positions @ rotation(np.array([0.0, 0.0, 1.0]), 1.0) + np.array([9.0, 4.0, 6.0])
    three = [first, second, replace(second, name="C", atom_positions=turned.astype(np.float32))]
    two = [replace(three[number], name=f"{three[number].name}x") for number in order]
    for found, names in (
        (compared(two, three), {"B": "Bx", "C": "Cx"}),
        (compared(three, two), {"Bx": "B", "Cx": "C"}),
    ):
        assert dict(found.chains) == names
        assert (found.dockq, found.tm_score) == pytest.approx((1, 1), abs=1e-5)


def test_missing_residues_count_as_missed_contacts() -> None:
    true = chains_of(true_complex("hairpins", NOWHERE))
    half = chosen(true[0], np.arange(len(true[0].aatype)) < 16)
    found = compared([half, true[1]], true)
    (interface,) = found.interfaces
    assert 0 < interface.fnat < 0.9
    assert interface.irms == pytest.approx(0, abs=1e-4)
    assert found.compared < found.residues
    assert found.tm_score == pytest.approx(found.compared / found.residues, abs=1e-4)
    assert 0 < interface.lddt < 1


def test_the_tm_score_is_that_of_all_chains_together() -> None:
    true = chains_of(true_complex("helices", NOWHERE))
    predicted = [noisy(chain, 0.8, number) for number, chain in enumerate(true)]
    found = compared(predicted, true)
    # Each third of a turn is as good an assignment.
    by_name = {chain.name: chain for chain in predicted}
    points = np.concatenate([by_name[ours].atom_positions[:, CA] for _, ours in found.chains])
    known = np.concatenate([chain.atom_positions[:, CA] for chain in true])
    expected = superposed_scores(points, known)
    assert (found.tm_score, found.rmsd) == pytest.approx((expected.tm_score, expected.rmsd))


def test_interface_lddt_counts_distances_between_chains_only() -> None:
    true = chains_of(true_complex("hairpins", NOWHERE))
    predicted = [noisy(chain, 0.7, number) for number, chain in enumerate(true)]
    there = [chain.atom_mask > 0 for chain in true]
    known = [chain.atom_positions[has].astype(np.float64) for chain, has in zip(true, there, strict=True)]
    points = [chain.atom_positions[has].astype(np.float64) for chain, has in zip(predicted, there, strict=True)]
    far = [np.sqrt(np.square(each[0][:, None] - each[1]).sum(-1)) for each in (known, points)]
    inside = far[0] < 15
    off = np.abs(far[0] - far[1])[inside]
    expected = np.mean([(off < limit).mean() for limit in (0.5, 1, 2, 4)])
    found = compared(predicted, true)
    assert found.interface_lddt == pytest.approx(expected, abs=0.01)
    assert found.interfaces[0].lddt == found.interface_lddt
    # Moving a chain as a whole spoils it, though each chain remains as it was.
    turned = replace(true[0], atom_positions=true[0].atom_positions @ rotation(np.ones(3), 2.0).T.astype(np.float32))
    assert (compared([turned, true[1]], true).interface_lddt or 0) < expected / 2


def test_interface_lddt_of_uneven_chains_is_that_of_loops() -> None:
    """Over all atoms that the prediction has or lacks, for each interface and for all chains together."""
    reference = uneven_chains("DABC", seed=6)
    # No residue with atoms that have two names, which the choice of names is tested for elsewhere.
    reference = [without_residues(each, *(k for k, x in enumerate(each.sequence) if x in "DEFY")) for each in reference]
    predicted = [displaced(chain, 0.4, seed) for seed, chain in enumerate(reference)]
    found = compared([without_residues(predicted[0], 4), *predicted[1:]], reference)
    assert dict(found.chains) == dict(zip("DABC", "DABC", strict=True))
    atoms = []
    for number, (chain, own) in enumerate(zip(reference, predicted, strict=True)):
        for row, slot in np.argwhere(chain.atom_mask > 0).tolist():
            if ATOM37_MASK[chain.aatype[row], slot]:
                there = (number, row) != (0, 4)
                atoms.append(
                    (number, chain.atom_positions[row, slot], own.atom_positions[row, slot] if there else None)
                )
    kept: dict[tuple[int, int], list[float]] = {}
    for (one, here, ours), (other, there, theirs) in combinations(atoms, 2):
        distance = math.dist(here, there)
        if one == other or distance >= 15:
            continue
        off = math.inf if ours is None or theirs is None else abs(math.dist(ours, theirs) - distance)
        kept.setdefault((one, other), []).append(sum(off < limit for limit in (0.5, 1, 2, 4)) / 4)
    every = [share for shares in kept.values() for share in shares]
    assert found.interface_lddt == pytest.approx(sum(every) / len(every), abs=1e-6)
    assert len(found.interfaces) >= 4
    for each in found.interfaces:
        key = tuple("DABC".index(name) for name in each.reference_chains)
        assert each.lddt == pytest.approx(sum(kept[key]) / len(kept[key]), abs=1e-6)
    assert found.residues == sum(len(chain.sequence) for chain in reference)
    assert found.compared == found.residues - 1


def test_chains_without_contacts_have_no_dockq() -> None:
    first, second = symmetric(("helix_short",), 2, 100.0)
    # Else exchanging them would be as good.
    true = [first, replace(second, atom_positions=second.atom_positions + np.array([0, 0, 40], np.float32))]
    found = compared(true[::-1], true)
    assert (found.dockq, found.interface_lddt, found.interfaces) == (None, None, ())
    assert found.chains == (("A", "A"), ("B", "B"))


def test_what_is_no_complex_is_not_compared_as_one() -> None:
    true = chains_of(true_complex("unlike", NOWHERE))
    assert compare_complexes(true[:1], true) is None
    assert compare_complexes(true, true[:1]) is None
    other = symmetric(("polyproline",), 2, 10.0)
    assert compare_complexes(other, true) is None


@pytest.mark.parametrize(
    ("fnat", "irms", "lrms", "capri"),
    [
        (0.5, 1.0, 9.0, "high"),
        (0.6, 3.0, 1.0, "high"),
        (0.49, 0.5, 0.5, "medium"),
        (0.9, 1.1, 1.1, "medium"),
        (0.3, 2.0, 6.0, "medium"),
        (0.3, 2.1, 5.1, "acceptable"),
        (0.9, 3.0, 8.0, "acceptable"),
        (0.1, 4.0, 11.0, "acceptable"),
        (0.09, 0.5, 0.5, "incorrect"),
        (0.9, 4.1, 10.1, "incorrect"),
        (0.0, float("inf"), float("inf"), "incorrect"),
    ],
)
def test_classes_are_those_of_capri(fnat: float, irms: float, lrms: float, capri: str) -> None:
    quality = DockQ(native_contacts=10, fnat=fnat, irms=irms, lrms=lrms)
    assert quality.capri == capri
    assert fnat / 3 <= quality.dockq <= (fnat + 2) / 3
