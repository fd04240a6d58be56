"""Permutation alignment: assign each predicted chain to one of several equal true chains.

Chains of the same sequence are interchangeable, so the loss of a prediction must not depend on their order.
AlphaFold-Multimer (Evans et al. 2022), Suppl. Sec. 7.3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import permutations, product
from math import perm, prod

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from data_pipeline.features.assembly import ChainNumbers
from data_pipeline.features.ground_truth import ATOM14_ALTERNATIVE
from data_pipeline.residues import ATOM_ORDER, RESTYPES
from helixfold.losses.labels import ComplexLabels, Labels
from helixfold.model.batch import MultimerBatch
from helixfold.model.geometry.tables import per_residue
from helixfold.model.outputs import PredictedStructure

_CA, _CB = ATOM_ORDER["CA"], ATOM_ORDER["CB"]
_GLYCINE = RESTYPES.index("G")
# Maximum number of assignments for an exhaustive search: two sequences with four chains each.
_MAX_ASSIGNMENTS = 576
# Mean squared deviations that differ by less than this, relative or in square Angstrom, count as equal. The choice then
# does not depend on rounding, which differs between numbers of devices.
_RELATIVE_TIE, _TIE = 1e-5, 1e-6
# Minimum number of observed C-alphas of an assignment, relative to the maximum; otherwise missing atoms would be best.
_MIN_OBSERVED = 0.5


@torch.no_grad()
def permuted_labels(structure: PredictedStructure, batch: MultimerBatch, labels: ComplexLabels) -> Labels:
    """Return labels in which each chain has the true atoms of the equal chain that fits the prediction best.

    The best assignment has the lowest RMSD of all C-alphas after superposition. The host waits for the predicted
    C-alphas if any chain has a copy. If none has, or if a predicted C-alpha is not finite, chains keep their own truth.
    """
    if labels.copies_mask.shape[1] == 1:
        return labels.of_own_chains()
    if structure.positions.is_meta:
        # Any assignment takes the same memory and work.
        return _with_copies(labels, torch.zeros_like(labels.aatype))
    predicted, truth = (
        positions[..., _CA, :].cpu().numpy() for positions in (structure.positions, labels.copies_positions)
    )
    if not np.isfinite(predicted).all():
        # The training step will be skipped.
        return labels.of_own_chains()
    observed = labels.copies_mask[..., _CA].cpu().numpy() > 0
    names = [field.name for field in fields(ChainNumbers)]
    numbers = {name: getattr(batch, name).cpu().numpy() for name in names}
    copies = np.stack(
        [
            best_copies(*sample, ChainNumbers(**{name: numbers[name][index] for name in names}))
            for index, sample in enumerate(zip(predicted, truth, observed, strict=True))
        ]
    )
    return _with_copies(labels, torch.from_numpy(copies).to(labels.aatype.device))


def best_copies(
    predicted: Float[np.ndarray, "r 3"],
    truth: Float[np.ndarray, "k r 3"],
    observed: Bool[np.ndarray, "k r"],
    numbers: ChainNumbers,
) -> Int[np.ndarray, "r"]:
    """Return for each residue the index, from 0, of the copy of its chain in the best assignment of chains.

    `truth` has the C-alphas of each residue in every copy of its chain, in Angstrom; residues of chain number 0 are
    padding. All assignments are tried if they are few. Otherwise each chain of the sequence with the fewest copies is
    superposed on each copy, and the nearest chains are then assigned to each other.
    """
    residues = [np.flatnonzero(numbers.asym_id == number) for number in np.unique(numbers.asym_id) if number]
    own = [int(numbers.sym_id[each[0]]) - 1 for each in residues]
    groups: dict[int, list[int]] = {}
    for chain, each in enumerate(residues):
        groups.setdefault(int(numbers.entity_id[each[0]]), []).append(chain)
    allowed = {
        entity: _possible_copies([own[chain] for chain in chains], [observed[:, residues[chain]] for chain in chains])
        for entity, chains in groups.items()
    }
    moments = _Moments.of(predicted, truth, observed, residues)
    if prod(perm(len(allowed[entity]), len(chains)) for entity, chains in groups.items()) <= _MAX_ASSIGNMENTS:
        assignments = _all_assignments(groups, allowed)
    else:
        assignments = _anchored(groups, allowed, moments)
    best = moments.best(np.array([own, *assignments]))
    copies = np.maximum(numbers.sym_id.astype(np.int64) - 1, 0)
    for each, copy in zip(residues, best, strict=True):
        copies[each] = copy
    return copies


def _possible_copies(own: Sequence[int], observed: Sequence[Bool[np.ndarray, "k _"]]) -> list[int]:
    """Return the copies to which chains of one sequence can be assigned: their own and all with observed atoms."""
    seen = np.any([each.any(1) for each in observed], axis=0)
    return sorted({*own, *np.flatnonzero(seen).tolist()})


def _all_assignments(groups: Mapping[int, Sequence[int]], allowed: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Return all assignments, each as the copy of each chain."""
    parts = [permutations(allowed[entity], len(chains)) for entity, chains in groups.items()]
    order = np.argsort([chain for chains in groups.values() for chain in chains])
    return [[[copy for part in choice for copy in part][place] for place in order] for choice in product(*parts)]


@dataclass(frozen=True, kw_only=True)
class _Moments:
    """Sums over the observed C-alphas of each chain (c) and each copy (k), predicted (x) and true (y)."""

    count: Float[np.ndarray, "c k"]
    x: Float[np.ndarray, "c k 3"]
    y: Float[np.ndarray, "c k 3"]
    products: Float[np.ndarray, "c k 3 3"]  # y x^T
    squares: Float[np.ndarray, "c k"]  # |x|^2 + |y|^2

    @classmethod
    def of(
        cls,
        predicted: Float[np.ndarray, "r 3"],
        truth: Float[np.ndarray, "k r 3"],
        observed: Bool[np.ndarray, "k r"],
        residues: Sequence[Int[np.ndarray, "_"]],
    ) -> "_Moments":
        """Compute the sums from centred coordinates; `residues` has the indices of the residues of each chain."""
        x = predicted.astype(np.float64) - predicted.mean(0)
        y = (truth - truth[observed].mean(0) if observed.any() else truth).astype(np.float64) * observed[..., None]
        chains = [(x[each] * observed[:, each, None], y[:, each]) for each in residues]
        return cls(
            count=np.array([observed[:, each].sum(-1) for each in residues], np.float64),
            x=np.array([ours.sum(1) for ours, _ in chains]),
            y=np.array([true.sum(1) for _, true in chains]),
            products=np.array([np.einsum("k n a, k n b -> k a b", true, ours) for ours, true in chains]),
            squares=np.array([np.square(ours).sum((1, 2)) + np.square(true).sum((1, 2)) for ours, true in chains]),
        )

    def best(self, assignments: Int[np.ndarray, "p c"]) -> list[int]:
        """Return the first assignment with the lowest mean squared deviation after superposition, within the ties."""
        chains = np.arange(assignments.shape[1])
        count, x, y, products, squares = (
            getattr(self, field.name)[chains, assignments].sum(1) for field in fields(self)
        )
        counted = np.maximum(count, 1)
        covariance = products - y[..., None] * x[:, None] / counted[:, None, None]
        values, handedness = np.linalg.svd(covariance, compute_uv=False), np.sign(np.linalg.det(covariance))
        explained = values[:, 0] + values[:, 1] + np.where(handedness < 0, -1, 1) * values[:, 2]
        spread = squares - (np.square(x).sum(-1) + np.square(y).sum(-1)) / counted
        deviation = np.maximum(spread - 2 * explained, 0) / counted
        deviation[count < _MIN_OBSERVED * count.max()] = np.inf
        lowest = deviation.min()
        return [int(copy) for copy in assignments[np.argmax(deviation <= lowest * (1 + _RELATIVE_TIE) + _TIE)]]

    def superposed(self, chain: int, copy: int) -> Float[np.ndarray, "c k"]:
        """Superpose a chain on a copy and return the mean squared deviation of each chain from each copy."""
        count = max(self.count[chain, copy], 1)
        centre_x, centre_y = self.x[chain, copy] / count, self.y[chain, copy] / count
        u, _, vt = np.linalg.svd(self.products[chain, copy] - count * np.outer(centre_y, centre_x))
        rotation = u @ np.diag([1, 1, np.sign(np.linalg.det(u @ vt))]) @ vt
        shift = centre_y - rotation @ centre_x
        # Expanded sum of |R x + t - y|^2.
        total = self.squares + self.count * (shift @ shift) + 2 * (self.x @ rotation.T - self.y) @ shift
        total -= 2 * np.einsum("c k a b, a b -> c k", self.products, rotation)
        return np.maximum(total, 0) / np.maximum(self.count, 1)


def _anchored(
    groups: Mapping[int, Sequence[int]], allowed: Mapping[int, Sequence[int]], moments: _Moments
) -> list[list[int]]:
    """Return assignments of the nearest chains, after superposing chains of the sequence with the fewest copies."""
    # Differs from AlphaFold: every chain of the sequence is superposed, not a random one. Chains are assigned together
    # by their deviations (Kuhn 1955), not one after another by their centres.
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 (losses of monomers do not need SciPy)

    anchor = min(groups, key=lambda entity: (len(allowed[entity]), -moments.count[groups[entity]].sum()))
    assignments = []
    for chain, copy in product(groups[anchor], allowed[anchor]):
        costs = moments.superposed(chain, copy)
        assignment = [0] * len(moments.count)
        for entity, chains in groups.items():
            rows, columns = linear_sum_assignment(costs[np.ix_(chains, allowed[entity])])
            for row, column in zip(rows, columns, strict=True):
                assignment[chains[row]] = allowed[entity][column]
        assignments.append(assignment)
    return assignments


def _with_copies(labels: ComplexLabels, copies: Int[Tensor, "b r"]) -> Labels:
    """Return the labels with each residue's true atoms from one of the copies of its chain."""
    index = copies[:, None, :, None]
    mask = labels.copies_mask.gather(1, index.expand(-1, 1, -1, 37))[:, 0]
    positions = labels.copies_positions.gather(1, index[..., None].expand(-1, 1, -1, 37, 3))[:, 0]
    aatype, to_atom37 = labels.aatype, per_residue("ATOM14_TO_ATOM37", labels.aatype)
    exists = mask.gather(-1, to_atom37) * labels.atom14_atom_exists
    atom14 = positions.gather(-2, to_atom37[..., None].expand(*to_atom37.shape, 3)) * exists[..., None]
    other = torch.from_numpy(ATOM14_ALTERNATIVE.copy()).to(aatype.device)[aatype]
    beta = torch.where(aatype == _GLYCINE, _CA, _CB)[..., None]
    return replace(
        labels.of_own_chains(),
        all_atom_positions=positions,
        all_atom_mask=mask,
        atom14_gt_positions=atom14,
        atom14_gt_exists=exists,
        atom14_alt_gt_positions=atom14.gather(-2, other[..., None].expand(*other.shape, 3)),
        atom14_alt_gt_exists=exists.gather(-1, other),
        pseudo_beta=positions.gather(-2, beta[..., None].expand(*beta.shape, 3))[..., 0, :],
        pseudo_beta_mask=mask.gather(-1, beta)[..., 0],
    )
