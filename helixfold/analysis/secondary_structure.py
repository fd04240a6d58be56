"""Assign secondary structure by hydrogen bonds of the backbone, as DSSP does (Kabsch & Sander 1983).

`HELIX`, `STRAND` and `LOOP` are its letters.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.protein import Protein
from data_pipeline.residues import RESTYPES

HELIX, STRAND, LOOP = "H", "E", "-"
# kcal/mol: the charges of N-H and C=O times Coulomb's constant, and the largest energy of a hydrogen bond.
_CHARGES, _BOND_ENERGY = 0.084 * 332, -0.5
_MIN_DISTANCE = 0.5  # Angstrom; closer atoms count as bonded
_MAX_PEPTIDE_BOND = 2.5  # Angstrom, the longest
_PROLINE = RESTYPES.index("P")
# Residues by which two bridges of a ladder may be apart on one strand and on the other; more than 1 is a bulge.
_MAX_SHORT_STEP, _MAX_LONG_STEP = 2, 5


def secondary_structure(protein: Protein) -> str:
    """Return a letter for each residue: H (helices of any kind, DSSP's H, G and I), E (strands), or a dash.

    Single bridges and residues without a complete backbone are a dash.
    """
    n, ca, c, o = (protein.positions_of(name).astype(np.float64) for name in ("N", "CA", "C", "O"))
    has_backbone = np.isfinite(np.concatenate([n, ca, c, o], -1)).all(-1)
    follows = np.zeros(len(n), bool)  # is bonded to the residue before
    follows[1:] = (np.linalg.norm(n[1:] - c[:-1], axis=-1) < _MAX_PEPTIDE_BOND) & has_backbone[1:] & has_backbone[:-1]
    follows[1:] &= protein.chain_index[1:] == protein.chain_index[:-1]
    segment = np.cumsum(~follows)
    bonds = _hydrogen_bonds(n, c, o, follows & (protein.aatype != _PROLINE), has_backbone)
    letters = np.full(len(n), LOOP)
    letters[_strands(bonds, segment)] = STRAND
    for turn in (4, 3, 5):
        starts = _turns(bonds, segment, turn)
        for first in np.flatnonzero(starts[1:] & starts[:-1]) + 1:
            inside = slice(first, first + turn)
            # Helices of four residues a turn win over strands; others only fill what is free.
            if turn == 4 or (letters[inside] != STRAND).all():
                letters[inside] = HELIX
    return "".join(letters.tolist())


def _hydrogen_bonds(
    n: Float[np.ndarray, "r 3"],
    c: Float[np.ndarray, "r 3"],
    o: Float[np.ndarray, "r 3"],
    donates: Bool[np.ndarray, "r"],
    accepts: Bool[np.ndarray, "r"],
) -> Bool[np.ndarray, "r r"]:
    """Return whether C=O of residue i accepts a hydrogen bond from N-H of residue j."""
    carbonyl = c - o
    hydrogen = np.full_like(n, np.nan)
    hydrogen[1:] = n[1:] + carbonyl[:-1] / np.linalg.norm(carbonyl[:-1], axis=-1, keepdims=True)

    def inverse(acceptor: np.ndarray, donor: np.ndarray) -> np.ndarray:
        distances = np.linalg.norm(acceptor[:, None] - donor, axis=-1)
        return np.asarray(1 / np.maximum(distances, _MIN_DISTANCE))

    energy = _CHARGES * (inverse(o, n) + inverse(c, hydrogen) - inverse(o, hydrogen) - inverse(c, n))
    apart = np.subtract.outer(np.arange(len(n)), np.arange(len(n)))
    # A residue does not bond itself, or its own peptide bond.
    return (energy < _BOND_ENERGY) & accepts[:, None] & donates & (apart != 0) & (apart != -1)


def _turns(bonds: Bool[np.ndarray, "r r"], segment: Int[np.ndarray, "r"], turn: int) -> Bool[np.ndarray, "r"]:
    """Return which residues i accept a bond from i + turn, with no break of the chain between."""
    starts = np.zeros(len(bonds), bool)
    first = np.arange(max(0, len(bonds) - turn))
    starts[first] = bonds[first, first + turn] & (segment[first] == segment[first + turn])
    return starts


def _strands(bonds: Bool[np.ndarray, "r r"], segment: Int[np.ndarray, "r"]) -> Bool[np.ndarray, "r"]:
    """Return which residues are in ladders of two bridges or more; single bridges are loops."""
    size = len(bonds)
    is_strand = np.zeros(size, bool)
    if size < 3:
        return is_strand
    has_neighbours = np.zeros(size, bool)  # has both neighbours
    has_neighbours[1:-1] = (segment[2:] == segment[1:-1]) & (segment[:-2] == segment[1:-1])
    padded = np.pad(bonds, 1)

    def at(first: int, second: int) -> np.ndarray:
        """Return bonds of residues at these offsets from each pair."""
        return padded[1 + first : size + 1 + first, 1 + second : size + 1 + second]

    parallel = (at(-1, 0) & at(0, 1).T) | (at(-1, 0).T & at(0, 1))
    antiparallel = (bonds & bonds.T) | (at(-1, 1) & at(-1, 1).T)
    apart = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    allowed = has_neighbours[:, None] & has_neighbours & ((apart > 2) | (segment[:, None] != segment))
    for bridges, direction in ((parallel, 1), (antiparallel, -1)):
        pairs = np.argwhere(bridges & allowed & (np.tri(size, dtype=bool).T))
        steps = pairs[None] - pairs[:, None]
        along, across = steps[..., 0], direction * steps[..., 1]
        is_next = (along > 0) & (across > 0) & (np.minimum(along, across) <= _MAX_SHORT_STEP)
        is_next &= np.maximum(along, across) <= _MAX_LONG_STEP
        for first, second in np.argwhere(is_next):
            for start, end in zip(pairs[first], pairs[second], strict=True):
                if segment[start] == segment[end]:
                    is_strand[min(start, end) : max(start, end) + 1] = True
    return is_strand
