"""Count stereochemical violations, and check whether a structure can be relaxed."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from einops import einsum
from jaxtyping import Bool, Float

from data_pipeline.residues import ATOM14_MASK, ATOM14_TO_ATOM37, ATOM_ORDER, RESTYPES
from helixfold.losses.violations import violations
from helixfold.relax.pieces import Pieces
from helixfold.relax.problem import RelaxationError

# Indices of atoms in the atom37 order; the list has the C-alpha and its three neighbours.
_AROUND_ALPHA = _N, _CA, _C, _CB = [ATOM_ORDER[name] for name in ("N", "CA", "C", "CB")]
_N14 = 0  # index of N in the atom14 order
_PROLINE = RESTYPES.index("P")
# In a folded structure most residues neither overlap nor are far from their neighbours in the chain.
_TOO_CLOSE, _TOO_FAR = 1.5, 8.0  # Angstrom between two CA; neighbours in the chain are 3.8 apart
_PEPTIDE_BOND, _MAX_DEVIATION = 1.33, 1.0  # Angstrom; length, and maximum deviation
_CROWDED_DISTANCE = 3.0  # Angstrom between two CA
_AT_ONCE = 1024  # residues whose distances to all others are computed at once
_MAX_FLAWED = 0.5  # maximum fraction of overlapping or distant residues of a structure that can be relaxed


@dataclass(frozen=True, kw_only=True)
class Flaws:
    """Numbers of residues with stereochemical violations, by AlphaFold's definitions (Suppl. Sec. 1.9.11).

    They are residues with any violation, with wrong lengths or angles of peptide bonds, with overlaps with other
    residues, and with wrong distances within the residue.
    """

    residues: int  # with any violation
    bonds: int  # with wrong lengths or angles of peptide bonds
    clashes: int  # that overlap with other residues
    within: int  # with wrong distances within the residue


def flaws(positions: Float[np.ndarray, "r 37 3"], pieces: Pieces) -> tuple[Flaws, Bool[np.ndarray, "r"]]:
    """Return the violations of a structure (Angstrom), and a mask of the residues that have any."""
    masks = _violations(positions, pieces, halfway=False)
    if pieces.rings:
        # Violations are defined for chains with two ends. Wherever a ring is opened, one of its bonds is not checked.
        masks = [one | other for one, other in zip(masks, _violations(positions, pieces, halfway=True), strict=True)]
    bonds, clashes, within = masks
    flawed = bonds | clashes | within
    counts = (int(each.sum()) for each in (flawed, bonds, clashes, within))
    return Flaws(**dict(zip(("residues", "bonds", "clashes", "within"), counts, strict=True))), flawed


def _violations(
    positions: Float[np.ndarray, "r 37 3"], pieces: Pieces, *, halfway: bool
) -> list[Bool[np.ndarray, "r"]]:
    """Return masks of the residues with wrong peptide bonds, with clashes and with wrong distances within them.

    Rings are opened at their ends, or `halfway`. The N there is omitted, because it would clash with the C to which it
    is bonded.
    """
    order, starts = pieces.opened(halfway=halfway)
    rows, aatype = order[:, None], pieces.aatype[order]
    atom37 = ATOM14_TO_ATOM37[aatype]
    exists = torch.from_numpy((pieces.atoms[rows, atom37] & (ATOM14_MASK[aatype] > 0)).astype(np.float32))
    exists[np.isin(order, starts), _N14] = 0
    outcome = violations(
        torch.from_numpy(positions[rows, atom37].astype(np.float32))[None] * exists[None, ..., None],
        exists[None],
        torch.from_numpy(aatype.astype(np.int64))[None],
        torch.from_numpy(pieces.numbering().astype(np.int64))[None],
    )
    masks = (
        outcome.connections_mask,
        outcome.clashes_mask.amax(-1),
        outcome.within_mask.amax(-1),
    )
    result = []
    for mask in masks:
        in_order = np.zeros(len(order), bool)
        in_order[order] = mask[0].numpy() > 0
        result.append(in_order)
    return result


def misplaced(
    positions: Float[np.ndarray, "r 37 3"], confidence: Float[np.ndarray, "r 37"], pieces: Pieces
) -> Bool[np.ndarray, "r"]:
    """Return a mask of residues at impossible positions, such as residues that a network puts in one place.

    Both residues of a peptide bond are misplaced if it is more than 1 Angstrom too long or too short. If the C-alphas
    of two residues that are not bonded are within 3 Angstrom, the residue with the lower `confidence` (pLDDT, from the
    B-factors) is misplaced.
    """
    result = np.zeros(len(pieces.aatype), bool)
    for piece in pieces.residues:
        off = np.linalg.norm(positions[piece[1:], _N] - positions[piece[:-1], _C], axis=-1) - _PEPTIDE_BOND
        apart = np.flatnonzero(np.abs(off) > _MAX_DEVIATION)
        result[piece[apart]] = result[piece[apart + 1]] = True
    modelled = np.flatnonzero(pieces.modelled)
    numbering = pieces.numbering()
    alpha = torch.from_numpy(positions[modelled, _CA].astype(np.float32))
    for start in range(0, len(modelled), _AT_ONCE):
        near = torch.cdist(alpha[start : start + _AT_ONCE], alpha) < _CROWDED_DISTANCE
        for first, second in zip(*(each.tolist() for each in near.nonzero(as_tuple=True)), strict=True):
            pair = modelled[[start + first, second]]
            if start + first < second and numbering[pair[1]] - numbering[pair[0]] != 1:
                result[pair[np.argmin(confidence[pair, _CA])]] = True
    return result


def mirrored(positions: Float[np.ndarray, "r 37 3"], pieces: Pieces) -> Bool[np.ndarray, "r"]:
    """Return a mask of the modelled residues that are D-amino acids, because minimisation may invert a C-alpha.

    Residues without a C-beta, such as glycines, are never in it.
    """
    nitrogen, alpha, carbon, beta = (positions[:, atom] for atom in _AROUND_ALPHA)
    volume = einsum(np.cross(nitrogen - alpha, carbon - alpha), beta - alpha, "r x, r x -> r")
    return np.asarray(pieces.atoms[:, _AROUND_ALPHA].all(-1) & (volume < 0))


def cis(positions: Float[np.ndarray, "r 37 3"], pieces: Pieces) -> Bool[np.ndarray, "r"]:
    """Return a mask of the residues, except prolines, with a cis peptide bond to the previous residue."""
    result = np.zeros(len(pieces.aatype), bool)
    for piece in pieces.residues:
        before, after = positions[piece[:-1]], positions[piece[1:]]
        ends = (before[:, _CA], before[:, _C], after[:, _N], after[:, _CA])
        first, middle, last = (end - start for start, end in pairwise(ends))
        result[piece[1:]] = einsum(np.cross(first, middle), np.cross(middle, last), "r x, r x -> r") > 0
    return np.asarray(result & (pieces.aatype != _PROLINE))


def check(positions: Float[np.ndarray, "r 37 3"], pieces: Pieces) -> None:
    """Raise `RelaxationError` for a structure that minimisation cannot repair, such as of an untrained model."""
    if not pieces.residues:
        raise RelaxationError(
            "the force field needs two consecutive residues with N, CA and C, and this structure has none"
        )
    if not np.isfinite(positions[pieces.atoms]).all():
        raise RelaxationError("its coordinates are not all finite numbers")
    ca = torch.from_numpy(positions[pieces.modelled, _CA].astype(np.float32))
    # More than one, because each residue is close to itself.
    overlapping = sum(int((torch.cdist(part, ca) < _TOO_CLOSE).sum(-1).gt(1).sum()) for part in ca.split(_AT_ONCE))
    steps = [np.linalg.norm(np.diff(positions[piece, _CA], axis=0), axis=-1) for piece in pieces.residues]
    apart = int((np.concatenate(steps) > _TOO_FAR).sum())
    for count, what in ((overlapping, "lie within another residue"), (apart, "are far from the next one")):
        if count > _MAX_FLAWED * len(ca):
            raise RelaxationError(
                f"it does not have a fold that can be relaxed: {count} of {len(ca)} residues {what}, as with untrained "
                f"parameters"
            )
