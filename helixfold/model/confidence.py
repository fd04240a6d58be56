"""Turn the logits of the heads into the numbers people read: pLDDT, PAE, pTM, expected distances and contacts.

AlphaFold 2, Suppl. Sec. 1.9.6 (pLDDT), 1.9.7 (predicted aligned error, pTM) and 1.9.8 (distances).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.model.heads import FIRST_DISTANCE, LAST_DISTANCE, DistogramHead, LinearHead
from helixfold.model.update import Executor, Stream, transposed

# Angstrom between pseudo-beta atoms (C-beta, C-alpha of glycine), as CASP counts contacts.
CONTACT = 8.0

# One slab of probabilities in float32 is at most 64 MiB (or one row of the pair logits).
_SLAB_ELEMENTS = 2**24


def plddt(logits: Float[Tensor, "b r v"]) -> Float[Tensor, "b r"]:
    """Expected lDDT-CA of every residue, 0 (worst) to 100; the bins divide that range evenly (Suppl. Alg. 29)."""
    bins = logits.shape[-1]
    centers = (torch.arange(bins, device=logits.device, dtype=torch.float32) + 0.5) * (100 / bins)
    return logits.softmax(-1, dtype=torch.float32) @ centers


def aligned_error_breaks(bins: int, max_bin: float = 31.0) -> Float[Tensor, "edges"]:
    """The bins - 1 inner edges of the aligned-error bins in Angstrom: 0, 0.5, ..., 31 for AlphaFold's 64 bins."""
    return torch.linspace(0.0, max_bin, bins - 1, device="cpu")


def predicted_aligned_error(
    logits: Float[Tensor, "b i j v"], max_bin: float = 31.0
) -> tuple[Float[Tensor, "b i j"], float]:
    """Expected error in Angstrom of residue j when aligned on residue i, and the largest value it can take.

    Padding is not removed. The largest value is 31.75 for AlphaFold's 64 bins.
    """
    centers = _aligned_error_centers(logits.shape[-1], max_bin)
    return _expectation(logits, centers.to(logits.device).expand(logits.shape[0], -1)), float(centers[-1])


def predicted_tm_score(
    logits: Float[Tensor, "b i j v"],
    seq_mask: Float[Tensor, "b i"],
    max_bin: float = 31.0,
) -> Float[Tensor, "b"]:
    """pTM: the expected TM-score of each sample, 0 to 1, under its best alignment (mask: 1 for real residues)."""
    return (_tm_of_alignments(logits, seq_mask, max_bin) * seq_mask).amax(-1)


@dataclass(frozen=True, kw_only=True)
class AlignedError:
    """What is read off the logits of aligned errors: error of residue j when aligned on residue i, and pTM."""

    expected: Float[Tensor, "b i j"]  # Angstrom
    largest: float  # that it could be
    ptm: Float[Tensor, "b"]


def aligned_error(
    run: Executor,
    head: LinearHead,
    pair: Float[Stream, "b r r c_z"],
    seq_mask: Float[Tensor, "b r"],
    max_bin: float = 31.0,
) -> AlignedError:
    """PAE and pTM as above, of logits that are made for some rows of the pair stream at a time."""

    def of_rows(rows: slice, some: Tensor) -> Tensor:
        logits = head(some)
        expected, _ = predicted_aligned_error(logits, max_bin)
        return torch.cat([expected, _tm_of_alignments(logits, seq_mask, max_bin)[..., None]], -1)

    bins = head.linear.out_features
    found = run.gather(run.map_rows(of_rows, pair))
    return AlignedError(
        expected=found[..., :-1],
        largest=float(_aligned_error_centers(bins, max_bin)[-1]),
        ptm=(found[..., -1] * seq_mask).amax(-1),
    )


@dataclass(frozen=True, kw_only=True)
class ExpectedDistances:
    """What is read off the logits of distances between pseudo-beta atoms, symmetric in the two residues.

    The last bin is open and counts as being as wide as the others: pairs that are certain to be further apart than
    21.7 Angstrom have an expected distance of 21.8, the largest there is.
    """

    expected: Float[Tensor, "b r r"]  # Angstrom
    contact: Float[Tensor, "b r r"]  # probability, 0 to 1, of less than CONTACT


def expected_distances(run: Executor, head: DistogramHead, pair: Float[Stream, "b r r c_z"]) -> ExpectedDistances:
    """Of logits that are made for so few edges at a time that they are never there for all, whatever `run` does."""
    bins, residues = head.linear.out_features, pair.shape[2]
    values = distance_values(bins).to(pair.device)
    at_once = max(1, _SLAB_ELEMENTS // (pair.shape[0] * residues * bins))

    def of_rows(_: slice, some: Tensor, others: Tensor) -> Tensor:
        means = [
            torch.einsum("b i j v, v n -> b i n j", head(*edges).softmax(-1), values)
            for edges in zip(some.split(at_once, 1), others.split(at_once, 1), strict=True)
        ]
        return torch.cat(means, 1).flatten(2)

    found = run.gather(run.map_rows(of_rows, pair, transposed(pair, "columns")))
    return ExpectedDistances(expected=found[..., :residues], contact=found[..., residues:])


def distance_values(bins: int) -> Float[Tensor, "v 2"]:
    """Of every bin of distances: its middle in Angstrom, and which part of it is below CONTACT."""
    edges = torch.linspace(FIRST_DISTANCE, LAST_DISTANCE, bins - 1)
    width = (LAST_DISTANCE - FIRST_DISTANCE) / (bins - 2)
    middles = torch.cat([edges - width / 2, edges[-1:] + width / 2])
    return torch.stack([middles, ((CONTACT - middles) / width + 0.5).clamp(0, 1)], -1)


def ranking_confidence(plddt: Float[Tensor, "b r"], seq_mask: Float[Tensor, "b r"]) -> Float[Tensor, "b"]:
    """What a target's models are ranked by: the mean pLDDT of the real residues, as for AlphaFold's monomers."""
    return (plddt * seq_mask).sum(-1) / seq_mask.sum(-1)


def _tm_of_alignments(
    logits: Float[Tensor, "b i j v"], seq_mask: Float[Tensor, "b j"], max_bin: float
) -> Float[Tensor, "b i"]:
    """The expected TM-score of each sample when it is aligned on some of its residues."""
    residues = seq_mask.sum(-1, dtype=torch.float32)
    # The TM-score's scale (Zhang & Skolnick 2004, Eq. 5) is not defined for short chains; AlphaFold takes 19 as least.
    scale = 1.24 * (residues.clamp(min=19) - 15) ** (1 / 3) - 1.8
    centers = _aligned_error_centers(logits.shape[-1], max_bin).to(logits.device)
    term = _expectation(logits, 1 / (1 + (centers / scale[:, None]) ** 2))
    weight = seq_mask.float()[:, None]
    return (term * weight).sum(-1) / (weight.sum(-1) + 1e-8)


def _aligned_error_centers(bins: int, max_bin: float) -> Float[Tensor, "v"]:
    """Middle of every aligned-error bin; the last bin is open and counts as being as wide as the others."""
    breaks = aligned_error_breaks(bins, max_bin)
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
