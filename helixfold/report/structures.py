"""Prepare structures for a page: their files, and the rotations that superpose them on the best structure.

Coordinates in the files are not changed; the page applies the rotations when it draws. `MAX_BYTES` is the maximum size
of a structure file that a page contains.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import read_file
from data_pipeline.parse.mmcif import parse_mmcif
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER
from helixfold.analysis.metrics import best_rotation
from helixfold.report.page import Blobs, packed
from helixfold.results.file_table import MMCIF
from helixfold.results.pdb import to_pdb

# Larger files are only named in the page, because a browser takes too long to draw them.
MAX_BYTES = 32 * 2**20
_IDENTITY = np.eye(3)


class Superposer:
    """Adds a target's structures to a page, superposed on the first one by C-alpha atoms weighted with squared pLDDT.

    The argument `weights` is the residues' pLDDT (0 to 100); the attribute has its squares. If a residue has no C-alpha
    atom, all atoms have equal weights. `first` has the C-alpha positions of the first structure, as it is drawn.

    In the format of a page, a structure has the name of its `file` ("" for a template), its `form` ("pdb" or "cif"),
    the `rotation` (a 3 x 3 matrix by rows) and then the `shift` (Å) that superpose it on the first one, and `data`, the
    name of the element with the file, compressed by `packed`.
    """

    def __init__(self, weights: Float[np.ndarray, "r"], blobs: Blobs) -> None:
        self.weights, self.blobs = np.maximum(weights, 1.0) ** 2, blobs
        self.first: Float[np.ndarray, "r 3"] | None = None

    def packed(self, path: Path, residues: Bool[np.ndarray, " r"] | None = None) -> dict[str, Any] | None:
        """Return a PDB or mmCIF file with its rotation and shift; None if it is larger than 32 MiB.

        The first file is centred, with its longest axis horizontal. Later files are superposed on it, or only centred
        if their number of C-alpha atoms differs. `residues` is a mask over the file's C-alpha atoms; only atoms with a
        true value are superposed. Raise `InputError` if the file is not PDB or mmCIF.
        """
        if path.stat().st_size > MAX_BYTES:
            return None
        content = read_file(path, MAX_BYTES)
        atoms = alphas_of(path, content)
        return self._added(path.name, content, *self._place(atoms if residues is None else atoms[residues]))

    def packed_template(self, template: Protein, indices: Int[np.ndarray, " m"]) -> dict[str, Any] | None:
        """Return a template superposed on the first structure; `indices` are the indices of its residues there.

        Return None if there is no first structure yet, or if C-alpha atoms are missing in it.
        """
        if self.first is None or len(self.first) != len(self.weights):
            return None
        atoms, weights = template.positions_of("CA"), self.weights[indices]
        centre, onto = (np.average(each, axis=0, weights=weights) for each in (atoms, self.first[indices]))
        rotation = best_rotation(((self.first[indices] - onto) * weights[:, None]).T @ (atoms - centre))
        return self._added("", to_pdb(template).encode(), rotation, onto - rotation @ centre)

    def _place(self, atoms: Float[np.ndarray, "n 3"]) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "3"]]:
        if len(atoms) == 0:
            return _IDENTITY, np.zeros(3)
        if self.first is not None and len(self.first) != len(atoms):
            return _IDENTITY, -atoms.mean(0)
        weights = self.weights if len(self.weights) == len(atoms) else np.ones(len(atoms))
        centre = np.average(atoms, axis=0, weights=weights)
        if self.first is None:
            # The longest axis becomes horizontal, and the shortest points at the viewer.
            rotation = np.linalg.svd(atoms - centre)[2]
            rotation[2] *= np.sign(np.linalg.det(rotation))
            self.first = (atoms - centre) @ rotation.T
        else:
            rotation = best_rotation((self.first * weights[:, None]).T @ (atoms - centre))
        return rotation, -rotation @ centre

    def _added(
        self, name: str, content: bytes, rotation: Float[np.ndarray, "3 3"], shift: Float[np.ndarray, "3"]
    ) -> dict[str, Any]:
        return {
            "file": name,
            "form": "cif" if name.endswith(MMCIF) else "pdb",
            "rotation": [round(float(number), 6) for number in rotation.ravel()],
            "shift": [round(float(number), 3) for number in shift],
            "data": self.blobs.add(packed(content)),
        }


def alphas_of(path: Path, content: bytes) -> Float[np.ndarray, "n 3"]:
    """Return the C-alpha positions in Å in the content of a PDB or mmCIF file. Raise `InputError` if it is neither.

    The suffix of `path` determines the format; the file is not read. If a PDB file has a coordinate that is not finite,
    no positions are returned.
    """
    if path.suffix == MMCIF:
        alpha, chains = ATOM_ORDER["CA"], parse_mmcif(content, path=path).chains
        atoms = [chain.atom_positions[chain.atom_mask[:, alpha] > 0, alpha] for chain in chains]
        return np.concatenate([np.empty((0, 3)), *atoms])
    lines = [line for line in content.splitlines() if line.startswith(b"ATOM") and line[12:16] == b" CA "]
    try:
        positions = np.array([[float(line[start : start + 8]) for start in (30, 38, 46)] for line in lines])
    except ValueError as error:
        raise InputError.at(path, "not a PDB file; fold the target again with --overwrite") from error
    return positions.reshape(-1, 3) if np.isfinite(positions).all() else np.empty((0, 3))
