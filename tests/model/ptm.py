"""pTM of aligned-error logits that exist as a whole."""

from torch import Tensor

from helixfold.model.confidence import tm_of_alignments


def ptm_of(logits: Tensor, seq_mask: Tensor) -> Tensor:
    """The expected TM-score of each sample under its best alignment on a real residue."""
    return (tm_of_alignments(logits, seq_mask) * seq_mask).amax(-1)
