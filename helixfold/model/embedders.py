"""Embedders of features and of the previous recycling iteration, for a few rows of a stream at a time."""

from collections.abc import Callable
from typing import Protocol

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from helixfold.model.batch import Batch
from helixfold.model.config import MSA_LETTERS
from helixfold.model.geometry.atoms import DistanceBins, distogram
from helixfold.model.layers import LayerNorm, Linear
from helixfold.ops.look_up import look_up

# Relative positions are clipped to this many residues (AlphaFold 2, Suppl. Alg. 4).
MAX_SEPARATION = 32
# Channels of the features `target_feat` and `msa_feat` (`Batch`).
TARGET_CHANNELS, MSA_CHANNELS = 22, 49
# Recycled distances between pseudo-beta atoms: 15 bins from 3.25 Angstrom (Suppl. Alg. 32; DeepMind's config).
RECYCLED_BINS = DistanceBins(first=3.25, last=20.75, count=15)


class PositionEmbedding(Protocol):
    """Interface of embeddings of the relative position of two residues."""

    def edges(self, batch: Batch, rows: slice, dtype: torch.dtype) -> Float[Tensor, "b i j c_z"]:
        """Return the edges from the residues i in `rows` to all residues j."""


class RelativePosition(Linear):
    """Embedding of the separation of two residues in the sequence (AlphaFold 2, Suppl. Alg. 4)."""

    def __init__(self, c_z: int) -> None:
        super().__init__(2 * MAX_SEPARATION + 1, c_z)

    def edges(self, batch: Batch, rows: slice, dtype: torch.dtype) -> Float[Tensor, "b i j c_z"]:
        # A one-hot vector times a matrix is one of its rows; looking it up avoids an (i, j, 65) tensor.
        table = self.weight.T + self.bias
        return look_up(table.to(dtype), separations(batch, rows))


class InputEmbedder(nn.Module):
    """Embedding of the sequence, the sampled MSA and the residue numbers (AlphaFold 2, Suppl. Alg. 3 and 4)."""

    def __init__(
        self,
        c_m: int,
        c_z: int,
        *,
        target_channels: int = TARGET_CHANNELS,
        relative_position: Callable[[int], PositionEmbedding] = RelativePosition,
    ) -> None:
        super().__init__()
        self.msa = Linear(MSA_CHANNELS, c_m)
        self.target = Linear(target_channels, c_m)
        self.left = Linear(target_channels, c_z)
        self.right = Linear(target_channels, c_z)
        self.relative_position = relative_position(c_z)

    def pair_rows(self, batch: Batch, rows: slice, dtype: torch.dtype) -> Float[Tensor, "b i j c_z"]:
        """Return the edges from residues i in `rows` to all j: embedded types of both plus relative positions."""
        target = batch.target_feat.to(dtype)
        return (
            self.relative_position.edges(batch, rows, dtype)
            + rearrange(self.left(target[:, rows]), "b i c -> b i 1 c")
            + rearrange(self.right(target), "b j c -> b 1 j c")
        )

    def msa_rows(self, batch: Batch, rows: slice, dtype: torch.dtype) -> Float[Tensor, "b s r c_m"]:
        """Return the embedded MSA rows in `rows`, plus the embedded target sequence in each."""
        target = self.target(batch.target_feat.to(dtype))
        return self.msa(batch.msa_feat[:, rows].to(dtype)) + rearrange(target, "b r c -> b 1 r c")


def separations(batch: Batch, rows: slice) -> Int[Tensor, "b i j"]:
    """Return i - j along the chain for residues i in `rows` and all j, clipped to -32 to 32 and shifted to 0 to 64."""
    if batch.offsets is None:
        return clipped_difference(batch.residue_index, rows, MAX_SEPARATION)
    return batch.offsets[:, rows].long().clamp(-MAX_SEPARATION, MAX_SEPARATION) + MAX_SEPARATION


def clipped_difference(values: Int[Tensor, "b j"], rows: slice, max_difference: int) -> Int[Tensor, "b i j"]:
    """Return values of residues i in `rows` minus values of all j, clipped and shifted to 0 to 2 * `max_difference`."""
    difference = rearrange(values[:, rows], "b i -> b i 1") - rearrange(values, "b j -> b 1 j")
    return difference.clamp(-max_difference, max_difference) + max_difference


class RecyclingEmbedder(nn.Module):
    """Embedding of the previous iteration's MSA row, pair stream and structure (AlphaFold 2, Suppl. Alg. 32)."""

    def __init__(self, c_m: int, c_z: int) -> None:
        super().__init__()
        self.norm_msa = LayerNorm(c_m)
        self.norm_pair = LayerNorm(c_z)
        self.distances = Linear(RECYCLED_BINS.count, c_z)

    def pair_rows(
        self,
        pair: Float[Tensor, "b i j c_z"],
        previous: Float[Tensor, "b i j c_z"],
        beta_rows: Float[Tensor, "b i 3"],
        beta: Float[Tensor, "b j 3"],
    ) -> Float[Tensor, "b i j c_z"]:
        """Return rows of the pair stream plus the layer norm of `previous` and the embedded pseudo-beta distances."""
        pair = pair + self.distances(distogram(beta_rows, beta, RECYCLED_BINS).to(pair.dtype))
        return pair + self.norm_pair(previous.to(pair.dtype))

    def first_row(self, row: Float[Tensor, "b r c_m"], previous: Float[Tensor, "b r c_m"]) -> Float[Tensor, "b r c_m"]:
        """Return the first MSA row, the target's sequence, plus the layer norm of the previous iteration's first."""
        return row + self.norm_msa(previous.to(row.dtype))


class ExtraMSAEmbedder(nn.Module):
    """Embedding of the extra MSA rows, which are not clustered (AlphaFold 2, Suppl. Sec. 1.7.2, Alg. 2 line 15)."""

    def __init__(self, c_e: int) -> None:
        super().__init__()
        self.linear = Linear(MSA_LETTERS + 2, c_e)

    def forward(
        self,
        letters: Int[Tensor, "b e r"],
        has_deletion: Float[Tensor, "b e r"],
        deletion_value: Float[Tensor, "b e r"],
        dtype: torch.dtype,
    ) -> Float[Tensor, "b e r c_e"]:
        """Return the embedded rows of extra sequences from letters (0 to 22) and deletion features."""
        one_hot = nn.functional.one_hot(letters, MSA_LETTERS).to(dtype)
        return self.linear(torch.cat([one_hot, has_deletion[..., None], deletion_value[..., None]], -1).to(dtype))
