"""Count what is wrong with a structure's geometry, and refuse structures that no force field should be given."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float

from data_pipeline.residues import ATOM14_MASK, ATOM14_TO_ATOM37, ATOM_ORDER
from helixfold.losses.violations import violations
from helixfold.relax.pieces import Pieces
from helixfold.relax.problem import RelaxationError

_CA = ATOM_ORDER["CA"]
# Of a structure that has any fold at all, few residues lie within each other or far from their neighbours.
_TOO_CLOSE, _TOO_FAR = 1.5, 8.0  # Angstrom between two CA; neighbours in the chain are 3.8 apart
_MOST_FLAWED = 0.25  # of the residues


@dataclass(frozen=True, kw_only=True)
class Flaws:
    """Numbers of residues that break the rules of chemistry, by AlphaFold's definitions (Suppl. Sec. 1.9.11)."""

    residues: int  # any of the following
    bonds: int  # lengths and angles of peptide bonds
    clashes: int  # overlap with atoms of other residues
    within: int  # lengths, angles and overlaps inside a residue


def flaws(positions: Float[np.ndarray, "r 37 3"], pieces: Pieces) -> tuple[Flaws, Bool[np.ndarray, "r"]]:
    """Return the flaws of these atoms (Angstrom), and in which residues they are."""
    rows = np.arange(len(positions))[:, None]
    atom37 = ATOM14_TO_ATOM37[pieces.aatype]
    exists = torch.from_numpy((pieces.atoms[rows, atom37] & (ATOM14_MASK[pieces.aatype] > 0)).astype(np.float32))
    found = violations(
        torch.from_numpy(positions[rows, atom37].astype(np.float32))[None] * exists[None, ..., None],
        exists[None],
        torch.from_numpy(pieces.aatype.astype(np.int64))[None],
        torch.from_numpy(pieces.numbering().astype(np.int64))[None],
        torch.from_numpy(pieces.modelled.astype(np.float32))[None],
    )
    counted = Flaws(
        residues=int(found.residues_mask.sum()),
        bonds=int(found.connections_mask.sum()),
        clashes=int(found.clashes_mask.amax(-1).sum()),
        within=int(found.within_mask.amax(-1).sum()),
    )
    return counted, found.residues_mask[0].numpy() > 0


def check(positions: Float[np.ndarray, "r 37 3"], pieces: Pieces) -> None:
    """Refuse what minimisation would end in nonsense or not at all, such as what an untrained model folds."""
    if not pieces.residues:
        raise RelaxationError(
            "the force field needs two residues in a row with N, CA and C, and this structure has nowhere that many"
        )
    if not np.isfinite(positions[pieces.atoms]).all():
        raise RelaxationError("its coordinates are not all finite numbers")
    ca = torch.from_numpy(positions[pieces.modelled, _CA].astype(np.float32))
    within = sum(
        int((torch.cdist(some, ca) < _TOO_CLOSE).sum(-1).gt(1).sum()) for some in ca.split(1024)
    )  # each residue is near itself
    steps = [np.linalg.norm(np.diff(positions[piece, _CA], axis=0), axis=-1) for piece in pieces.residues]
    apart = int((np.concatenate(steps) > _TOO_FAR).sum())
    for count, what in ((within, "lie within another residue"), (apart, "are far from the next one")):
        if count > _MOST_FLAWED * len(ca):
            raise RelaxationError(
                f"it is no fold that could be relaxed: {count} of {len(ca)} residues {what}, as with untrained "
                f"parameters"
            )
