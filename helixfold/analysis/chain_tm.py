"""Compute pTM and ipTM of a complex, its chains and its pairs of chains from aligned-error logits."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from helixfold.model.confidence import complex_ranking_confidence, tm_between_chains, tm_of_alignments


@dataclass(frozen=True, kw_only=True)
class TmScores:
    """Expected TM-scores of a predicted complex, from 0 to 1 (Evans et al. 2021).

    `by_chain[a, b]` is the expected TM-score of chain b if the complex is aligned on the best residue of chain a,
    without regard to other chains: the pTM of each chain on the diagonal, the ipTM of two chains in one direction
    elsewhere. These are AlphaFold 3's pTM by chain and ipTM by pair of chains (Abramson et al. 2024). Chains are
    numbered from 0. `ptm` and `iptm` are of the whole complex.
    """

    ptm: float
    iptm: float
    by_chain: Float[np.ndarray, "k k"]

    @property
    def ranking_confidence(self) -> float:
        """0.8 ipTM + 0.2 pTM, AlphaFold-Multimer's score for ranking predictions."""
        ptm, iptm = (torch.tensor([value], dtype=torch.float64) for value in (self.ptm, self.iptm))
        return float(complex_ranking_confidence(ptm, iptm))

    def pair_iptm(self, first: int, second: int) -> float:
        """Return the ipTM of two chains (indices from 0), the maximum of both directions.

        It is equal to `iptm` in a complex of two chains.
        """
        return float(max(self.by_chain[first, second], self.by_chain[second, first]))


def tm_scores(logits: Float[np.ndarray, "r r v"], asym_id: Int[np.ndarray, " r"]) -> TmScores:
    """Return the expected TM-scores of a complex from the aligned-error logits of all pairs of residues.

    `asym_id` is the index of each residue's chain, from 1 as in `ComplexFeatures`. Raise ValueError if the indices have
    gaps or there are fewer than two chains.
    """
    chains = int(asym_id.max(initial=0))
    if chains < 2 or not np.array_equal(np.unique(asym_id), np.arange(1, chains + 1)):
        raise ValueError(
            f"asym_id must number at least two chains from 1 without a gap, got {np.unique(asym_id).tolist()}"
        )
    errors, chain = torch.from_numpy(logits)[None], torch.from_numpy(asym_id)[None]
    mask = torch.ones(1, len(asym_id))
    other = chain[:, :, None] != chain[:, None]
    by_residue = tm_between_chains(errors, mask, chain, slice(None), chains)[0].numpy()
    return TmScores(
        ptm=float(tm_of_alignments(errors, mask).max()),
        iptm=float(tm_of_alignments(errors, mask, other).max()),
        by_chain=np.stack([by_residue[asym_id == index].max(0) for index in range(1, chains + 1)]),
    )
