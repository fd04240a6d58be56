"""A complex with unusual chain names, residue numbers and residues, as plain records and as a prediction.

Tests compare files with the records. Masked slots of the arrays hold positions within another chain, so that code
which reads them fails.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from data_pipeline.protein import Hydrogens, Protein
from helixfold.folding.prediction import Distances, Prediction, PredictionIdentity

NAMES = (
    *("ALA", "ARG", "ASN", "ASP", "CYS", "GLN", "GLU", "GLY", "HIS", "ILE", "LEU", "LYS", "MET", "PHE", "PRO", "SER"),
    *("THR", "TRP", "TYR", "VAL", "UNK"),
)
LETTERS = dict(zip(NAMES, "ARNDCQEGHILKMFPSTWYVX", strict=True))
SLOTS = {"N": 0, "CA": 1, "C": 2, "CB": 3, "O": 4, "CG": 5, "SG": 10, "NE1": 24}
BACKBONE, WITH_BETA = ("N", "CA", "C", "O"), ("N", "CA", "C", "CB", "O")
MODEL = "model_1_multimer_v3"

Point = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Residue:
    """A residue of a chain; `atoms` has the atoms of the structure, in the order of files."""

    chain: str
    number: int
    name: str
    atoms: dict[str, Point]
    plddt: float

    @property
    def beta(self) -> Point | None:
        """C-beta, or C-alpha of glycine."""
        return self.atoms.get("CA" if self.name == "GLY" else "CB")


# Numbers begin at 0, with a gap; at 1; twice as in other chains; below 0. Equal chains are not neighbours.
_CHAINS: tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...] = (
    ("H", (0, 1, 2, 3, 5), ("GLY", "ALA", "TRP", "SER", "GLY")),
    ("L", tuple(range(1, 10)), ("UNK", "LEU", "GLY", "MET", "LYS", "ALA", "VAL", "ILE", "PHE")),
    ("h", (3, 4, 5, 6, 7), ("GLY", "ALA", "TRP", "SER", "GLY")),
    ("2", tuple(range(-2, 5)), ("ARG", "ASP", "GLU", "GLY", "HIS", "CYS", "UNK")),
)
# Residues that lack atoms, by chain and residue number.
_ATOMS = {
    ("L", 1): (),
    ("2", 4): (),
    ("L", 6): ("CA",),
    ("2", -1): BACKBONE,
    ("2", 0): ("N", "C", "CB", "O"),
    ("2", 3): (*WITH_BETA, "SG"),
    ("h", 5): (*WITH_BETA, "CG", "NE1"),
}
# The limits of the bands of pLDDT, on both sides; no two residues have the same.
_PLDDT = (
    *(100.0, 90.0, 89.99, 70.0, 69.99, 50.0, 49.99, 0.0, 33.25, 95.5, 61.0, 77.75, 12.5, 88.0, 91.25, 55.5),
    *(42.0, 73.25, 99.0, 64.75, 81.0, 5.25, 58.0, 97.25, 71.5, 36.0),
)
_SHIFTS = {"N": (-1.2, 0.3, 0.0), "CA": (0.0, 0.0, 0.0), "C": (1.3, 0.2, 0.1), "CB": (0.1, 1.4, 0.6)}
_SHIFTS |= {"O": (1.6, -0.9, 0.4), "CG": (0.2, 2.7, 1.1), "SG": (0.3, 2.9, 0.9), "NE1": (0.4, 3.3, 2.2)}


def residues() -> list[Residue]:
    """The residues of all chains; the first three chains lie side by side, and the fourth is away from them."""
    records: list[Residue] = []
    for row, (chain, numbers, names) in enumerate(_CHAINS):
        for place, (number, name) in enumerate(zip(numbers, names, strict=True)):
            usual = BACKBONE if name == "GLY" else WITH_BETA
            x, y, z = 3.8 * place + 0.311 * row, (0.0, 6.3, 13.1, 60.0)[row], 0.07 * len(records)
            atoms = {
                atom: (round(x + dx, 3), round(y + dy, 3), round(z + dz, 3))
                for atom in _ATOMS.get((chain, number), usual)
                for dx, dy, dz in [_SHIFTS[atom]]
            }
            records.append(Residue(chain=chain, number=number, name=name, atoms=atoms, plddt=_PLDDT[len(records)]))
    return records


def chain_names() -> tuple[str, ...]:
    return tuple(chain for chain, _, _ in _CHAINS)


def protein(*, moved: float = 0.0, cyclic: frozenset[int] = frozenset()) -> Protein:
    """The residues as arrays, moved by `moved` Å along z."""
    every = residues()
    count = len(every)
    # Masked atoms would have contacts with the middle of the first two chains.
    positions = np.tile(np.array([7.0, 3.0, 1.0], np.float32), (count, 37, 1))
    mask, b_factors = np.zeros((count, 37), np.float32), np.full((count, 37), 1.5, np.float32)
    for place, residue in enumerate(every):
        for atom, (x, y, z) in residue.atoms.items():
            positions[place, SLOTS[atom]] = x, y, z + moved
            mask[place, SLOTS[atom]] = 1
            b_factors[place, SLOTS[atom]] = residue.plddt
    return Protein(
        aatype=np.array([NAMES.index(residue.name) for residue in every]),
        atom_positions=positions,
        atom_mask=mask,
        residue_index=np.array([residue.number for residue in every]),
        chain_index=np.array([chain_names().index(residue.chain) for residue in every]),
        b_factors=b_factors,
        cyclic_chains=cyclic,
    )


def pae() -> np.ndarray:
    """Errors in tenths of an Angstrom; row i, column j is far from row j, column i."""
    places = np.arange(len(residues()))
    errors = ((places[:, None] * 31 + places * 7 + 3) % 297 + 2) / 10
    errors[places, places] = 0.2
    return errors.astype(np.float32)


TM_BY_CHAIN = np.array(
    [[0.91, 0.52, 0.33, 0.14], [0.25, 0.86, 0.47, 0.08], [0.39, 0.61, 0.72, 0.11], [0.19, 0.03, 0.28, 0.67]]
)


def prediction(model: str = MODEL, **values: Any) -> Prediction:
    """The prediction; its confidence in distances differs between the two directions of a pair."""
    count = len(residues())
    places = np.arange(count)
    defaults: dict[str, Any] = {
        "name": model,
        "identity": PredictionIdentity(model=model),
        "structure": protein(),
        "plddt": np.array([residue.plddt for residue in residues()], np.float32),
        "pae": pae(),
        "max_pae": 31.75,
        "ptm": 0.58,
        "iptm": 0.43,
        "tm_by_chain": TM_BY_CHAIN,
        "ranking_confidence": 0.46,
        "num_recycles": 3,
        "converged": False,
        "chain_ids": chain_names(),
        "distances": Distances(
            expected=2 + ((places[:, None] * 17 + places * 5) % 79) / 4,
            contact=((places[:, None] * 13 + places * 3) % 64) / 64,
        ),
    }
    return Prediction(**defaults | values)


def hydrogens() -> tuple[Hydrogens, list[tuple[int, str, Point]]]:
    """Hydrogens of first and last residues of chains, as arrays and as records: residue, name, position."""
    records = [
        (place, name, (0.125 * place, 1.5, float(number)))
        for number, (place, name) in enumerate([(0, "H"), (0, "HA2"), (4, "HA3"), (13, "HD11"), (14, "H"), (24, "HB2")])
    ]
    arrays = Hydrogens(
        residue=np.array([place for place, _, _ in records]),
        names=tuple(name for _, name, _ in records),
        positions=np.array([position for _, _, position in records], np.float32),
    )
    return arrays, records
