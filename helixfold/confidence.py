"""Turn the logits of the confidence heads into the numbers people read: pLDDT, PAE and pTM.

AlphaFold 2, Suppl. Sec. 1.9.6 (pLDDT) and 1.9.7 (predicted aligned error, pTM).
"""

import torch
from jaxtyping import Float
from torch import Tensor

# One slab of probabilities in float32 is at most 64 MiB (or one row of the pair logits).
_SLAB_ELEMENTS = 2**24


def plddt(logits: Float[Tensor, "b r v"]) -> Float[Tensor, "b r"]:
    """Expected lDDT-CA of every residue, 0 (worst) to 100; the bins divide that range evenly (Suppl. Alg. 29)."""
    bins = logits.shape[-1]
    centers = (torch.arange(bins, device=logits.device, dtype=torch.float32) + 0.5) * (100 / bins)
    return logits.softmax(-1, dtype=torch.float32) @ centers


def aligned_error_breaks(bins: int, max_bin: float = 31.0) -> Float[Tensor, "edges"]:
    """The bins - 1 inner edges of the aligned-error bins in Angstrom: 0, 0.5, ..., 31 for AlphaFold's 64 bins."""
    return torch.linspace(0.0, max_bin, bins - 1)


def predicted_aligned_error(
    logits: Float[Tensor, "b i j v"], max_bin: float = 31.0
) -> tuple[Float[Tensor, "b i j"], float]:
    """Expected error in Angstrom of residue j when aligned on residue i, and the largest value it can take.

    Padding is not removed. The largest value is 31.75 for AlphaFold's 64 bins.
    """
    centers = _aligned_error_centers(logits, max_bin)
    return _expectation(logits, centers.expand(logits.shape[0], -1)), float(centers[-1])


def predicted_tm_score(
    logits: Float[Tensor, "b i j v"],
    seq_mask: Float[Tensor, "b i"],
    max_bin: float = 31.0,
) -> Float[Tensor, "b"]:
    """pTM: the expected TM-score of each sample, 0 to 1, under its best alignment (mask: 1 for real residues)."""
    residues = seq_mask.sum(-1, dtype=torch.float32)
    # The TM-score's scale (Zhang & Skolnick 2004, Eq. 5) is not defined for short chains; AlphaFold takes 19 as least.
    scale = 1.24 * (residues.clamp(min=19) - 15) ** (1 / 3) - 1.8
    tm_of_bin = 1 / (1 + (_aligned_error_centers(logits, max_bin) / scale[:, None]) ** 2)
    term = _expectation(logits, tm_of_bin)

    weight = seq_mask.float()[:, :, None] * seq_mask.float()[:, None, :]
    per_alignment = (term * weight).sum(-1) / (weight.sum(-1) + 1e-8)
    return per_alignment.amax(-1)


def ranking_confidence(plddt: Float[Tensor, "b r"], seq_mask: Float[Tensor, "b r"]) -> Float[Tensor, "b"]:
    """What a target's models are ranked by: the mean pLDDT of the real residues, as for AlphaFold's monomers."""
    return (plddt * seq_mask).sum(-1) / seq_mask.sum(-1)


def _aligned_error_centers(logits: Tensor, max_bin: float) -> Float[Tensor, "v"]:
    """Middle of every aligned-error bin; the last bin is open and counts as being as wide as the others."""
    breaks = aligned_error_breaks(logits.shape[-1], max_bin).to(logits.device)
    half = (breaks[1] - breaks[0]) / 2
    return torch.cat([breaks + half, breaks[-1:] + 3 * half])


def _expectation(logits: Float[Tensor, "b i j v"], values: Float[Tensor, "b v"]) -> Float[Tensor, "b i j"]:
    """Mean of `values` under the distribution of every pair; never holds the probabilities of all pairs."""
    rows = max(1, _SLAB_ELEMENTS // max(1, logits[:, 0].numel()))
    means = [
        torch.einsum("b i j v, b v -> b i j", slab.softmax(-1, dtype=torch.float32), values)
        for slab in torch.split(logits, rows, dim=1)
    ]
    return torch.cat(means, dim=1)
