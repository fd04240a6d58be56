"""Known complexes, predictions that are made from them, and confidences as they could be; no two runs differ."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from data_pipeline.parse.gemmi_chains import parse_pdb
from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.structure import Chain, protein_from_chains
from helixfold.results.pdb import to_pdb

EXAMPLES = Path(__file__).parents[2] / "examples" / "structures"
# Symmetric complexes of the examples: copies about an axis, and their distance from it in Angstrom.
SMALL = {
    "hairpins": (("helical_hairpin",), 2, 7.0),
    "helices": (("helix_long",), 3, 6.0),
    "unlike": (("helical_hairpin", "helix_long"), 2, 10.0),
}
REAL = (
    *("0099", "1ake", "1bjp", "1exb", "1hho", "1hv4", "1k6p", "1qnh", "1sfi", "2hhb"),
    *("2plv", "2q2k", "3bzd", "3l4q", "4lup", "5mtn", "5zng", "6qwn", "7qpd", "8efu"),
)
NAMES = (*SMALL, *REAL)
_NEEDED = [ATOM_ORDER[name] for name in ("N", "CA", "C", "O", "CB")]


def true_complex(name: str, data: Path) -> str:
    """A known complex as PDB, of residues that have all backbone atoms and C-beta, with chains A, B, ..."""
    if name in SMALL:
        chains = symmetric(*SMALL[name])
    else:
        chains = [_complete(chain) for chain in read_structure(data / "mmcif" / f"{name}.cif.gz").chains]
    return to_pdb(protein_from_chains(chains))


def made_prediction(name: str, true: str) -> str:
    """The complex with chains in another order and moved, with errors, with residues missing, and with pLDDT; as PDB.

    The closer a chain is to its true place, the better the prediction: it differs from chain to chain.
    """
    rng = np.random.default_rng([NAMES.index(name), 1])
    chains = parse_pdb(true.encode()).chains
    made = [_moved(chains[number], rng) for number in rng.permutation(len(chains)).tolist()]
    return to_pdb(protein_from_chains(made))


def made_confidences(name: str, predicted: str) -> tuple[np.ndarray, np.ndarray]:
    """PAE (Angstrom, with one digit) and pLDDT (with two) of a prediction."""
    rng = np.random.default_rng([NAMES.index(name), 2])
    chains = parse_pdb(predicted.encode()).chains
    points = np.concatenate([chain.atom_positions[:, ATOM_ORDER["CA"]] for chain in chains])
    number = np.repeat(np.arange(len(chains)), [len(chain.aatype) for chain in chains])
    # Some pairs of chains are placed with confidence, others are not.
    worse = rng.choice([0.0, 3.0, 8.0, 15.0], size=(len(chains), len(chains)), p=[0.4, 0.2, 0.2, 0.2])
    distances = np.sqrt(np.square(points[:, None] - points[None]).sum(-1))
    errors = 0.8 + 0.08 * distances + worse[number[:, None], number] * (number[:, None] != number)
    errors = errors * rng.uniform(0.6, 1.5, errors.shape)
    plddt = np.concatenate([chain.b_factors[:, ATOM_ORDER["CA"]] for chain in chains])
    return np.clip(errors, 0.2, 31.7).round(1).astype(np.float64), plddt.astype(np.float64).round(2)


def symmetric(names: tuple[str, ...], copies: int, radius: float) -> list[Chain]:
    """Chains of the examples about the z-axis; those of different names lie above each other."""
    chains = []
    for turn in range(copies):
        for level, name in enumerate(names):
            chain = _complete(read_structure(EXAMPLES / f"{name}.pdb").chains[0])
            there = chain.atom_mask > 0
            points = chain.atom_positions - chain.atom_positions[there].mean(0) + np.array([radius, 0, 9.0 * level])
            points = points @ rotation(np.array([0.0, 0.0, 1.0]), 2 * np.pi * turn / copies).T
            chains.append(
                replace(
                    chain,
                    name="ABCDEFGHIJKLMNOPQRSTUVWXYZ"[len(chains)],
                    atom_positions=np.where(there[..., None], points, 0).astype(np.float32),
                )
            )
    return chains


def rotation(axis: np.ndarray, angle: float) -> np.ndarray:
    """The rotation about an axis by an angle in radians."""
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.asarray(np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross)


def chosen(chain: Chain, residues: np.ndarray) -> Chain:
    """The chain with the residues of a mask only, numbered from 1."""
    rows = np.flatnonzero(residues)
    return replace(
        chain,
        sequence="".join(chain.sequence[row] for row in rows),
        aatype=chain.aatype[rows],
        atom_positions=chain.atom_positions[rows],
        atom_mask=chain.atom_mask[rows],
        b_factors=chain.b_factors[rows],
        observed=chain.observed[rows],
        residue_names=tuple(chain.residue_names[row] for row in rows),
        residue_numbers=np.arange(1, len(rows) + 1),
        insertion_codes=(" ",) * len(rows),
    )


def _moved(chain: Chain, rng: np.random.Generator) -> Chain:
    size = rng.choice([0.0, 0.3, 1.0, 4.0], p=[0.3, 0.3, 0.3, 0.1])
    axis = rng.normal(size=3)
    angle = np.radians(8.0 * size) * rng.uniform(0.5, 1)
    there = chain.atom_mask > 0
    centre = chain.atom_positions[there].mean(0)
    points = (chain.atom_positions - centre) @ rotation(axis, angle).T + centre + size * rng.normal(size=3)
    points += rng.normal(size=points.shape) * rng.choice([0.2, 0.6])
    plddt = np.clip(95 - 10 * size - 12 * np.abs(rng.normal(size=(len(points), 1))), 20, 99).round(2)
    made = replace(
        chain,
        atom_positions=np.where(there[..., None], points, 0).astype(np.float32),
        b_factors=(plddt * there).astype(np.float32),
    )
    if len(points) < 40 or rng.random() < 0.5:
        return made
    # An end that was not predicted. DockQ aligns a last residue of the chain's last type with the end of the chain.
    length = len(points) - int(rng.integers(1, 12))
    while made.sequence[length - 1] == made.sequence[-1]:
        length -= 1
    return chosen(made, np.arange(len(points)) < length)


def _complete(chain: Chain) -> Chain:
    has = chain.atom_mask[:, _NEEDED] > 0
    has[:, -1] |= np.array([letter == "G" for letter in chain.sequence])
    return chosen(chain, has.all(1) & np.array([letter != "X" for letter in chain.sequence]))
