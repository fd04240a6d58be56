"""Losses of torsion angles, and of the lengths of the vectors that represent them."""

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.losses.heads import masked_mean
from helixfold.model.geometry.rigid import length
from helixfold.model.geometry.torsions import Torsions

# Added to a squared length before the root, and to counts (DeepMind's program).
_LENGTH_FLOOR = 1e-6
_COUNT_FLOOR = 1e-10
_CHIS = 4  # number of chi angles, which are the last torsions


def torsion_loss(sin_cos: Float[Tensor, "l b r 7 2"], truth: Torsions) -> Float[Tensor, " b"]:
    """Return the squared chord between predicted and true chi angles, averaged over iterations and observed angles.

    The other torsions do not count. Dim `l` is the iterations of the structure module.

    AlphaFold 2, Suppl. Alg. 27. For angles that are symmetric under a rotation by 180 degrees, the nearer value counts.
    """
    # As in DeepMind's program, but unlike the supplement, backbone angles do not count.
    both = torch.stack([truth.sin_cos, truth.alternative_sin_cos])[:, None, ..., -_CHIS:, :]
    chords = (sin_cos[..., -_CHIS:, :] - both).square().sum(-1).amin(0).mean(0)
    return masked_mean(chords, truth.mask[..., -_CHIS:], _COUNT_FLOOR)


def angle_norm_loss(unnormalized: Float[Tensor, "l b r 7 2"], seq_mask: Float[Tensor, "b r"]) -> Float[Tensor, " b"]:
    """Return the mean absolute deviation of all seven torsion vectors from unit length (Suppl. Alg. 27 line 3)."""
    deviation = (length(unnormalized, _LENGTH_FLOOR**0.5) - 1).abs().mean((0, -1))
    return masked_mean(deviation, seq_mask, _COUNT_FLOOR)
