"""Random but valid model input, so that parity cases exist at any size without databases or structures.

Everything a model distinguishes occurs: a jump in residue numbers, gaps and deletions in the alignment, masked letters,
cluster profiles, a fresh draw per recycle, templates with gaps, lost side chains and empty slots, padding at every end.
"""

import numpy as np

from data_pipeline import residues
from tests.parity.spec import Spec

UNKNOWN, GAP, MASKED = 20, 21, 22
GLYCINE = residues.RESTYPES.index("G")
N, CA, C, O, CB = (residues.ATOM_ORDER[name] for name in ("N", "CA", "C", "O", "CB"))
# Ideal backbone in Angstrom, CA at the origin, C on the x axis, N in the xy plane.
LOCAL_BACKBONE = {N: (-0.525, 1.363, 0.0), C: (1.526, 0.0, 0.0), O: (2.153, -1.062, 0.0), CB: (-0.529, -0.774, -1.205)}

Arrays = dict[str, np.ndarray]


def make_features(spec: Spec) -> Arrays:
    """Draw the complete input of a case: every array has a leading axis of `spec.passes` samples."""
    rng = np.random.default_rng(spec.seed)
    sequence = rng.integers(20, size=spec.res - spec.pad)
    if spec.with_x:
        sequence[len(sequence) // 2] = UNKNOWN
    constant = _sequence_features(sequence, spec)
    if spec.templ:
        constant |= _template_features(sequence, spec, rng)
    family, deletions = _family(sequence, 2 * (spec.seq + spec.extra_seq), rng)
    samples = [constant | _msa_features(family, deletions, spec, rng) for _ in range(spec.passes)]
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


def _sequence_features(sequence: np.ndarray, spec: Spec) -> Arrays:
    index = np.arange(len(sequence))
    index[len(index) // 3 :] += 40  # beyond the clipping of relative positions at 32
    per_residue = {
        "aatype": sequence.astype(np.int32),
        "residue_index": index.astype(np.int32),
        "seq_mask": np.ones(len(sequence), np.float32),
        "target_feat": _one_hot(sequence + 1, 22),  # channel 0 marks a break between segments, which a monomer has not
        "atom14_atom_exists": residues.ATOM14_MASK[sequence].astype(np.float32),
        "residx_atom14_to_atom37": residues.ATOM14_TO_ATOM37[sequence].astype(np.int32),
        "residx_atom37_to_atom14": residues.ATOM37_TO_ATOM14[sequence].astype(np.int32),
        "atom37_atom_exists": residues.ATOM37_MASK[sequence].astype(np.float32),
    }
    return {name: _pad(value, spec.res) for name, value in per_residue.items()} | {
        "seq_length": np.int32(len(sequence)),
        "is_distillation": np.float32(0),
    }


def _family(sequence: np.ndarray, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Letters and deletion counts of an alignment of relatives; row 0 is the query."""
    shape = (rows, len(sequence))
    family = np.where(rng.random(shape) < 0.3, rng.integers(20, size=shape), sequence)
    family = np.where(rng.random(shape) < 0.1, GAP, family)
    deletions = np.where(rng.random(shape) < 0.1, rng.geometric(0.3, size=shape), 0)
    family[0], deletions[0] = sequence, 0
    return family, deletions


def _msa_features(family: np.ndarray, deletions: np.ndarray, spec: Spec, rng: np.random.Generator) -> Arrays:
    """One draw of clusters and extra rows from the family, with masked letters and profiles."""
    rows, extra_rows = spec.seq - spec.pad_seq, spec.extra_seq - spec.pad_extra_seq
    chosen = np.concatenate([[0], 1 + rng.permutation(len(family) - 1)])[: rows + extra_rows]
    letters, counts = family[chosen], deletions[chosen]
    clusters, extra = letters[:rows], letters[rows:]

    hidden = rng.random(clusters.shape) < 0.15
    replacement = np.where(rng.random(clusters.shape) < 0.7, MASKED, rng.integers(20, size=clusters.shape))
    shown = np.where(hidden, replacement, clusters)

    owner = np.concatenate([np.arange(rows), rng.integers(rows, size=extra_rows)])
    members = _one_hot(owner, rows).T / np.bincount(owner, minlength=rows)[:, None]
    profile = np.einsum("c n, n r k -> c r k", members, _one_hot(np.concatenate([shown, extra]), 23))
    deletion_mean = np.einsum("c n, n r -> c r", members, counts)

    msa_feat = np.concatenate(
        [
            _one_hot(shown, 23),
            np.minimum(counts[:rows, :, None], 1),
            _squash(counts[:rows, :, None]),
            profile,
            _squash(deletion_mean[..., None]),
        ],
        axis=-1,
    )
    clustered = {
        "msa_feat": msa_feat.astype(np.float32),
        "true_msa": clusters.astype(np.int32),
        "bert_mask": hidden.astype(np.float32),
        "msa_mask": np.ones(clusters.shape, np.float32),
    }
    unclustered = {
        "extra_msa": extra.astype(np.int32),
        "extra_has_deletion": np.minimum(counts[rows:], 1).astype(np.float32),
        "extra_deletion_value": _squash(counts[rows:]).astype(np.float32),
        "extra_msa_mask": np.ones(extra.shape, np.float32),
    }
    return (
        {name: _pad(value, spec.seq, spec.res) for name, value in clustered.items()}
        | {name: _pad(value, spec.extra_seq, spec.res) for name, value in unclustered.items()}
        | {"msa_row_mask": _pad(np.ones(rows, np.float32), spec.seq)}
        | {"extra_msa_row_mask": _pad(np.ones(extra_rows, np.float32), spec.extra_seq)}
    )


def _template_features(sequence: np.ndarray, spec: Spec, rng: np.random.Generator) -> Arrays:
    slots = spec.real_templ
    shape = (slots, len(sequence))
    aatype = np.where(rng.random(shape) < 0.5, rng.integers(20, size=shape), sequence)
    aatype = np.where(aatype == UNKNOWN, 0, aatype)
    aligned = np.ones(shape, bool)
    for slot in range(slots):
        start = rng.integers(1, len(sequence) - 4)
        aligned[slot, start : start + 3] = False
        aligned[slot, : slot % 3] = False
    masks = residues.ATOM37_MASK[aatype] * aligned[..., None]
    masks[..., CB:] *= np.where((np.arange(37) == O)[CB:], 1, rng.random((*shape, 1)) > 0.1)  # lost side chains
    masks[..., N] *= rng.random(shape) > 0.05
    positions = np.stack([_chain(aligned[slot], rng) for slot in range(slots)]) if slots else np.zeros((0, len(sequence), 37, 3))
    positions = positions * masks[..., None]
    aatype = np.where(aligned, aatype, GAP)
    beta = np.where(aatype == GLYCINE, CA, CB)[..., None]
    padded = {
        "template_aatype": aatype.astype(np.int32),
        "template_all_atom_positions": positions.astype(np.float32),
        "template_all_atom_masks": masks.astype(np.float32),
        "template_pseudo_beta": np.take_along_axis(positions, beta[..., None], axis=2)[:, :, 0].astype(np.float32),
        "template_pseudo_beta_mask": np.take_along_axis(masks, beta, axis=2)[:, :, 0].astype(np.float32),
    }
    return {name: _pad(value, spec.templ, spec.res) for name, value in padded.items()} | {
        "template_mask": _pad(np.ones(slots, np.float32), spec.templ),
        "template_sum_probs": _pad(np.full((slots, 1), 0.9, np.float32), spec.templ),
    }


def _chain(aligned: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """All-atom coordinates (r, 37, 3) of a random walk of residues, in Angstrom.

    The first nitrogen of every aligned segment lies at the origin. AlphaFold does not mask the omega angle there, which
    it takes from a preceding residue of all zeros: at any other place that angle is the direction of rounding errors,
    and no two programs agree on it. At the origin it is exactly zero.
    """
    length = len(aligned)
    steps = rng.standard_normal((length, 3))
    alpha = np.cumsum(3.8 * steps / np.linalg.norm(steps, axis=-1, keepdims=True), axis=0)
    rotations, _ = np.linalg.qr(rng.standard_normal((length, 3, 3)))
    rotations *= np.sign(np.linalg.det(rotations))[:, None, None]
    local = np.zeros((length, 37, 3))
    local[:] = LOCAL_BACKBONE[CB] + 1.5 * rng.standard_normal((length, 37, 3))
    local[:, CA] = 0
    for atom, position in LOCAL_BACKBONE.items():
        local[:, atom] = position
    positions = np.einsum("r x y, r a y -> r a x", rotations, local) + alpha[:, None]
    starts = np.flatnonzero(aligned & ~np.concatenate([[False], aligned[:-1]]))
    for start, end in zip(starts, [*starts[1:], length], strict=True):
        positions[start:end] -= positions[start, N]
    return positions


def _one_hot(index: np.ndarray, size: int) -> np.ndarray:
    return np.eye(size, dtype=np.float32)[index]


def _squash(count: np.ndarray) -> np.ndarray:
    return np.arctan(count / 3) * (2 / np.pi)


def _pad(value: np.ndarray, *sizes: int) -> np.ndarray:
    widths = [(0, size - length) for size, length in zip(sizes, value.shape, strict=False)]
    return np.pad(value, widths + [(0, 0)] * (value.ndim - len(sizes)))
