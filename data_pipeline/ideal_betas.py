"""C-beta atoms of residues that have none, where alanine has it."""

import numpy as np
from jaxtyping import Float

from data_pipeline.residue_geometry import IDEAL_ATOMS
from data_pipeline.residues import ATOM_ORDER

_N, _CA, _C, _CB = (ATOM_ORDER[name] for name in ("N", "CA", "C", "CB"))
# Where alanine has its C-beta: Angstrom from C-alpha, along C-alpha to C, towards N, and out of their plane.
_IDEAL_BETA = np.array(next(position for name, _, *position in IDEAL_ATOMS["ALA"] if name == "CB"))


def with_ideal_betas(
    positions: Float[np.ndarray, "r 37 3"], mask: Float[np.ndarray, "r 37"]
) -> tuple[Float[np.ndarray, "r 37 3"], Float[np.ndarray, "r 37"]]:
    """Return atoms and their mask with a C-beta, where alanine has it, for residues that have only the backbone."""
    alpha = positions[:, _CA].astype(np.float64)
    along = _unit(positions[:, _C] - alpha)
    towards = positions[:, _N] - alpha
    towards = _unit(towards - (towards * along).sum(-1, keepdims=True) * along)
    axes = np.stack([along, towards, np.cross(along, towards)], axis=1)
    beta = alpha + np.einsum("a, r a c -> r c", _IDEAL_BETA, axes)
    missing = (mask[:, _CB] == 0) & (mask[:, [_N, _CA, _C]] > 0).all(-1)
    positions, mask = positions.copy(), mask.copy()
    positions[missing, _CB], mask[missing, _CB] = beta[missing], 1
    return positions, mask


def _unit(vectors: Float[np.ndarray, "r 3"]) -> Float[np.ndarray, "r 3"]:
    lengths: np.ndarray = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-8))
