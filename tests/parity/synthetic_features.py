"""Random but valid model input, so that parity cases exist at any size without databases or structures.

Everything a model distinguishes occurs: a jump in residue numbers, gaps and deletions in the alignment, masked letters,
cluster profiles, a fresh draw per recycle, templates with gaps, lost side chains and empty slots, padding at every end.
"""

import numpy as np

from data_pipeline import residues
from tests.parity.spec import Spec

GLYCINE = residues.RESTYPES.index("G")
NITROGEN, ALPHA, CARBON, OXYGEN, BETA = (residues.ATOM_ORDER[name] for name in ("N", "CA", "C", "O", "CB"))
# Ideal backbone in Angstrom, CA at the origin, C on the x axis, N in the xy plane.
LOCAL_BACKBONE = {
    NITROGEN: (-0.525, 1.363, 0.0),
    ALPHA: (0.0, 0.0, 0.0),
    CARBON: (1.526, 0.0, 0.0),
    OXYGEN: (2.153, -1.062, 0.0),
    BETA: (-0.529, -0.774, -1.205),
}

Arrays = dict[str, np.ndarray]


def make_features(spec: Spec) -> Arrays:
    """Draw the complete input of a case: every array has a leading axis of `spec.passes` samples."""
    rng = np.random.default_rng(spec.seed)
    sequence = rng.integers(20, size=spec.res - spec.pad)
    if spec.with_x:
        sequence[len(sequence) // 2] = residues.UNKNOWN
    constant = _sequence_features(sequence, spec)
    if spec.templ:
        constant |= template_features(sequence, spec, rng)
    family, deletions = aligned_family(sequence, 2 * (spec.seq + spec.extra_seq), rng)
    samples = [constant | _msa_features(family, deletions, spec, rng) for _ in range(spec.passes)]
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


def _sequence_features(sequence: np.ndarray, spec: Spec) -> Arrays:
    index = np.arange(len(sequence))
    index[len(index) // 3 :] += 40  # beyond the clipping of relative positions at 32
    per_residue = {
        "aatype": sequence.astype(np.int32),
        "residue_index": index.astype(np.int32),
        "seq_mask": np.ones(len(sequence), np.float32),
        "target_feat": one_hot(sequence + 1, 22),  # channel 0 marks a break between segments, which a monomer has not
        "atom14_atom_exists": residues.ATOM14_MASK[sequence].astype(np.float32),
        "residx_atom14_to_atom37": residues.ATOM14_TO_ATOM37[sequence].astype(np.int32),
        "residx_atom37_to_atom14": residues.ATOM37_TO_ATOM14[sequence].astype(np.int32),
        "atom37_atom_exists": residues.ATOM37_MASK[sequence].astype(np.float32),
    }
    return {name: padded(value, spec.res) for name, value in per_residue.items()} | {
        "seq_length": np.array(len(sequence), np.int32),
        "is_distillation": np.array(0, np.float32),
    }


def aligned_family(sequence: np.ndarray, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Letters and deletion counts of an alignment of relatives; row 0 is the query."""
    shape = (rows, len(sequence))
    family = np.where(rng.random(shape) < 0.3, rng.integers(20, size=shape), sequence)
    family = np.where(rng.random(shape) < 0.1, residues.GAP, family)
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
    replacement = np.where(rng.random(clusters.shape) < 0.7, residues.MASKED, rng.integers(20, size=clusters.shape))
    shown = np.where(hidden, replacement, clusters)

    owner = np.concatenate([np.arange(rows), rng.integers(rows, size=extra_rows)])
    members = one_hot(owner, rows).T / np.bincount(owner, minlength=rows)[:, None]
    profile = np.einsum("c n, n r k -> c r k", members, one_hot(np.concatenate([shown, extra]), 23))
    deletion_mean = np.einsum("c n, n r -> c r", members, counts)

    msa_feat = np.concatenate(
        [
            one_hot(shown, 23),
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
        {name: padded(value, spec.seq, spec.res) for name, value in clustered.items()}
        | {name: padded(value, spec.extra_seq, spec.res) for name, value in unclustered.items()}
        | {"msa_row_mask": padded(np.ones(rows, np.float32), spec.seq)}
        | {"extra_msa_row_mask": padded(np.ones(extra_rows, np.float32), spec.extra_seq)}
    )


def template_features(sequence: np.ndarray, spec: Spec, rng: np.random.Generator) -> Arrays:
    """Draw templates with gaps, missing atoms and empty slots."""
    shape = (spec.real_templ, len(sequence))
    aatype = np.where(rng.random(shape) < 0.5, rng.integers(20, size=shape), sequence)
    aatype = np.where(aatype == residues.UNKNOWN, 0, aatype)
    aligned = np.ones(shape, bool)
    for slot, start in enumerate(rng.integers(1, len(sequence) - 4, size=spec.real_templ)):
        aligned[slot, start : start + 3] = False
        aligned[slot, : slot % 3] = False

    masks = residues.ATOM37_MASK[aatype] * aligned[..., None]
    masks[..., NITROGEN] *= (rng.random(shape) > 0.05) | _segment_starts(aligned)
    side_chain = ~np.isin(np.arange(37), (NITROGEN, ALPHA, CARBON, OXYGEN))
    masks *= ~(side_chain & (rng.random((*shape, 1)) < 0.1))
    positions = np.stack([_chain(row, rng) for row in aligned]) if len(aligned) else np.zeros((*shape, 37, 3))
    positions = positions * masks[..., None]

    aatype = np.where(aligned, aatype, residues.GAP)
    beta = np.where(aatype == GLYCINE, ALPHA, BETA)[..., None]
    per_residue = {
        "template_aatype": aatype.astype(np.int32),
        "template_all_atom_positions": positions.astype(np.float32),
        "template_all_atom_masks": masks.astype(np.float32),
        "template_pseudo_beta": np.take_along_axis(positions, beta[..., None], axis=2)[:, :, 0].astype(np.float32),
        "template_pseudo_beta_mask": np.take_along_axis(masks, beta, axis=2)[:, :, 0].astype(np.float32),
    }
    return {name: padded(value, spec.templ, spec.res) for name, value in per_residue.items()} | {
        "template_mask": padded(np.ones(spec.real_templ, np.float32), spec.templ),
        "template_sum_probs": padded(np.full((spec.real_templ, 1), 0.9, np.float32), spec.templ),
    }


def _chain(aligned: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """All-atom coordinates (r, 37, 3) in Angstrom of a random walk of residues, posed segment by segment.

    AlphaFold does not mask the omega angle of a segment's first residue, but computes it from a preceding residue of
    all zeros: in general the direction of rounding errors, on which no two programs agree. It is exactly zero where
    that residue's N lies on the x axis and its CA straight above, and so they are posed.
    """
    length = len(aligned)
    steps = rng.standard_normal((length, 3))
    walk = np.cumsum(3.8 * steps / np.linalg.norm(steps, axis=-1, keepdims=True), axis=0)
    rotations, _ = np.linalg.qr(rng.standard_normal((length, 3, 3)))
    rotations *= np.sign(np.linalg.det(rotations))[:, None, None]
    local = LOCAL_BACKBONE[BETA] + 1.5 * rng.standard_normal((length, 37, 3))
    for atom, position in LOCAL_BACKBONE.items():
        local[:, atom] = position
    positions: np.ndarray = np.einsum("r x y, r a y -> r a x", rotations, local) + walk[:, None]

    starts = np.flatnonzero(_segment_starts(aligned))
    for start, end in zip(starts, [*starts[1:], length], strict=True):
        nitrogen, alpha, carbon = positions[start, [NITROGEN, ALPHA, CARBON]]
        up = (alpha - nitrogen) / np.linalg.norm(alpha - nitrogen)
        across = np.cross(up, carbon - alpha)
        across /= np.linalg.norm(across)
        positions[start:end] = (positions[start:end] - nitrogen) @ np.stack([across, up, np.cross(across, up)]).T
        positions[start:end, :, 0] += 4
    return positions


def _segment_starts(aligned: np.ndarray) -> np.ndarray:
    """Where a residue is aligned and the one before is not."""
    before = np.roll(aligned, 1, axis=-1)
    before[..., 0] = False
    starts: np.ndarray = aligned & ~before
    return starts


def one_hot(index: np.ndarray, size: int) -> np.ndarray:
    """One-hot vectors in float32."""
    rows: np.ndarray = np.eye(size, dtype=np.float32)[index]
    return rows


def _squash(count: np.ndarray) -> np.ndarray:
    squashed: np.ndarray = np.arctan(count / 3) * (2 / np.pi)  # AlphaFold 2, Suppl. Table 1
    return squashed


def padded(value: np.ndarray, *sizes: int) -> np.ndarray:
    """The array with zeros at the end of its first axes, up to these sizes."""
    widths = [(0, size - length) for size, length in zip(sizes, value.shape, strict=False)]
    return np.pad(value, widths + [(0, 0)] * (value.ndim - len(sizes)))
