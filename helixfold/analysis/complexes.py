"""Score a predicted complex against an experimental structure: DockQ, interface lDDT and TM-score of the complex.

Predicted chains are first assigned to reference chains. Chains of equal sequence are interchangeable, so the assignment
with the largest sum of DockQ over the interfaces of the reference is used. All assignments are tried if they are few.
Otherwise each predicted chain is superposed on each similar chain, the nearest chains are assigned to each other (Kuhn
1955), and the best of these assignments is improved by exchanging chains as long as the sum grows. An `Assignment` maps
indices of reference chains to indices of predicted chains.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations, product
from math import perm, prod

import numpy as np
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from data_pipeline.residues import ATOM_ORDER
from data_pipeline.structure import Chain
from helixfold.analysis.dockq import CapriClass, DockQ, dockq, native_interface
from helixfold.analysis.metrics import Superposition, interface_lddt, rmsd, superposed_scores, superposition
from helixfold.analysis.residues import MIN_EQUAL, MIN_RESIDUES, Pairing, best_pairing, paired
from helixfold.analysis.scores import HeavyAtoms, Scores, compared, heavy_atoms, placed

_CA = ATOM_ORDER["CA"]
# Maximum number of assignments for an exhaustive search: seven equal chains.
_MAX_ASSIGNMENTS = 5040
# Sums of DockQ that differ by less than this count as equal.
_EQUAL_SUM_TOLERANCE = 1e-9
# Maximum difference of the identity of two chains to the identity of the most similar ones.
_MAX_IDENTITY_DIFFERENCE = 0.1
# Angstrom, cost of assigning chains of different proteins.
_FAR_COST = 1e6

# Index of the predicted chain for each index of a reference chain.
Assignment = Mapping[int, int]


class ChainMapping:
    """Best assignment of predicted chains to the chains of a reference.

    `pairings` are by the index of the reference chain, in order; chains without a counterpart are omitted. `interfaces`
    has the quality of each interface of two assigned reference chains in contact, by their indices.
    """

    pairings: dict[int, Pairing]
    interfaces: dict[tuple[int, int], DockQ]

    def __init__(self, predicted: Sequence[Chain], reference: Sequence[Chain]) -> None:
        self._similar = _similar_chains(predicted, reference)
        # Interfaces by the indices of the reference chains.
        self._native = {
            (one, other): native
            for one, other in combinations(sorted({theirs for theirs, _ in self._similar}), 2)
            if (native := native_interface(reference[one], reference[other])).contact.any()
        }
        self._quality = cache(self._interface_quality)
        assignment = self._best()
        self.pairings = {theirs: self._similar[theirs, ours] for theirs, ours in sorted(assignment.items())}
        self.interfaces = self._interfaces(assignment)

    def _best(self) -> Assignment:
        """Return the best assignment; with too many possible ones, improve the best of several superpositions."""
        groups = _groups(self._similar)
        if prod(perm(max(map(len, group)), min(map(len, group))) for group in groups) <= _MAX_ASSIGNMENTS:
            return self._best_of([self._only_similar(each) for each in _all_assignments(groups)])
        return self._improved(self._best_of([self._only_similar(each) for each in _superposed(self._similar)]))

    def _best_of(self, assignments: Sequence[Assignment]) -> Assignment:
        """Return the assignment with the largest total; if equal, with the most chains, then the smallest RMSD."""
        totals = [self._total(each) for each in assignments]
        best = [
            each for each, total in zip(assignments, totals, strict=True) if total > max(totals) - _EQUAL_SUM_TOLERANCE
        ]
        return min(best, key=lambda each: (-len(each), self._rmsd(each))) if len(best) > 1 else best[0]

    def _only_similar(self, assignment: Assignment) -> Assignment:
        """Return the pairs of an assignment whose chains are similar."""
        return {theirs: ours for theirs, ours in assignment.items() if (theirs, ours) in self._similar}

    def _improved(self, assignment: Assignment) -> Assignment:
        """Improve an assignment by exchanging pairs of chains as long as the sum of DockQ grows."""
        best, total = assignment, self._total(assignment)
        while True:
            swaps = [
                {**best, one: best[other], other: best[one]}
                for one, other in combinations(best, 2)
                if (one, best[other]) in self._similar and (other, best[one]) in self._similar
            ]
            totals = [self._total(each) for each in swaps]
            if not swaps or max(totals) <= total + _EQUAL_SUM_TOLERANCE:
                return best
            total = max(totals)
            best = swaps[totals.index(total)]

    def _total(self, assignment: Assignment) -> float:
        """Return the sum of DockQ of the native interfaces."""
        return sum(quality.dockq for quality in self._interfaces(assignment).values())

    def _interfaces(self, assignment: Assignment) -> dict[tuple[int, int], DockQ]:
        """Return the DockQ of each native interface whose two chains are both assigned."""
        return {
            (one, other): self._quality(one, assignment[one], other, assignment[other])
            for one, other in self._native
            if one in assignment and other in assignment
        }

    def _interface_quality(self, one: int, ours: int, other: int, other_ours: int) -> DockQ:
        """Return DockQ of two reference chains and their predicted chains `ours` and `other_ours`, all as indices."""
        return dockq(self._similar[one, ours], self._similar[other, other_ours], self._native[one, other])

    def _rmsd(self, assignment: Assignment) -> float:
        """Return the C-alpha RMSD (Angstrom) of all assigned chains in one superposition; 0 without chains."""
        points = [_common(self._similar[key]) for key in assignment.items()]
        return rmsd(*(np.concatenate(side) for side in zip(*points, strict=True))) if points else 0.0


def _superposed(pairings: Mapping[tuple[int, int], Pairing]) -> list[Assignment]:
    """Return the assignments of nearest chains after superposing each predicted chain on each similar chain."""
    keys = np.array(list(pairings))
    moments = [_Moments.of(pairing) for pairing in pairings.values()]
    x, y, products = (np.array([getattr(each, name) for each in moments]) for name in ("x", "y", "products"))
    squares = np.array([each.squares for each in moments])
    assignments: dict[tuple[tuple[int, int], ...], Assignment] = {}
    for anchor in pairings.values():
        move = superposition(*_common(anchor))
        # Expanded mean of |R x + t - y|^2.
        squared = squares + move.shift @ move.shift + 2 * (x @ move.rotation.T - y) @ move.shift
        squared -= 2 * np.einsum("n a b, a b -> n", products, move.rotation)
        costs = np.full(keys.max(0) + 1, _FAR_COST)
        costs[keys[:, 0], keys[:, 1]] = np.sqrt(np.maximum(squared, 0))
        rows, columns = linear_sum_assignment(costs)
        assignment = dict(zip(rows.tolist(), columns.tolist(), strict=True))
        assignments.setdefault(tuple(assignment.items()), assignment)
    return list(assignments.values())


@dataclass(frozen=True, kw_only=True)
class _Moments:
    """Means over the common C-alpha atoms of two chains, predicted (x) and true (y)."""

    x: Float[np.ndarray, "3"]
    y: Float[np.ndarray, "3"]
    products: Float[np.ndarray, "3 3"]  # y x^T
    squares: float  # |x|^2 + |y|^2

    @classmethod
    def of(cls, pairing: Pairing) -> "_Moments":
        x, y = (points.astype(np.float64) for points in _common(pairing))
        return cls(
            x=x.mean(0),
            y=y.mean(0),
            products=y.T @ x / len(x),
            squares=float((np.square(x) + np.square(y)).sum(-1).mean()),
        )


def _similar_chains(predicted: Sequence[Chain], reference: Sequence[Chain]) -> dict[tuple[int, int], Pairing]:
    """Return the pairings of chains of the same protein, by the indices of the reference and the predicted chain.

    Related chains, such as the two kinds in haemoglobin, are paired only without a more similar chain.
    """
    similar = {}
    for (theirs, reference_chain), (ours, chain) in product(enumerate(reference), enumerate(predicted)):
        pairing = paired(chain, reference_chain)
        shorter = min(int(pairing.observed.sum()), int((chain.atom_mask[:, _CA] > 0).sum()))
        if int(pairing.both.sum()) >= MIN_RESIDUES and pairing.equal >= MIN_EQUAL * shorter:
            similar[theirs, ours] = pairing
    best = [
        {index: max(each.identity for key, each in similar.items() if key[side] == index) for index in indices}
        for side, indices in enumerate(({key[0] for key in similar}, {key[1] for key in similar}))
    ]
    return {
        key: pairing
        for key, pairing in similar.items()
        if all(pairing.identity >= best[side][key[side]] - _MAX_IDENTITY_DIFFERENCE for side in range(2))
    }


def _groups(pairings: Mapping[tuple[int, int], Pairing]) -> list[tuple[set[int], set[int]]]:
    """Return groups of interchangeable chains: their indices in the reference and in the prediction."""
    groups: list[tuple[set[int], set[int]]] = []
    for theirs, ours in pairings:
        joined = [group for group in groups if theirs in group[0] or ours in group[1]]
        groups = [group for group in groups if group not in joined]
        groups.append(({theirs}.union(*(group[0] for group in joined)), {ours}.union(*(group[1] for group in joined))))
    return groups


def _all_assignments(groups: Sequence[tuple[set[int], set[int]]]) -> Iterator[Assignment]:
    """Yield all assignments within the groups, each of the maximum number of chains."""
    for parts in product(*(list(_within(sorted(theirs), sorted(ours))) for theirs, ours in groups)):
        yield {their: our for part in parts for their, our in part}


def _within(theirs: Sequence[int], ours: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield the pairs (theirs, ours) for each way to give all members of the shorter list a different partner."""
    if len(ours) >= len(theirs):
        for selection in permutations(ours, len(theirs)):
            yield list(zip(theirs, selection, strict=True))
    else:
        for selection in permutations(theirs, len(ours)):
            yield list(zip(selection, ours, strict=True))


def _common(pairing: Pairing) -> tuple[np.ndarray, np.ndarray]:
    """Return predicted and true positions (Angstrom) of the common C-alpha atoms."""
    both = pairing.both
    return pairing.predicted.atom_positions[pairing.place[both], _CA], pairing.reference.atom_positions[both, _CA]


@dataclass(frozen=True, kw_only=True)
class InterfaceComparison:
    """Quality of one interface of the reference in the prediction; see `DockQ`.

    Chains are names, `irms` and `lrms` are in Å. `lddt` is over distances between heavy atoms of the two chains, 0 to
    1.
    """

    reference_chains: tuple[str, str]
    predicted_chains: tuple[str, str]
    native_contacts: int
    fnat: float  # 0 to 1
    irms: float  # Angstrom
    lrms: float  # Angstrom
    dockq: float  # 0 to 1
    capri: CapriClass
    lddt: float  # 0 to 1, over distances between heavy atoms of the two chains


@dataclass(frozen=True, kw_only=True)
class ComplexComparison:
    """Scores of a predicted complex over the reference chains that it has.

    `chains` are pairs of names in the reference and in the prediction, and `reference_chains` is the number of all
    protein chains of the reference. `residues` counts residues with C-alpha in reference chains with a predicted chain,
    and `compared` those with C-alpha in the prediction too. `dockq` is the mean over the interfaces, and
    `interface_lddt` is over all distances between chains; None without any. `tm_score` is of all chains under one
    superposition, normalised by `residues`, and `rmsd` (Å) of C-alpha atoms.
    """

    chains: tuple[tuple[str, str], ...]  # names in the reference and in the prediction
    reference_chains: int  # all protein chains of the reference
    residues: int  # with C-alpha, in reference chains with a predicted chain
    compared: int  # of these residues, with C-alpha in the prediction
    dockq: float | None  # mean over the interfaces; None if there are none
    interface_lddt: float | None  # over all distances between chains; None without distances up to 15 Angstrom
    tm_score: float  # of all chains under one superposition, normalised by `residues`
    rmsd: float  # Angstrom, of C-alpha
    interfaces: tuple[InterfaceComparison, ...]


def compare_complexes(predicted: Sequence[Chain], reference: Sequence[Chain]) -> ComplexComparison | None:
    """Return the scores of a predicted complex; None unless at least two of its chains are in the reference."""
    if len(predicted) < 2 or len(reference) < 2:
        return None
    mapping = ChainMapping(predicted, reference)
    pairings = mapping.pairings
    if len(pairings) < 2:
        return None
    atoms = {index: heavy_atoms(pairing) for index, pairing in pairings.items()}
    interfaces = tuple(
        InterfaceComparison(
            reference_chains=(pairings[one].reference.name, pairings[other].reference.name),
            predicted_chains=(pairings[one].predicted.name, pairings[other].predicted.name),
            native_contacts=quality.native_contacts,
            fnat=quality.fnat,
            irms=quality.irms,
            lrms=quality.lrms,
            dockq=quality.dockq,
            capri=quality.capri,
            lddt=_lddt_between([atoms[one], atoms[other]]) or 0.0,
        )
        for (one, other), quality in mapping.interfaces.items()
    )
    residues = sum(int(pairing.observed.sum()) for pairing in pairings.values())
    superposed = superposed_scores(
        np.concatenate([each.predicted.atom_positions[each.place[each.both], _CA] for each in pairings.values()]),
        np.concatenate([each.reference.atom_positions[each.both, _CA] for each in pairings.values()]),
        length=residues,
    )
    return ComplexComparison(
        chains=tuple((each.reference.name, each.predicted.name) for each in pairings.values()),
        reference_chains=len(reference),
        residues=residues,
        compared=sum(int(pairing.both.sum()) for pairing in pairings.values()),
        dockq=float(np.mean([each.dockq for each in interfaces])) if interfaces else None,
        interface_lddt=_lddt_between(list(atoms.values())),
        tm_score=superposed.tm_score,
        rmsd=superposed.rmsd,
        interfaces=interfaces,
    )


def superposition_on(predicted: Sequence[Chain], reference: Sequence[Chain]) -> Superposition:
    """Return the motion that puts the prediction on the reference with the min RMSD of C-alpha atoms.

    All chains that both structures have count; with fewer than two, the most similar chains count. Raise
    `ComparisonError` if fewer than three residues can be paired.
    """
    common = map(_common, _pairings(predicted, reference))
    moved, fixed = (np.concatenate(points) for points in zip(*common, strict=True))
    return superposition(moved, fixed)


def alpha_carbons(predicted: Sequence[Chain], reference: Sequence[Chain]) -> Float[np.ndarray, "2 r 3"]:
    """Return the C-alpha atoms (Å) of all predicted residues, and of the reference's residues paired with them.

    Axis `r` is the residues of all predicted chains in order. Both are NaN for residues that one of the structures
    lacks. Raise `ComparisonError` as `superposition_on` does.
    """
    first = np.cumsum([0, *(len(chain.aatype) for chain in predicted)])
    points = np.full((2, first[-1], 3), np.nan)
    for pairing in _pairings(predicted, reference):
        (index,) = [index for index, chain in enumerate(predicted) if chain is pairing.predicted]
        points[:, first[index] + pairing.place[pairing.both]] = _common(pairing)
    return points


def _pairings(predicted: Sequence[Chain], reference: Sequence[Chain]) -> list[Pairing]:
    """Return the pairings of all chains of a complex, or of the most similar chains."""
    pairings = [*ChainMapping(predicted, reference).pairings.values()] if len(predicted) > 1 else []
    return pairings if len(pairings) > 1 else [best_pairing(tuple(predicted), tuple(reference), homologs=True)]


def scores_against(predicted: Sequence[Chain], reference: Sequence[Chain]) -> Scores | ComplexComparison:
    """Return the scores of a complex if the structures have two or more chains in common, else of the best chains.

    The best chains are the most similar ones, which may be of homologous proteins. Raise `ComparisonError` if fewer
    than three residues can be paired.
    """
    of_complex = compare_complexes(predicted, reference)
    if of_complex is not None:
        return of_complex
    return compared(best_pairing(tuple(predicted), tuple(reference), homologs=True))[0]


def _lddt_between(chains: Sequence[HeavyAtoms]) -> float | None:
    """Return the lDDT of distances between different chains; None without such distances."""
    predicted = np.concatenate([chain.predicted for chain in chains])
    true = np.concatenate([chain.true for chain in chains])
    chain_index = np.repeat(np.arange(len(chains)), [len(chain.true) for chain in chains])
    return interface_lddt(placed(predicted), true, chain_index)
