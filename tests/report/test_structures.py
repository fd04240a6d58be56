"""Structures are turned and shifted on a page, never mirrored, whichever way their axes lie."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helixfold.report.page import Blobs
from helixfold.report.structures import Superposer
from tests.analysis.walks import turned, walk


def packed(superposer: Superposer, path: Path, atoms: np.ndarray) -> dict[str, Any]:
    line = "ATOM  {0:5d}  CA  GLY A{0:4d}    {1:8.3f}{2:8.3f}{3:8.3f}  1.00 50.00           C\n"
    path.write_text("".join(line.format(number, *atom) for number, atom in enumerate(atoms, start=1)))
    found = superposer.packed(path)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(8))
def test_a_structure_and_its_mirror_image_are_turned_and_not_reflected(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    atoms = turned(rng, walk(rng, 12))
    for first in (atoms, -atoms):
        superposer = Superposer(np.full(12, 50.0), Blobs())
        # The second is another handedness: it lies as well as it can, but stays what it is.
        for given in (first, turned(rng, first), -first):
            found = packed(superposer, tmp_path / "a.pdb", given)
            rotation = np.array(found["rotation"]).reshape(3, 3)
            np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-5)
            assert np.linalg.det(rotation) == pytest.approx(1, abs=1e-5)


def test_structures_lie_on_the_first_one_along_its_longest_axis(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    atoms = walk(rng, 12)
    superposer = Superposer(np.linspace(20, 90, 12), Blobs())
    placed = []
    for given in (atoms, turned(rng, atoms) + 30.0):
        found = packed(superposer, tmp_path / "a.pdb", given)
        placed.append(given @ np.array(found["rotation"]).reshape(3, 3).T + found["shift"])
    np.testing.assert_allclose(placed[0], placed[1], atol=5e-3)
    assert placed[0].std(0).argmax() == 0
    assert placed[0].std(0).argmin() == 2
