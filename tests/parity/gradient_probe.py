"""One number made of all outputs of a network, whose gradients are compared with DeepMind's."""

import zlib
from collections.abc import Mapping

import numpy as np

Arrays = dict[str, np.ndarray]

# What the network reads and gradients are asked for, with the names of a multimer's features.
READ = ("msa_feat", "template_all_atom_positions", "prev_msa_first_row", "prev_pair")
# A case keeps at most so many values of each gradient.
SAMPLED = 128


def probe(outputs: Mapping[str, np.ndarray]) -> Arrays:
    """Draw the weights of every output: normal, and so large that all outputs count alike."""
    return {
        name: draw(name, value.shape) / (np.sqrt(value.size) * max(float(np.abs(value).max()), 1e-3))
        for name, value in outputs.items()
    }


def recycled_input(residues: int, c_m: int, c_z: int) -> Arrays:
    """Draw what a pass gets from the one before it; the atoms are 4 Angstrom apart on the average."""
    return {
        "prev_msa_first_row": draw("prev_msa_first_row", (residues, c_m)),
        "prev_pair": draw("prev_pair", (residues, residues, c_z)),
        "prev_pos": np.cumsum(3 * draw("prev_pos", (residues, 1, 3)), 0) + draw("atoms", (residues, 37, 3)),
    }


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw standard normal numbers in float32, which follow from a name alone."""
    return np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)


def sampled(values: np.ndarray) -> np.ndarray:
    """Return at most `SAMPLED` values of an array, evenly spaced in its flat order."""
    flat = values.reshape(-1)
    return flat[:: -(-flat.size // SAMPLED) | 1] if flat.size > SAMPLED else flat
