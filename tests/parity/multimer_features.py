"""Random but valid input of AlphaFold-Multimer, with the draws that DeepMind's program makes inside its network.

Everything that the model distinguishes occurs: equal and different chains, gaps where an alignment row covers one chain
only, deletions, rows that enter cluster profiles alone, padding, empty template slots, templates over several chains.
"""

import numpy as np

from data_pipeline import residues
from tests.parity.spec import Spec
from tests.parity.synthetic_features import Arrays, aligned_family, padded, template_features

# Rows of the alignment beyond those that the network sees, which only the clusters' profiles read.
UNSEEN_ROWS = 4


def make_multimer_features(spec: Spec) -> Arrays:
    """Draw the complete input of a case: every array has a leading axis of `spec.passes` samples.

    Arrays named `draw_*` are the random choices of a pass: the order of the alignment's rows, of which the first
    `spec.seq` become clusters, these clusters after masking, and the masked positions.
    """
    rng = np.random.default_rng(spec.seed)
    chains = _chains(spec)
    lengths = dict(zip(spec.chains, chains, strict=True))
    sequences = {letter: rng.integers(20, size=lengths[letter]) for letter in sorted(lengths)}
    sequence = np.concatenate([sequences[letter] for letter in spec.chains])
    letters = sorted(sequences)
    numbers = np.arange(len(chains))
    per_residue = {
        "aatype": sequence.astype(np.int32),
        "residue_index": np.concatenate([np.arange(length) for length in chains]).astype(np.int32),
        "seq_mask": np.ones(len(sequence), np.float32),
        "asym_id": np.repeat(numbers + 1, chains).astype(np.int32),
        "entity_id": np.repeat([letters.index(each) + 1 for each in spec.chains], chains).astype(np.int32),
        "sym_id": np.repeat([spec.chains[: each + 1].count(spec.chains[each]) for each in numbers], chains).astype(
            np.int32
        ),
    }
    # A jump in the first chain, beyond the clipping of relative positions at 32.
    per_residue["residue_index"][chains[0] // 2 : chains[0]] += 40
    templates = template_features(sequence, spec, rng)
    templates["template_all_atom_mask"] = templates.pop("template_all_atom_masks")
    msa = _alignment(sequence, per_residue["asym_id"], spec, rng)
    constant = {name: padded(value, spec.res) for name, value in per_residue.items()} | templates | msa
    samples = [constant | _draws(msa, spec, rng) for _ in range(spec.passes)]
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


def _chains(spec: Spec) -> list[int]:
    """Lengths of the chains: equal for equal letters, and different for different ones as far as the total allows."""
    real = spec.res - spec.pad
    single = [letter for letter in spec.chains if spec.chains.count(letter) == 1]
    share = real // len(spec.chains)
    lengths = {letter: share + 1 - 2 * (number % 2) for number, letter in enumerate(sorted(set(spec.chains)))}
    rest = real - sum(lengths[letter] for letter in spec.chains)
    if single:
        lengths[single[-1]] += rest
    else:
        lengths = dict.fromkeys(lengths, share)
        assert share * len(spec.chains) == real, f"{real} residues are not {len(spec.chains)} equal chains"
    return [lengths[letter] for letter in spec.chains]


def _alignment(sequence: np.ndarray, asym_id: np.ndarray, spec: Spec, rng: np.random.Generator) -> Arrays:
    rows = spec.seq + spec.extra_seq + UNSEEN_ROWS
    real_rows = rows - spec.pad_extra_seq
    letters, deletions = aligned_family(sequence, real_rows, rng)
    # Every third row covers one chain only, as an unpaired one does.
    for row in range(2, real_rows, 3):
        elsewhere = asym_id != rng.integers(1, asym_id.max() + 1)
        letters[row, elsewhere], deletions[row, elsewhere] = residues.GAP, 0
    arrays = {
        "msa": letters.astype(np.int32),
        "deletion_matrix": deletions.astype(np.float32),
        "alignment_mask": np.ones(letters.shape, np.float32),
    }
    return {name: padded(value, rows, spec.res) for name, value in arrays.items()}


def _draws(msa: Arrays, spec: Spec, rng: np.random.Generator) -> Arrays:
    present = msa["alignment_mask"].any(1)
    order = np.concatenate([[0], 1 + rng.permutation(present.sum() - 1), np.flatnonzero(~present)])
    clusters, mask = msa["msa"][order[: spec.seq]], msa["alignment_mask"][order[: spec.seq]]
    hidden = (rng.random(clusters.shape) < 0.15) & (mask > 0)
    replacement = np.where(rng.random(clusters.shape) < 0.7, residues.MASKED, rng.integers(20, size=clusters.shape))
    return {
        "draw_order": order.astype(np.int32),
        "draw_masked_msa": np.where(hidden, replacement, clusters).astype(np.int32),
        "draw_bert_mask": hidden.astype(np.float32),
    }
