"""A differentiable lDDT loss, whose steps are replaced by logistic functions."""

import torch
from jaxtyping import Float
from torch import Tensor

from data_pipeline.residues import ATOM_ORDER
from helixfold.losses.heads import LDDT_LIMITS, distance_errors
from helixfold.losses.labels import Labels

_CA = ATOM_ORDER["CA"]
_COUNT_FLOOR = 1e-10


def smooth_lddt_loss(frames: Float[Tensor, "l b r 7"], labels: Labels) -> Float[Tensor, " b"]:
    """Return 1 minus the smooth lDDT of the C-alphas, mean over residues and iterations (AlphaFold 3, Suppl. Alg. 27).

    Each of lDDT's four steps is a logistic function of a distance's error with a width of 1 Angstrom. C-alphas are the
    origins of the backbone frames. The loss is equal for mirror images, so use it beside FAPE.
    """
    points, truth = frames[..., 4:], labels.all_atom_positions[..., _CA, :]
    mask = labels.all_atom_mask[..., _CA]
    errors, counted = distance_errors(points, truth, mask)
    preserved = sum(torch.sigmoid(limit - errors) for limit in LDDT_LIMITS) / len(LDDT_LIMITS)
    score = (counted * preserved).sum(-1) / (_COUNT_FLOOR + counted.sum(-1))
    has_neighbours = mask * (counted.sum(-1) > 0)
    return ((has_neighbours * (1 - score)).sum(-1) / (_COUNT_FLOOR + has_neighbours.sum(-1))).mean(0)
