"""Move atoms towards a better lDDT: what the score counts, with slopes where it has steps."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from data_pipeline.residues import ATOM_ORDER
from helixfold.labels import Labels

_CA = ATOM_ORDER["CA"]
_CUTOFF = 15.0  # Angstrom, in the true structure
_LIMITS = (0.5, 1.0, 2.0, 4.0)  # Angstrom that a distance may be off
_COUNT_FLOOR = 1e-10


def smooth_lddt_loss(frames: Float[Tensor, "l b r 7"], labels: Labels) -> Float[Tensor, " b"]:
    """1 less the smooth lDDT of the C-alphas, 0 to 1, mean over residues and iterations (AlphaFold 3, Suppl. Alg. 27).

    Each of lDDT's four steps is a logistic function, one Angstrom wide, of how far a distance is off; the C-alphas are
    where the backbone's frames lie. It does not tell a structure from its mirror image, so it goes beside FAPE.
    """
    points, truth = frames[..., 4:], labels.all_atom_positions[..., _CA, :]
    mask = labels.all_atom_mask[..., _CA]
    true_distances = _distances(truth)
    off = (_distances(points) - true_distances).abs()
    counted = (true_distances < _CUTOFF) * rearrange(mask, "b i -> b i 1") * rearrange(mask, "b j -> b 1 j")
    counted = counted * (1 - torch.eye(mask.shape[1], dtype=mask.dtype, device=mask.device))
    kept = sum(torch.sigmoid(limit - off) for limit in _LIMITS) / len(_LIMITS)
    score = (counted * kept).sum(-1) / (_COUNT_FLOOR + counted.sum(-1))
    neighboured = mask * (counted.sum(-1) > 0)
    error = (neighboured * (1 - score)).sum(-1) / (_COUNT_FLOOR + neighboured.sum(-1))
    return error.mean(0)


def _distances(points: Float[Tensor, "*l b r 3"]) -> Float[Tensor, "*l b r r"]:
    # Squares by matrix products would cost the digits that 0.5 Angstrom at 1,000 need.
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
