"""The structures that a page shows: their text, and how each is turned to lie on the best one.

The files keep their coordinates: the page turns what it draws.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from data_pipeline.errors import InputError
from helixfold.report.page import packed

# Above this a browser has too much to draw, and the page names the file instead.
_MOST_BYTES = 32 * 2**20
_UNIT = np.eye(3)


@dataclass(frozen=True, kw_only=True)
class PackedStructure:
    """A PDB file as a page holds it, and the turn (3 x 3, by rows) and shift that put it in its place."""

    file: str
    turn: tuple[float, ...]
    shift: tuple[float, ...]
    data: str


class Placing:
    """Puts structures of one target on top of the first one, by their C-alpha atoms, the confident ones foremost."""

    def __init__(self, weights: Float[np.ndarray, "r"]) -> None:
        self.weights = np.maximum(weights, 1.0) ** 2
        self.first: Float[np.ndarray, "r 3"] | None = None

    def packed(self, path: Path) -> PackedStructure | None:
        """A structure in its place; None if it is too large for a page."""
        content = path.read_bytes()
        if len(content) > _MOST_BYTES:
            return None
        turn, shift = self._place(_alpha_carbons(path, content))
        return PackedStructure(
            file=path.name,
            turn=tuple(round(float(number), 6) for number in turn.ravel()),
            shift=tuple(round(float(number), 3) for number in shift),
            data=packed(content),
        )

    def _place(self, atoms: Float[np.ndarray, "n 3"]) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "3"]]:
        if len(atoms) == 0:
            return _UNIT, np.zeros(3)
        if len(atoms) != len(self.weights):
            return _UNIT, -atoms.mean(0)
        centre = np.average(atoms, axis=0, weights=self.weights)
        if self.first is None:
            # The longest axis lies across the page, the shortest points at the reader.
            turn = np.linalg.svd(atoms - centre)[2]
            turn[2] *= np.sign(np.linalg.det(turn))
            self.first = (atoms - centre) @ turn.T
        else:
            correlation = (self.first * self.weights[:, None]).T @ (atoms - centre)
            left, _, right = np.linalg.svd(correlation)
            mirrored = np.diag([1.0, 1.0, np.sign(np.linalg.det(left @ right))])
            turn = left @ mirrored @ right
        return turn, -turn @ centre


def _alpha_carbons(path: Path, content: bytes) -> Float[np.ndarray, "n 3"]:
    """From the fixed columns of a PDB file."""
    lines = [line for line in content.splitlines() if line.startswith(b"ATOM") and line[12:16] == b" CA "]
    try:
        found = np.array([[float(line[start : start + 8]) for start in (30, 38, 46)] for line in lines])
    except ValueError as error:
        raise InputError.at(path, "not a PDB file; fold the target again with --overwrite") from error
    return found.reshape(-1, 3) if np.isfinite(found).all() else np.empty((0, 3))
