"""Embedding of distance restraints, with which AlphaLink extends AlphaFold 2 (Stahl et al. 2023)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from data_pipeline.io.config import RestraintKind
from helixfold.model.batch import Batch
from helixfold.model.layers import Linear

# How many numbers describe a restraint: the probability of a contact, or the probabilities of 128 distance bins, which
# AlphaLink multiplies by 1,000 (`_VALUE_FACTOR`).
VALUES: dict[RestraintKind, int] = {"contacts": 1, "distances": 128}
_VALUE_FACTOR: dict[RestraintKind, float] = {"contacts": 1.0, "distances": 1000.0}


class RestraintEmbedder(nn.Module):
    """Adds restraints to the pair stream before the Evoformer.

    AlphaLink's program reads a matrix of all residue pairs, which is zero for pairs without a restraint: these receive
    the biases only. The index of a contact in the list, from 1, is embedded, too (`group`). The distance network has
    parameters for the index, and does not use them.
    """

    def __init__(self, kind: RestraintKind, c_z: int) -> None:
        super().__init__()
        self.kind = kind
        self.value = Linear(VALUES[kind], c_z)
        self.group = Linear(1, c_z)

    def pair_rows(self, batch: Batch, rows: slice, pair: Float[Tensor, "b i j c_z"]) -> Float[Tensor, "b i j c_z"]:
        """Return `pair`, the edges from residues in `rows`, plus the biases and the embedded restraints of the batch.

        The biases are added to every edge, also without restraints. A restraint is added to both edges of its pair.
        """
        has_groups, dtype = self.kind == "contacts", pair.dtype
        bias = self.value.bias + self.group.bias if has_groups else self.value.bias
        pair = pair + bias.to(dtype)
        pairs, values = batch.restrained_pairs, batch.restraint_values
        if pairs is None or values is None:
            return pair
        added = nn.functional.linear(values * _VALUE_FACTOR[self.kind], self.value.weight)
        if has_groups:
            numbers = torch.arange(1, len(added) + 1, device=added.device, dtype=added.dtype)
            added = added + nn.functional.linear(numbers[:, None], self.group.weight)
        # Both edges of a pair. Rows outside this slice add zeros, so that no shape depends on the restraints' places.
        row, column = torch.cat([pairs, pairs.flip(1)]).T
        here = (row >= rows.start) & (row < rows.stop)
        row = (row - rows.start).clamp(0, pair.shape[1] - 1)
        added = torch.cat([added, added]) * here[:, None]
        return pair.index_put_((torch.zeros_like(row), row, column), added.to(dtype), accumulate=True)
