"""Add a C-beta atom, where alanine has it, to residues without one."""

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
    """Return copies of atoms (Å) and their mask, with an ideal C-beta in residues that have N, CA and C but no C-beta.

    Glycines get one too; other residues are unchanged.
    """
    alpha = positions[:, _CA].astype(np.float64)
    towards_c = _unit(positions[:, _C] - alpha)
    towards_n = positions[:, _N] - alpha
    towards_n = _unit(towards_n - (towards_n * towards_c).sum(-1, keepdims=True) * towards_c)
    axes = np.stack([towards_c, towards_n, np.cross(towards_c, towards_n)], axis=1)
    beta = alpha + np.einsum("a, r a c -> r c", _IDEAL_BETA, axes)
    missing = (mask[:, _CB] == 0) & (mask[:, [_N, _CA, _C]] > 0).all(-1)
    positions, mask = positions.copy(), mask.copy()
    positions[missing, _CB], mask[missing, _CB] = beta[missing], 1
    return positions, mask


def _unit(vectors: Float[np.ndarray, "r 3"]) -> Float[np.ndarray, "r 3"]:
    lengths: np.ndarray = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-8))
