"""Chains of points that are as far apart as C-alpha atoms are."""

import numpy as np


def walk(rng: np.random.Generator, residues: int) -> np.ndarray:
    """A compact walk in steps of 3.8 Angstrom."""
    steps = rng.normal(size=(residues, 3))
    points = np.zeros((residues, 3))
    for number in range(1, residues):
        step = steps[number] - 0.15 * (points[number - 1] - points[:number].mean(0))
        points[number] = points[number - 1] + 3.8 * step / np.linalg.norm(step)
    return points


def turned(rng: np.random.Generator, points: np.ndarray) -> np.ndarray:
    """The points after a random rotation and shift."""
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    rotation[:, 0] *= np.linalg.det(rotation)
    return points @ rotation.T + rng.normal(0, 10, 3)
