"""DockQ and its parts are those of loops over their definitions, on chains that differ in everything."""

import math
from dataclasses import replace
from itertools import combinations, permutations, product

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from data_pipeline.residues import ATOM_ORDER
from data_pipeline.structure import Chain
from helixfold.analysis.complexes import ChainMapping, compare_complexes
from helixfold.analysis.dockq import dockq, native_interface
from helixfold.analysis.residues import Pairing
from tests.analysis.uneven_chains import displaced, uneven_chains, without_backbone, without_residues

BACKBONE = [ATOM_ORDER[name] for name in ("N", "CA", "C", "O")]


def shortest(one: Chain, row: int, other: Chain, column: int) -> float:
    """The least distance between heavy atoms of two residues, infinite without atoms."""
    ends = [
        [
            point
            for point, there in zip(chain.atom_positions[place].tolist(), chain.atom_mask[place], strict=True)
            if there
        ]
        for chain, place in ((one, row), (other, column))
    ]
    return min((math.dist(*pair) for pair in product(*ends)), default=math.inf)


def shared(predicted: Chain, reference: Chain, place: list[int]) -> dict[int, int]:
    """Residues of the reference with C-alpha in both structures and a type that agrees, and where they are predicted.

    An unknown residue agrees with any.
    """
    ca = ATOM_ORDER["CA"]
    return {
        row: column
        for row, column in enumerate(place)
        if column >= 0
        and reference.atom_mask[row, ca]
        and predicted.atom_mask[column, ca]
        and (
            reference.sequence[row] == predicted.sequence[column]
            or "X" in (reference.sequence[row], predicted.sequence[column])
        )
    }


def backbone(
    predicted: Chain, reference: Chain, residues: dict[int, int]
) -> tuple[list[list[float]], list[list[float]]]:
    """Positions of the backbone atoms that both structures have in these residues."""
    ours, true = [], []
    for row, column in sorted(residues.items()):
        for atom in BACKBONE:
            if predicted.atom_mask[column, atom] and reference.atom_mask[row, atom]:
                ours.append(predicted.atom_positions[column, atom].tolist())
                true.append(reference.atom_positions[row, atom].tolist())
    return ours, true


def deviation_of(points: np.ndarray, true: np.ndarray) -> float:
    return float(np.sqrt(np.mean([math.dist(a, b) ** 2 for a, b in zip(points.tolist(), true.tolist(), strict=True)])))


def superposed_on(aligned: tuple[list, list], scored: tuple[list, list]) -> float:
    """The deviation of some points under the best superposition of others, which SciPy finds."""
    x, y = (np.array(each) for each in aligned)
    turn, _ = Rotation.align_vectors(y - y.mean(0), x - x.mean(0))
    return deviation_of(turn.apply(np.array(scored[0]) - x.mean(0)) + y.mean(0), np.array(scored[1]))


def by_loops(
    predicted: tuple[Chain, Chain], reference: tuple[Chain, Chain], places: tuple[list[int], list[int]]
) -> dict[str, float]:
    """Basu & Wallner 2016: fnat, the interface's RMSD, and that of the shorter chain with the longer one superposed."""
    common = [shared(*each) for each in zip(predicted, reference, places, strict=True)]
    contacts = kept = 0
    inside: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for row, column in product(range(len(reference[0].sequence)), range(len(reference[1].sequence))):
        near = shortest(reference[0], row, reference[1], column)
        both = row in common[0] and column in common[1]
        contacts += near < 5
        if near < 5 and both:
            kept += shortest(predicted[0], common[0][row], predicted[1], common[1][column]) < 5
        if near < 10 and both:
            inside[0][row], inside[1][column] = common[0][row], common[1][column]
    parts = [backbone(*each) for each in zip(predicted, reference, inside, strict=True)]
    interface = parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
    chains = [backbone(*each) for each in zip(predicted, reference, common, strict=True)]
    sizes = [sum(bool(row.any()) for row in chain.atom_mask) for chain in reference]
    receptor, ligand = (0, 1) if sizes[0] > sizes[1] else (1, 0)
    irms, lrms = superposed_on(interface, interface), superposed_on(chains[receptor], chains[ligand])
    fnat = kept / contacts
    score = (fnat + 1 / (1 + (irms / 1.5) ** 2) + 1 / (1 + (lrms / 8.5) ** 2)) / 3
    return {"native_contacts": contacts, "fnat": fnat, "irms": irms, "lrms": lrms, "dockq": score}


def paired_by(predicted: Chain, reference: Chain, place: list[int]) -> Pairing:
    return Pairing(predicted=predicted, reference=reference, place=np.array(place))


@pytest.mark.parametrize(
    ("names", "size"), [("AB", 0.6), ("BA", 0.6), ("DB", 1.0), ("BD", 0.3), ("BC", 0.6), ("CB", 2.0)]
)
def test_all_parts_are_those_of_loops_whichever_chain_is_longer(names: str, size: float) -> None:
    reference = uneven_chains(names, seed=5)
    # A residue without backbone, one that was not predicted, and one of another type.
    reference[0] = without_backbone(reference[0], 3)
    predicted = [displaced(chain, size, seed) for seed, chain in enumerate(reference)]
    predicted[1] = without_residues(predicted[1], 2, 5)
    letters = list(predicted[0].sequence)
    aatype = predicted[0].aatype.copy()
    # An unknown residue is predicted with a type, and a known one without.
    for row in np.flatnonzero(aatype == 20).tolist():
        letters[row], aatype[row] = "A", 0
    letters[4], aatype[4] = "W", 17
    letters[5], aatype[5] = "X", 20
    predicted[0] = replace(predicted[0], sequence="".join(letters), aatype=aatype)
    second = [row - (row > 2) - (row > 5) if row not in (2, 5) else -1 for row in range(len(reference[1].sequence))]
    places = list(range(len(reference[0].sequence))), second
    expected = by_loops(tuple(predicted), tuple(reference), places)
    pairings = [paired_by(*each) for each in zip(predicted, reference, places, strict=True)]
    found = dockq(*pairings, native_interface(*reference))
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected, rel=1e-5)
    assert expected["native_contacts"] > 3
    assert 0 < expected["fnat"] < 1
    # The other chain's deviation differs, so that the choice of the ligand counts.
    other = by_loops(tuple(predicted[::-1]), tuple(reference[::-1]), places[::-1])
    assert (other["lrms"] == pytest.approx(expected["lrms"])) == (
        len(reference[0].sequence) != len(reference[1].sequence)
    )


def test_the_best_of_all_assignments_is_found_and_its_scores_are_those_of_loops() -> None:
    """Chains B and C are equal; the prediction has them under each other's names, and all chains in another order."""
    reference = uneven_chains("ABCD", seed=2)
    rng = np.random.default_rng(1)
    turn = Rotation.from_rotvec([0.3, -1.0, 2.0])

    def moved(chain: Chain, name: str, seed: int) -> Chain:
        noisy = displaced(chain, 0.5, seed)
        points = turn.apply(noisy.atom_positions.reshape(-1, 3)).reshape(-1, 37, 3) + np.array([50.0, -20, 7])
        return replace(noisy, name=name, atom_positions=(points * noisy.atom_mask[..., None]).astype(np.float32))

    named = zip(reference, ("A", "C", "B", "D"), strict=True)
    predicted = [moved(chain, name, seed) for seed, (chain, name) in enumerate(named)]
    predicted = [predicted[number] for number in rng.permutation(4).tolist()]
    found = compare_complexes(predicted, reference)
    assert found is not None
    assert dict(found.chains) == {"A": "A", "B": "C", "C": "B", "D": "D"}
    ours = {chain.name: chain for chain in predicted}
    totals = {}
    for order in permutations("BC"):
        names = dict(zip("ABCD", ("A", *order, "D"), strict=True))
        totals[order] = {}
        for one, other in combinations(reference, 2):
            pair = ours[names[one.name]], ours[names[other.name]]
            places = list(range(len(one.sequence))), list(range(len(other.sequence)))
            if any(shortest(one, i, other, j) < 5 for i in places[0] for j in places[1]):
                totals[order][one.name, other.name] = by_loops(pair, (one, other), places)
    best = max(totals, key=lambda order: sum(each["dockq"] for each in totals[order].values()))
    assert best == ("C", "B")
    assert [each.reference_chains for each in found.interfaces] == list(totals[best])
    for each in found.interfaces:
        expected = totals[best][each.reference_chains]
        assert {name: getattr(each, name) for name in expected} == pytest.approx(expected, rel=1e-5)
    assert found.dockq == pytest.approx(np.mean([each["dockq"] for each in totals[best].values()]), rel=1e-5)


def test_superposing_chains_and_trying_all_assignments_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first chain of the reference is not the only one that can anchor the others."""
    reference = uneven_chains("BCAD", seed=8)
    predicted = [displaced(chain, 0.4, seed) for seed, chain in enumerate(reference)][::-1]
    tried = ChainMapping(predicted, reference)
    monkeypatch.setattr("helixfold.analysis.complexes._MAX_ASSIGNMENTS", 0)
    nearest = ChainMapping(predicted, reference)
    for found in (tried, nearest):
        assert {number: each.predicted.name for number, each in found.pairings.items()} == dict(enumerate("BCAD"))
    assert list(nearest.interfaces) == list(tried.interfaces) == list(combinations(range(4), 2))
