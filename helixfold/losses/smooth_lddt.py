"""Move atoms towards a better lDDT: what the score counts, with slopes where it has steps."""

import torch
from jaxtyping import Float
from torch import Tensor

from data_pipeline.residues import ATOM_ORDER
from helixfold.losses.heads import LDDT_LIMITS, off_and_counted
from helixfold.losses.labels import Labels

_CA = ATOM_ORDER["CA"]
_COUNT_FLOOR = 1e-10


def smooth_lddt_loss(frames: Float[Tensor, "l b r 7"], labels: Labels) -> Float[Tensor, " b"]:
    """Return 1 less the smooth lDDT of the C-alphas, mean over residues and iterations (AlphaFold 3, Suppl. Alg. 27).

    Each of lDDT's four steps is a logistic function, one Angstrom wide, of how far a distance is off; the C-alphas are
    where the backbone's frames lie. It does not tell a structure from its mirror image, so it goes beside FAPE.
    """
    points, truth = frames[..., 4:], labels.all_atom_positions[..., _CA, :]
    mask = labels.all_atom_mask[..., _CA]
    off, counted = off_and_counted(points, truth, mask)
    kept = sum(torch.sigmoid(limit - off) for limit in LDDT_LIMITS) / len(LDDT_LIMITS)
    score = (counted * kept).sum(-1) / (_COUNT_FLOOR + counted.sum(-1))
    neighboured = mask * (counted.sum(-1) > 0)
    return ((neighboured * (1 - score)).sum(-1) / (_COUNT_FLOOR + neighboured.sum(-1))).mean(0)
