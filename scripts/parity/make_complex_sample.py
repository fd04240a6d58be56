"""Make tests/parity/data/complex_sample.npz: DeepMind's MSA features of a complex for fixed random choices.

Run it with DeepMind's program installed (the `parity` extra): python -m scripts.parity.make_complex_sample
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from alphafold.model import modules_multimer

FILE = Path(__file__).parents[2] / "tests" / "parity" / "data" / "complex_sample.npz"
RESIDUES, ROWS, CLUSTERS, EXTRA = 13, 24, 9, 10
GAP, MASKED = 21, 22


def main() -> None:
    """Write DeepMind's features of an alignment of two chains with blocks, ties and deletions."""
    random = np.random.default_rng(0)
    family = random.integers(0, 20, RESIDUES)
    msa = np.where(random.random((ROWS, RESIDUES)) < 0.5, random.integers(0, 22, (ROWS, RESIDUES)), family)
    msa[0] = family
    blocks = np.ones((ROWS, RESIDUES), np.float32)
    # Consecutive rows of only one chain, and two rows that agree with others only in gaps.
    for row in range(8, ROWS):
        blocks[row, slice(7) if row % 2 else slice(7, None)] = 0
    msa[blocks == 0] = GAP
    msa[20:22] = GAP
    deletions = np.where(random.random(msa.shape) < 0.2, random.integers(1, 9, msa.shape), 0)
    order = np.concatenate([[0], 1 + random.permutation(ROWS - 1)])
    centers, rest = order[:CLUSTERS], order[CLUSTERS:]
    hidden = random.random((CLUSTERS, RESIDUES)) < 0.2
    masked = np.where(hidden, np.where(random.random(hidden.shape) < 0.7, MASKED, 3), msa[centers])
    batch = {
        "msa": masked,
        "msa_mask": np.ones(masked.shape, np.float32),
        "deletion_matrix": deletions[centers].astype(np.float32),
        "extra_msa": msa[rest],
        "extra_msa_mask": np.ones((len(rest), RESIDUES), np.float32),
        "extra_deletion_matrix": deletions[rest].astype(np.float32),
    }
    batch = {name: jnp.asarray(value) for name, value in batch.items()}
    profile = modules_multimer.make_msa_profile({"msa": msa, "msa_mask": np.ones(msa.shape, np.float32)})
    batch["cluster_profile"], batch["cluster_deletion_mean"] = modules_multimer.nearest_neighbor_clusters(batch)
    extra, extra_mask = modules_multimer.create_extra_msa_feature(batch, EXTRA)
    np.savez_compressed(
        FILE,
        msa=msa.astype(np.int8),
        deletion_matrix=deletions.astype(np.int8),
        blocks=blocks > 0,
        order=order,
        masked=masked.astype(np.int8),
        hidden=hidden,
        profile=np.asarray(profile),
        msa_feat=np.asarray(modules_multimer.create_msa_feat(batch)),
        extra_feat=np.asarray(extra),
        extra_mask=np.asarray(extra_mask),
    )


if __name__ == "__main__":
    main()
