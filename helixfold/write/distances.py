"""Content of distances_<prediction>.npz: expected distances between residues, and those in the structure."""

import numpy as np
from jaxtyping import Float

from data_pipeline.protein import Protein
from data_pipeline.transforms.templates import pseudo_beta
from helixfold.prediction import Prediction


def distance_arrays(prediction: Prediction) -> dict[str, np.ndarray]:
    """Return arrays of r residues; distances are in Angstrom between pseudo-beta atoms (C-beta, C-alpha of glycine).

    `residue_number` (r), and (r r) in half precision, which has steps of at most 0.016 Angstrom below 32:
    `expected_distance`, the mean of the distogram, whose last bin is open: what is further apart than 21.7 has 21.8;
    `contact_probability` of less than 8 Angstrom; `structure_distance` in the predicted coordinates, NaN without them.
    `notes` (n) are strings.
    """
    distances = prediction.distances
    assert distances is not None
    return {
        "residue_number": prediction.protein.residue_index.astype(np.int32),
        "expected_distance": distances.expected.astype(np.float16),
        "contact_probability": distances.contact.astype(np.float16),
        "structure_distance": structure_distances(prediction.protein).astype(np.float16),
        "notes": np.array(prediction.notes, dtype=np.str_),
    }


def structure_distances(protein: Protein) -> Float[np.ndarray, "r r"]:
    """Return distances in Angstrom between pseudo-beta atoms; NaN for residues without one."""
    points, mask = pseudo_beta(protein.aatype, protein.atom_positions, protein.atom_mask)
    points[mask < 0.5] = np.nan
    squared = sum(np.square(points[:, None, axis] - points[None, :, axis]) for axis in range(3))
    return np.sqrt(squared)
