"""Prepare the structures that a page shows: their text, and the rotation that superposes each on the best one.

The files keep their coordinates: the page moves what it draws.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import read_file
from data_pipeline.parse.mmcif import parse_mmcif
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER
from helixfold.analysis.metrics import best_rotation
from helixfold.report.page import packed
from helixfold.results.file_table import MMCIF
from helixfold.results.pdb import to_pdb

# A browser takes too long to draw a larger file; the page names it instead.
MOST_BYTES = 32 * 2**20
_UNIT = np.eye(3)


@dataclass(frozen=True, kw_only=True)
class PackedStructure:
    """A PDB or mmCIF file as a page holds it, with the rotation and the shift that superpose it on the best structure.

    `form` is "pdb" or "cif". `rotation` is a 3 x 3 matrix by rows; `shift`, in Angstrom, is applied after it. `data` is
    the file in zlib's format and base64.
    """

    file: str
    form: str
    rotation: tuple[float, ...]
    shift: tuple[float, ...]
    data: str


class Superposer:
    """Superposes one target's structures on the first one, by C-alpha atoms weighted by squared pLDDT.

    `weights` are the residues' pLDDT (0 to 100). Where a residue has no C-alpha atom, all atoms count alike.
    """

    def __init__(self, weights: Float[np.ndarray, "r"]) -> None:
        self.weights = np.maximum(weights, 1.0) ** 2
        self.first: Float[np.ndarray, "r 3"] | None = None

    def packed(self, path: Path) -> PackedStructure | None:
        """Return a PDB or mmCIF file with its rotation and shift; None if it has more than 32 MiB.

        The first file is centred and laid along its longest axis, and later ones are superposed on it. Raise
        `InputError` if it is neither.
        """
        if path.stat().st_size > MOST_BYTES:
            return None
        content = read_file(path, MOST_BYTES)
        return _packed(path.name, content, *self._place(alphas_of(path, content)))

    def packed_template(self, template: Protein, places: Int[np.ndarray, " m"]) -> PackedStructure | None:
        """Return a template, superposed on the first structure; `places` are the indices of its residues there.

        Return None if there is no first structure, or if it lacks C-alpha atoms.
        """
        if self.first is None or len(self.first) != len(self.weights):
            return None
        atoms, weights = template.positions_of("CA"), self.weights[places]
        centre, onto = (np.average(each, axis=0, weights=weights) for each in (atoms, self.first[places]))
        rotation = best_rotation(((self.first[places] - onto) * weights[:, None]).T @ (atoms - centre))
        return _packed("", to_pdb(template).encode(), rotation, onto - rotation @ centre)

    def _place(self, atoms: Float[np.ndarray, "n 3"]) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "3"]]:
        if len(atoms) == 0:
            return _UNIT, np.zeros(3)
        if self.first is not None and len(self.first) != len(atoms):
            return _UNIT, -atoms.mean(0)
        weights = self.weights if len(self.weights) == len(atoms) else np.ones(len(atoms))
        centre = np.average(atoms, axis=0, weights=weights)
        if self.first is None:
            # The longest axis lies across the page, the shortest points at the reader.
            rotation = np.linalg.svd(atoms - centre)[2]
            rotation[2] *= np.sign(np.linalg.det(rotation))
            self.first = (atoms - centre) @ rotation.T
        else:
            rotation = best_rotation((self.first * weights[:, None]).T @ (atoms - centre))
        return rotation, -rotation @ centre


def _packed(
    name: str, content: bytes, rotation: Float[np.ndarray, "3 3"], shift: Float[np.ndarray, "3"]
) -> PackedStructure:
    return PackedStructure(
        file=name,
        form="cif" if name.endswith(MMCIF) else "pdb",
        rotation=tuple(round(float(number), 6) for number in rotation.ravel()),
        shift=tuple(round(float(number), 3) for number in shift),
        data=packed(content),
    )


def alphas_of(path: Path, content: bytes) -> Float[np.ndarray, "n 3"]:
    """Return the C-alpha positions in the content of a PDB or mmCIF file; raise `InputError` if it is neither."""
    return (_alphas_of_mmcif if path.suffix == MMCIF else _alphas_of_pdb)(path, content)


def _alphas_of_mmcif(path: Path, content: bytes) -> Float[np.ndarray, "n 3"]:
    """Return C-alpha positions of all chains of an mmCIF file."""
    alpha = ATOM_ORDER["CA"]
    chains = parse_mmcif(content, path=path).chains
    found = [chain.atom_positions[chain.atom_mask[:, alpha] > 0, alpha] for chain in chains]
    return np.concatenate(found) if found else np.empty((0, 3))


def _alphas_of_pdb(path: Path, content: bytes) -> Float[np.ndarray, "n 3"]:
    """Return C-alpha positions from the fixed columns of a PDB file; none if one of them is not finite."""
    lines = [line for line in content.splitlines() if line.startswith(b"ATOM") and line[12:16] == b" CA "]
    try:
        found = np.array([[float(line[start : start + 8]) for start in (30, 38, 46)] for line in lines])
    except ValueError as error:
        raise InputError.at(path, "not a PDB file; fold the target again with --overwrite") from error
    return found.reshape(-1, 3) if np.isfinite(found).all() else np.empty((0, 3))
