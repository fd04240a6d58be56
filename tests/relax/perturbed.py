"""Real structures made worse: every atom off its place, and side chains turned into their neighbours."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from data_pipeline.parse.structures import read_structure
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER
from tests.support.residue_arrays import RESIDUE_ARRAYS

_CA, _CB = ATOM_ORDER["CA"], ATOM_ORDER["CB"]
_BACKBONE = [ATOM_ORDER[name] for name in ("N", "CA", "C", "O", "CB", "OXT")]


def native(path: Path) -> Protein:
    """The first chain of a structure file; residues are numbered from 1 along its sequence."""
    chain = read_structure(path).chains[0]
    return Protein(
        aatype=chain.aatype,
        atom_positions=chain.atom_positions,
        atom_mask=chain.atom_mask,
        residue_index=np.arange(1, len(chain.aatype) + 1),
        chain_index=np.zeros(len(chain.aatype), np.int64),
        b_factors=np.full(chain.atom_mask.shape, 87.5, np.float32) * chain.atom_mask,
    )


def perturbed(protein: Protein, *, off: float, clashes: int, overlap: float = 1.8, seed: int = 0) -> Protein:
    """Every atom displaced by `off` Angstrom (root mean square), and `clashes` side chains turned towards other atoms.

    `overlap` is how near they come, in Angstrom; no two atoms that are not bonded may be as near as 1.8.
    """
    rng = np.random.default_rng(seed)
    positions = protein.atom_positions.astype(np.float64)
    mask = protein.atom_mask > 0.5
    sidechains = mask.copy()
    sidechains[:, _BACKBONE] = False
    turnable = np.flatnonzero((sidechains.sum(-1) >= 3) & mask[:, _CB] & mask[:, _CA])
    for residue in rng.permutation(turnable)[:clashes].tolist():
        others = mask.copy()
        others[residue] = False
        turned = [
            _turned(positions[residue], sidechains[residue], angle) for angle in np.linspace(0, 2 * np.pi, 24)[1:-1]
        ]
        overlaps = [abs(_nearest(moved[sidechains[residue]], positions[others]) - overlap) for moved in turned]
        positions[residue] = turned[int(np.argmin(overlaps))]
    positions += rng.normal(size=positions.shape) * off / np.sqrt(3)
    return replace(protein, atom_positions=(positions * mask[..., None]).astype(np.float32))


def collapsed(protein: Protein, residues: range, *, off: float = 1.5, seed: int = 0) -> Protein:
    """Residues all about where the one before them is, and turned as it is, as a network may leave them."""
    rng, positions = np.random.default_rng(seed), protein.atom_positions.copy()
    axes, alpha = _frames(positions), positions[:, _CA]
    onto = residues.start - 1
    for residue in residues:
        local = (positions[residue] - alpha[residue]) @ axes[residue]
        positions[residue] = local @ axes[onto].T + alpha[onto] + off * rng.normal(size=3)
    return replace(protein, atom_positions=positions * protein.atom_mask[..., None])


def _frames(positions: np.ndarray) -> np.ndarray:
    """The axes of each residue, as columns: to its C, to its N at a right angle, and across both."""
    to_c, to_n = (positions[:, ATOM_ORDER[name]] - positions[:, _CA] for name in ("C", "N"))
    first = to_c / np.linalg.norm(to_c, axis=-1, keepdims=True)
    second = to_n - (to_n * first).sum(-1, keepdims=True) * first
    second /= np.linalg.norm(second, axis=-1, keepdims=True)
    return np.stack([first, second, np.cross(first, second)], -1)


def part(protein: Protein, chosen: slice | np.ndarray) -> Protein:
    """Some residues of a protein."""
    return Protein(**{name: getattr(protein, name)[chosen] for name in RESIDUE_ARRAYS})


def _turned(atoms: np.ndarray, sidechain: np.ndarray, angle: float) -> np.ndarray:
    """The side chain turned about the bond from C-alpha to C-beta (Rodrigues' formula)."""
    axis = atoms[_CB] - atoms[_CA]
    axis /= np.linalg.norm(axis)
    arm = atoms[sidechain] - atoms[_CB]
    found = atoms.copy()
    found[sidechain] = atoms[_CB] + (
        arm * np.cos(angle) + np.cross(axis, arm) * np.sin(angle) + axis * (arm @ axis)[:, None] * (1 - np.cos(angle))
    )
    return found


def _nearest(one: np.ndarray, others: np.ndarray) -> float:
    return float(np.linalg.norm(one[:, None] - others, axis=-1).min())
