"""Embedding of where two residues of a complex stand: in the same chain, in equal chains or in different ones."""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from helixfold.batch import Batch, with_chains
from helixfold.model.embedders import MAX_SEPARATION, InputEmbedder, clipped_difference, separations
from helixfold.model.layers import Linear
from helixfold.ops.look_up import look_up

# The 20 residue types and unknown; the monomer's first channel, which marks breaks of the chain, does not exist.
TARGET_CHANNELS = 21
# Numbers of equal chains are compared up to this difference (DeepMind's config, `max_relative_chain`).
MAX_CHAIN_DIFFERENCE = 2
# Separations from -32 to 32 and "another chain"; differences of equal chains from -2 to 2 and "another sequence".
SEPARATIONS, CHAIN_DIFFERENCES = 2 * MAX_SEPARATION + 2, 2 * MAX_CHAIN_DIFFERENCE + 2


class ChainRelativePosition(Linear):
    """Embedding of two residues' separation within a chain, and of their chains' relation to each other.

    Evans et al. 2021; `use_chain_relative` in DeepMind's program. The inputs are one-hot separations
    (66), whether both chains have the same sequence (1), and one-hot differences of the numbers of equal chains (6).
    """

    def __init__(self, c_z: int) -> None:
        super().__init__(SEPARATIONS + 1 + CHAIN_DIFFERENCES, c_z)

    def edges(self, batch: Batch, rows: slice, dtype: torch.dtype) -> Float[Tensor, "b i j c_z"]:
        batch = with_chains(batch)
        separation = separations(batch, rows)
        separation = torch.where(_equal(batch.asym_id, rows), separation, SEPARATIONS - 1)
        difference = clipped_difference(batch.sym_id, rows, MAX_CHAIN_DIFFERENCE)
        difference = torch.where(_equal(batch.entity_id, rows), difference, CHAIN_DIFFERENCES - 1)
        by_separation, same_sequence, differences = self.weight.T.split([SEPARATIONS, 1, CHAIN_DIFFERENCES])
        # The last difference stands for chains of another sequence.
        chains = differences + pad(same_sequence.expand(CHAIN_DIFFERENCES - 1, -1), (0, 0, 0, 1))
        return look_up((by_separation + self.bias).to(dtype), separation) + look_up(chains.to(dtype), difference)


def multimer_input_embedder(c_m: int, c_z: int) -> InputEmbedder:
    """Return the embedder of the sequences, the sampled MSA and the places of residues in a complex."""
    return InputEmbedder(c_m, c_z, target_channels=TARGET_CHANNELS, relative_position=ChainRelativePosition)


def _equal(numbers: Int[Tensor, "b j"], rows: slice) -> Tensor:
    """Return whether some residues i have the same number as all residues j."""
    return rearrange(numbers[:, rows], "b i -> b i 1") == rearrange(numbers, "b j -> b 1 j")
