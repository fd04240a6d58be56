"""Embedders of features and of the previous recycling iteration, for some rows of the MSA or pair stream at a time."""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from helixfold.geometry.atoms import DistanceBins, distogram
from helixfold.model.layers import LayerNorm, Linear
from helixfold.ops.look_up import look_up

# Relative positions are clipped to this many residues (AlphaFold 2, Suppl. Alg. 4).
MAX_SEPARATION = 32
TARGET_CHANNELS, MSA_CHANNELS = 22, 49
# MSA letters: 20 residue types, unknown, gap, masked.
MSA_LETTERS = 23
# Recycled distances between pseudo-beta atoms: 15 bins from 3.25 Angstrom (Suppl. Alg. 32; DeepMind's config).
RECYCLED_BINS = DistanceBins(first=3.25, last=20.75, count=15)


class InputEmbedder(nn.Module):
    """Embedding of the sequence, the sampled MSA and the residue numbers (AlphaFold 2, Suppl. Alg. 3 and 4)."""

    def __init__(self, c_m: int, c_z: int) -> None:
        super().__init__()
        self.msa = Linear(MSA_CHANNELS, c_m)
        self.target = Linear(TARGET_CHANNELS, c_m)
        self.left = Linear(TARGET_CHANNELS, c_z)
        self.right = Linear(TARGET_CHANNELS, c_z)
        self.relative_position = Linear(2 * MAX_SEPARATION + 1, c_z)

    def pair_rows(
        self,
        target_rows: Float[Tensor, "b i 22"],
        index_rows: Int[Tensor, "b i"],
        target: Float[Tensor, "b j 22"],
        residue_index: Int[Tensor, "b j"],
    ) -> Float[Tensor, "b i j c_z"]:
        """Return the edges from some residues i to all residues j."""
        separation = rearrange(index_rows, "b i -> b i 1") - rearrange(residue_index, "b j -> b 1 j")
        # A one-hot vector times a matrix is one of its rows; looking it up avoids an (i, j, 65) tensor.
        rows = self.relative_position.weight.T + self.relative_position.bias
        position = look_up(rows.to(target.dtype), separation.clamp(-MAX_SEPARATION, MAX_SEPARATION) + MAX_SEPARATION)
        return (
            position
            + rearrange(self.left(target_rows), "b i c -> b i 1 c")
            + rearrange(self.right(target), "b j c -> b 1 j c")
        )

    def msa_rows(self, msa: Float[Tensor, "b s r 49"], target: Float[Tensor, "b r 22"]) -> Float[Tensor, "b s r c_m"]:
        """Return the embedded rows of some sequences."""
        return self.msa(msa) + rearrange(self.target(target), "b r c -> b 1 r c")


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
        """Return some rows of the pair stream plus those of `previous` and the embedded pseudo-beta distances."""
        pair = pair + self.distances(distogram(beta_rows, beta, RECYCLED_BINS).to(pair.dtype))
        return pair + self.norm_pair(previous.to(pair.dtype))

    def first_row(self, row: Float[Tensor, "b r c_m"], previous: Float[Tensor, "b r c_m"]) -> Float[Tensor, "b r c_m"]:
        """Return the target's own row of the MSA plus the previous iteration's."""
        return row + self.norm_msa(previous.to(row.dtype))


class ExtraMSAEmbedder(nn.Module):
    """Embedding of the unclustered sequences (AlphaFold 2, Suppl. Sec. 1.7.2, Alg. 2 line 15)."""

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
        """Return the embedded rows of some sequences."""
        one_hot = nn.functional.one_hot(letters, MSA_LETTERS).to(dtype)
        return self.linear(torch.cat([one_hot, has_deletion[..., None], deletion_value[..., None]], -1).to(dtype))
