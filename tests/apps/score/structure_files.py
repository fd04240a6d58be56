"""Small structures to score, with C-beta atoms, and a little of lysine's side chain."""

from pathlib import Path

import numpy as np

from data_pipeline.features.sequence import aatype_from_sequence
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER, RESTYPES
from helixfold.results.pdb import to_pdb

SEQUENCE = "MKTGYIAKQRQISF"
_BACKBONE = [ATOM_ORDER[name] for name in ("N", "CA", "C", "O", "CB")]
_LYSINE, _GLYCINE = (RESTYPES.index(letter) for letter in "KG")


def protein(*sequences: str, seed: int = 0, noise: float = 0.0) -> Protein:
    """Chains along random walks beside each other, with `noise` in Angstrom and B-factors that can be pLDDT."""
    rng, moved = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    residues = sum(map(len, sequences))
    chain_index = np.repeat(np.arange(len(sequences)), [len(each) for each in sequences])
    steps = rng.normal(0, 1, (residues, 3))
    alpha = np.cumsum(3.8 * steps / np.linalg.norm(steps, axis=-1, keepdims=True), 0) + 6 * chain_index[:, None]
    positions = np.zeros((residues, 37, 3), np.float32)
    positions[:] = alpha[:, None] + rng.normal(0, 0.9, (residues, 37, 3))
    positions[:, ATOM_ORDER["CA"]] = alpha
    aatype = aatype_from_sequence("".join(sequences))
    mask = np.zeros((residues, 37), np.float32)
    mask[:, _BACKBONE] = 1
    mask[aatype == _GLYCINE, ATOM_ORDER["CB"]] = 0
    mask[aatype == _LYSINE, ATOM_ORDER["CG"]] = 1
    positions += moved.normal(0, 1, positions.shape).astype(np.float32) * noise
    return Protein(
        aatype=aatype,
        atom_positions=positions * mask[..., None],
        atom_mask=mask,
        residue_index=np.concatenate([np.arange(1, len(each) + 1) for each in sequences]),
        chain_index=chain_index,
        b_factors=np.linspace(40, 90, residues)[:, None] * mask,
    )


def write(path: Path, *sequences: str, seed: int = 0, noise: float = 0.0) -> Path:
    """A PDB file of such chains, named A, B and so on."""
    made = protein(*(sequences or (SEQUENCE,)), seed=seed, noise=noise)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_pdb(made, chain_ids=tuple("ABCDEF"[: max(1, len(sequences))])))
    return path
