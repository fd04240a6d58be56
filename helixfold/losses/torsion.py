"""Bring torsion angles to the true ones, and the vectors they are read from to unit length."""

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.geometry.torsions import Torsions

# Added to a squared length before the root, and to counts (DeepMind's program).
_LENGTH_FLOOR = 1e-6
_COUNT_FLOOR = 1e-10
_FIRST_CHI = 3


def torsion_loss(sin_cos: Float[Tensor, "l b r 7 2"], truth: Torsions) -> Float[Tensor, " b"]:
    """Squared chord between predicted and true chi angles, the mean over iterations and observed angles.

    AlphaFold 2, Suppl. Alg. 27. Of an angle that looks the same after half a turn the nearer one counts.
    """
    # Differs from the supplement, as DeepMind's program does: the backbone's angles take no part.
    found = sin_cos[..., _FIRST_CHI:, :]
    chords = torch.minimum(
        (found - truth.sin_cos[..., _FIRST_CHI:, :]).square().sum(-1),
        (found - truth.alternative_sin_cos[..., _FIRST_CHI:, :]).square().sum(-1),
    ).mean(0)
    mask = truth.mask[..., _FIRST_CHI:]
    return (chords * mask).sum((-1, -2)) / (_COUNT_FLOOR + mask.sum((-1, -2)))


def angle_norm_loss(unnormalized: Float[Tensor, "l b r 7 2"], seq_mask: Float[Tensor, "b r"]) -> Float[Tensor, " b"]:
    """Return how far the unnormalised torsion vectors are from unit length (Suppl. Alg. 27 line 3)."""
    length = torch.sqrt(unnormalized.square().sum(-1) + _LENGTH_FLOOR)
    off = (length - 1).abs().mean((0, -1))
    return (off * seq_mask).sum(-1) / (_COUNT_FLOOR + seq_mask.sum(-1))
