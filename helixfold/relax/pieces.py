"""Divide a structure into unbroken pieces of chains, which the force field can model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM37_MASK, ATOM_ORDER, RESTYPES, UNKNOWN
from helixfold.relax.problem import RelaxationError

_BACKBONE = [ATOM_ORDER[name] for name in ("N", "CA", "C")]
_N, _C, _CB, _OXT = (ATOM_ORDER[name] for name in ("N", "C", "CB", "OXT"))
_ALANINE, _GLYCINE = RESTYPES.index("A"), RESTYPES.index("G")
_MAX_BOND = 2.0  # Angstrom from C to N; closer neighbours are bonded whatever their residue numbers
# Angstrom, maximum distance from C to N of the ends of a cyclic chain. Minimisation can repair such a gap without
# moving the rest of the structure.
_MAX_GAP = 5.0
_MIN_RING = 3  # residues; in a smaller ring the ends would be bonded twice


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Unbroken pieces of a protein's chains, and the residue types and atoms that the force field models.

    Unknown residues are modelled as alanine, or as glycine without a C-beta. Residues without N, CA or C, and residues
    without a bonded neighbour, are not modelled.

    `residues` has the array indices of each piece, at least two. `atoms` is a mask of the modelled atoms. `starts` and
    `ends` are masks of the first and last residues of chains that are not rings. `rings` has the indices of the pieces
    that are cyclic chains.
    """

    residues: tuple[Int[np.ndarray, " _"], ...]  # two or more array indices for each piece
    aatype: Int[np.ndarray, "r"]  # the modelled residue types, 0 to 19
    atoms: Bool[np.ndarray, "r 37"]  # the modelled atoms
    ends: Bool[np.ndarray, "r"]  # true for the last residue of each chain that is not a ring; it may have OXT
    starts: Bool[np.ndarray, "r"]  # true for the first residue of each chain that is not a ring
    rings: tuple[int, ...] = ()  # indices of pieces that are cyclic chains, which have no ends

    @property
    def modelled(self) -> Bool[np.ndarray, "r"]:
        """Mask of the modelled residues."""
        return np.asarray(self.atoms.any(-1))

    def numbering(self) -> Int[np.ndarray, "r"]:
        """Return a number for each residue, which is one more than the previous one only if both are bonded.

        The bond between the ends of a ring is not counted.
        """
        bonded = np.zeros(len(self.aatype), bool)  # whether each residue is bonded to the previous one
        for piece in self.residues:
            bonded[piece[1:]] = True
        return np.cumsum(np.where(bonded, 1, 2))

    def neighbours(self, mask: Bool[np.ndarray, "r"], width: int) -> Bool[np.ndarray, "r"]:
        """Return a mask of residues extended by up to `width` residues on either side within their pieces."""
        wider = mask.copy()
        for index, piece in enumerate(self.residues):
            places = np.flatnonzero(mask[piece])[:, None] + np.arange(-width, width + 1)
            if index in self.rings:
                wider[piece[places % len(piece)]] = True
            else:
                wider[piece[places[(places >= 0) & (places < len(piece))]]] = True
        return wider

    def opened(self, *, halfway: bool) -> tuple[Int[np.ndarray, "r"], Int[np.ndarray, " rings"]]:
        """Return an order of all residues in which rings are opened, and the first residue of each ring.

        Rings are opened at their ends, or `halfway`.
        """
        order = np.arange(len(self.aatype))
        for ring in self.rings:
            piece = self.residues[ring]
            order[piece] = np.roll(piece, len(piece) // 2) if halfway else piece
        return order, order[[self.residues[ring][0] for ring in self.rings]]


def pieces_of(protein: Protein) -> Pieces:
    """Divide a protein into pieces at the ends and breaks of its chains.

    Residues of a chain are bonded if their numbers are consecutive, at any distance, or if C and N are close. Raise
    `RelaxationError` for a cyclic chain that cannot be closed.
    """
    present = protein.atom_mask > 0.5
    has_backbone = np.asarray(present[:, _BACKBONE].all(-1))
    chain = protein.chain_index
    last, first = np.ones(len(chain), bool), np.ones(len(chain), bool)
    last[:-1] = first[1:] = chain[1:] != chain[:-1]
    c_to_n = np.linalg.norm(protein.atom_positions[1:, _N] - protein.atom_positions[:-1, _C], axis=-1)
    bonded = has_backbone[1:] & has_backbone[:-1] & ~first[1:]
    bonded &= (np.diff(protein.residue_index) == 1) | (c_to_n < _MAX_BOND)
    unbroken = np.split(np.arange(len(chain)), np.flatnonzero(~bonded) + 1)
    pieces = tuple(piece for piece in unbroken if len(piece) > 1 and has_backbone[piece].all())

    aatype = np.where(protein.aatype == UNKNOWN, np.where(present[:, _CB], _ALANINE, _GLYCINE), protein.aatype)
    modelled = np.zeros(len(chain), bool)
    if pieces:
        modelled[np.concatenate(pieces)] = True
    atoms = present & (ATOM37_MASK[aatype] > 0) & modelled[:, None]
    rings = tuple(_ring(protein, pieces, chain) for chain in sorted(protein.cyclic_chains))
    for ring in rings:
        first[pieces[ring][0]] = last[pieces[ring][-1]] = False
    atoms[:, _OXT] = present[:, _OXT] & last & modelled
    return Pieces(residues=pieces, aatype=aatype, atoms=atoms, starts=first, ends=last, rings=rings)


def _ring(protein: Protein, pieces: Sequence[Int[np.ndarray, " _"]], chain: int) -> int:
    """Return the index of the piece that is a cyclic chain; raise `RelaxationError` if it cannot be closed."""
    members = np.flatnonzero(protein.chain_index == chain)
    ring = next((index for index, piece in enumerate(pieces) if np.array_equal(piece, members)), None)
    problem = f"chain {chain + 1}, which is cyclic, cannot be closed"
    if ring is None:
        raise RelaxationError(f"{problem}: it is broken, or residues lack N, CA or C")
    if len(members) < _MIN_RING:
        raise RelaxationError(f"{problem}: it has {len(members)} residues; a ring needs at least {_MIN_RING}")
    apart = float(np.linalg.norm(protein.atom_positions[members[-1], _C] - protein.atom_positions[members[0], _N]))
    if not apart <= _MAX_GAP:
        raise RelaxationError(
            f"{problem}: its ends are {apart:.1f} A apart, and a bond of 1.3 A can close at most {_MAX_GAP:g} A"
        )
    return ring
