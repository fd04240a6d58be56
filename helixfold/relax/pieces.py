"""Division of a structure into unbroken pieces of chains, which the force field can model."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM37_MASK, ATOM_ORDER, RESTYPES, UNKNOWN

_BACKBONE = [ATOM_ORDER[name] for name in ("N", "CA", "C")]
_N, _C, _CB, _OXT = (ATOM_ORDER[name] for name in ("N", "C", "CB", "OXT"))
_ALANINE, _GLYCINE = RESTYPES.index("A"), RESTYPES.index("G")
_LONGEST_BOND = 2.0  # Angstrom from C to N; up to here neighbours are bonded whatever their residue numbers are


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """The unbroken pieces of a protein's chains, and the residue types and atoms that the force field models.

    Unknown residues are modelled as alanine, or as glycine if they have no C-beta. Residues without N, CA or C, and
    residues without a bonded neighbour, are left out.
    """

    residues: tuple[Int[np.ndarray, " _"], ...]  # two or more array indices for each piece
    aatype: Int[np.ndarray, "r"]  # the modelled residue types, 0 to 19
    atoms: Bool[np.ndarray, "r 37"]  # the modelled atoms
    ends: Bool[np.ndarray, "r"]  # the last residue of each chain, which may have OXT
    starts: Bool[np.ndarray, "r"]  # the first residue of each chain

    @property
    def modelled(self) -> Bool[np.ndarray, "r"]:
        """Mask of the modelled residues."""
        return np.asarray(self.atoms.any(-1))

    def numbering(self) -> Int[np.ndarray, "r"]:
        """Return residue numbers that are consecutive exactly where two residues are bonded."""
        bonded = np.zeros(len(self.aatype), bool)  # whether each residue is bonded to the one before
        for piece in self.residues:
            bonded[piece[1:]] = True
        return np.cumsum(np.where(bonded, 1, 2))


def pieces_of(protein: Protein) -> Pieces:
    """Return the pieces of a protein, divided where its chains end or are broken.

    Residues of a chain are bonded if their numbers are consecutive, whatever their distance, or if C and N are close.
    """
    present = protein.atom_mask > 0.5
    has_backbone = np.asarray(present[:, _BACKBONE].all(-1))
    chain = protein.chain_index
    last, first = np.ones(len(chain), bool), np.ones(len(chain), bool)
    last[:-1] = first[1:] = chain[1:] != chain[:-1]
    c_to_n = np.linalg.norm(protein.atom_positions[1:, _N] - protein.atom_positions[:-1, _C], axis=-1)
    bonded = has_backbone[1:] & has_backbone[:-1] & ~first[1:]
    bonded &= (np.diff(protein.residue_index) == 1) | (c_to_n < _LONGEST_BOND)
    unbroken = np.split(np.arange(len(chain)), np.flatnonzero(~bonded) + 1)
    pieces = tuple(piece for piece in unbroken if len(piece) > 1 and has_backbone[piece].all())

    aatype = np.where(protein.aatype == UNKNOWN, np.where(present[:, _CB], _ALANINE, _GLYCINE), protein.aatype)
    modelled = np.zeros(len(chain), bool)
    if pieces:
        modelled[np.concatenate(pieces)] = True
    atoms = present & (ATOM37_MASK[aatype] > 0) & modelled[:, None]
    atoms[:, _OXT] = present[:, _OXT] & last & modelled
    return Pieces(residues=pieces, aatype=aatype, atoms=atoms, starts=first, ends=last)
