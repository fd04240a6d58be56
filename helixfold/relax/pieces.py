"""Choose what of a structure the force field can be given: unbroken pieces of chains, without some residues."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM37_MASK, ATOM_ORDER, RESTYPES, UNKNOWN

_BACKBONE = [ATOM_ORDER[name] for name in ("N", "CA", "C")]
_N, _CA, _C, _CB, _OXT = (ATOM_ORDER[name] for name in ("N", "CA", "C", "CB", "OXT"))
_ALANINE, _GLYCINE = RESTYPES.index("A"), RESTYPES.index("G")
_LONGEST_BOND = 2.0  # Angstrom from C to N; neighbours in the file whose numbers do not follow are bonded up to here


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """A protein as the force field sees it.

    Unknown residues are modelled as alanine, or as glycine where they have no C-beta. A residue without N, CA and C,
    and one whose neighbours on both sides are missing, has no place in the force field: it is left out.
    """

    residues: tuple[Int[np.ndarray, " _"], ...]  # of each piece, two or more; positions in the protein's arrays
    aatype: Int[np.ndarray, "r"]  # what each residue is modelled as, 0..19
    atoms: Bool[np.ndarray, "r 37"]  # which of the protein's atoms take part
    ends: Bool[np.ndarray, "r"]  # the last residue of its chain, whose second oxygen is real
    starts: Bool[np.ndarray, "r"]  # the first residue of its chain

    @property
    def modelled(self) -> Bool[np.ndarray, "r"]:
        """Residues that take part."""
        return np.asarray(self.atoms.any(-1))

    def numbering(self) -> Int[np.ndarray, "r"]:
        """Return numbers that follow each other where, and only where, two residues are bonded."""
        bonded = np.zeros(len(self.aatype), bool)  # to the residue before
        for piece in self.residues:
            bonded[piece[1:]] = True
        return np.cumsum(np.where(bonded, 1, 2))


def pieces_of(protein: Protein) -> Pieces:
    """Cut a protein where its chains end and where they are broken.

    Residues are bonded if their numbers follow each other, however far apart they were predicted, or if their atoms
    say so.
    """
    present = protein.atom_mask > 0.5
    has_backbone = np.asarray(present[:, _BACKBONE].all(-1))
    chain = protein.chain_index
    last, first = np.ones(len(chain), bool), np.ones(len(chain), bool)
    last[:-1] = first[1:] = chain[1:] != chain[:-1]
    follows = has_backbone[1:] & has_backbone[:-1] & ~first[1:]
    to_next = np.linalg.norm(protein.atom_positions[1:, _N] - protein.atom_positions[:-1, _C], axis=-1)
    follows &= (np.diff(protein.residue_index) == 1) | (to_next < _LONGEST_BOND)
    unbroken = np.split(np.arange(len(chain)), np.flatnonzero(~follows) + 1)
    pieces = tuple(piece for piece in unbroken if len(piece) > 1 and has_backbone[piece].all())

    aatype = np.where(protein.aatype == UNKNOWN, np.where(present[:, _CB], _ALANINE, _GLYCINE), protein.aatype)
    modelled = np.zeros(len(chain), bool)
    if pieces:
        modelled[np.concatenate(pieces)] = True
    atoms = present & (ATOM37_MASK[aatype] > 0) & modelled[:, None]
    atoms[:, _OXT] = present[:, _OXT] & last & modelled
    return Pieces(residues=pieces, aatype=aatype, atoms=atoms, starts=first, ends=last)
