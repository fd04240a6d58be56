"""Compute pLDDT, PAE, pTM, expected distances and contact probabilities from the logits of the heads.

AlphaFold 2, Suppl. Sec. 1.9.6 (pLDDT), 1.9.7 (predicted aligned error, pTM) and 1.9.8 (distances).
"""

from dataclasses import dataclass
from functools import cache

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from helixfold.model.heads import FIRST_DISTANCE, LAST_DISTANCE, DistogramHead, LinearHead, lddt_centers
from helixfold.model.update import Executor, Stream, transposed

# Angstrom between pseudo-beta atoms (C-beta, C-alpha of glycine) below which CASP counts a contact.
CONTACT = 8.0
# Angstrom, the lower edge of the last aligned-error bin (DeepMind's config).
_LAST_ERROR = 31.0
# Maximum number of probabilities that are computed at once, 64 MiB in float32 (or one row of the pair stream).
_SLAB_ELEMENTS = 2**24


def plddt(logits: Float[Tensor, "b r v"]) -> Float[Tensor, "b r"]:
    """Return the expected lDDT-CA of every residue, 0 (worst) to 100, from the logits of its bins (Suppl. Alg. 29)."""
    return logits.softmax(-1, dtype=torch.float32) @ lddt_centers(logits.shape[-1], logits.device)


def aligned_error_breaks(bins: int) -> Float[Tensor, "edges"]:
    """Return the `bins - 1` edges between aligned-error bins in Angstrom: 0, 0.5, ..., 31 for AlphaFold's 64 bins."""
    return torch.linspace(0.0, _LAST_ERROR, bins - 1, device="cpu")


def predicted_aligned_error(logits: Float[Tensor, "b i j v"]) -> tuple[Float[Tensor, "b i j"], float]:
    """Return the expected error (Angstrom) of residue j when aligned on residue i, and the largest value it can take.

    The largest value depends on the number of bins only; it is 31.75 for AlphaFold's 64. Padding residues are not
    removed.
    """
    bins = logits.shape[-1]
    centers = _aligned_error_centers(bins, logits.device)
    return _expectation(logits, centers.expand(logits.shape[0], -1)), _largest_aligned_error(bins)


@dataclass(frozen=True, kw_only=True)
class AlignedError:
    """Predicted aligned error and pTM of each sample, and ipTM of each complex (Evans et al. 2021).

    `by_chain` [sample, a, b] has the expected TM-score of chain b if the complex is aligned on the best residue of
    chain a: the pTM of a chain where a = b, else the ipTM of two chains in this direction.
    """

    expected: Float[Tensor, "b i j"]  # Angstrom, of residue j when aligned on residue i
    largest: float  # the largest value that `expected` can take
    ptm: Float[Tensor, "b"]
    iptm: Float[Tensor, "b"] | None  # pTM from other chains' residues only; None without chain indices
    by_chain: Float[Tensor, "b k k"] | None = None  # None without chain indices


def aligned_error(
    run: Executor,
    head: LinearHead,
    pair: Float[Stream, "b r r c_z"],
    seq_mask: Float[Tensor, "b r"],
    asym_id: Int[Tensor, "b r"] | None = None,
) -> AlignedError:
    """Return PAE and pTM, computing the logits for a few rows of the pair stream at a time.

    With `asym_id`, the index of each residue's chain from 1, also return ipTM, and the scores of each chain and of each
    pair of chains. PAE is not masked: it has values for padding residues, too.
    """
    chains = 0 if asym_id is None else int(asym_id.max())

    def errors_and_tm(rows: slice, slab: Tensor) -> Tensor:
        logits = head(slab)
        scores = [tm_of_alignments(logits, seq_mask)]
        if asym_id is not None:
            scores.append(tm_of_alignments(logits, seq_mask, _other_chains(asym_id, rows)))
            scores += tm_between_chains(logits, seq_mask, asym_id, rows, chains).unbind(-1)
        return torch.cat([predicted_aligned_error(logits)[0], torch.stack(scores, -1)], -1)

    result = run.gather(run.map_rows(errors_and_tm, pair))
    residues = seq_mask.shape[1]
    # The score of a structure is the score of the best alignment.
    scores = result[..., residues:] * seq_mask[..., None]
    best = scores.amax(1).unbind(-1)
    return AlignedError(
        expected=result[..., :residues],
        largest=_largest_aligned_error(head.linear.out_features),
        ptm=best[0],
        iptm=None if asym_id is None else best[1],
        by_chain=None if asym_id is None else _best_of_chains(scores[..., 2:], asym_id),
    )


def _best_of_chains(scores: Float[Tensor, "b i k"], asym_id: Int[Tensor, "b i"]) -> Float[Tensor, "b k k"]:
    """Return the maximum of the scores over the residues of each chain; `scores` has one column per chain."""
    chains = torch.arange(1, scores.shape[-1] + 1, device=asym_id.device)
    member = rearrange(asym_id, "b i -> b 1 i 1") == rearrange(chains, "k -> k 1 1")
    return (rearrange(scores, "b i k -> b 1 i k") * member).amax(2)


@dataclass(frozen=True, kw_only=True)
class ExpectedDistances:
    """Expected distances and contact probabilities of pseudo-beta atoms, symmetric in the two residues.

    The last distance bin is open and is treated like the others: a pair that is certainly further apart than 21.7
    Angstrom has the maximum expected distance, 21.8.
    """

    expected: Float[Tensor, "b r r"]  # Angstrom
    contact: Float[Tensor, "b r r"]  # probability of a distance below CONTACT


def expected_distances(run: Executor, head: DistogramHead, pair: Float[Stream, "b r r c_z"]) -> ExpectedDistances:
    """Return expected distances and contacts, computing at most 2**24 probabilities (or one row of pairs) at a time."""
    bins, residues = head.linear.out_features, pair.shape[2]
    values = _distance_values(bins, pair.device)
    rows_at_once = max(1, _SLAB_ELEMENTS // (pair.shape[0] * residues * bins))

    def distances_and_contacts(_: slice, rows: Tensor, columns: Tensor) -> Tensor:
        means = [
            torch.einsum("b i j v, v n -> b i n j", head(*edges).softmax(-1), values)
            for edges in zip(rows.split(rows_at_once, 1), columns.split(rows_at_once, 1), strict=True)
        ]
        return torch.cat(means, 1).flatten(2)

    result = run.gather(run.map_rows(distances_and_contacts, pair, transposed(pair, "columns")))
    return ExpectedDistances(expected=result[..., :residues], contact=result[..., residues:])


def distance_values(bins: int) -> Float[Tensor, "v 2"]:
    """Return two columns: the centre of every distance bin (Angstrom) and the fraction of the bin below CONTACT.

    The first and last bins, which are open, count as wide as the others.
    """
    edges = torch.linspace(FIRST_DISTANCE, LAST_DISTANCE, bins - 1)
    width = (LAST_DISTANCE - FIRST_DISTANCE) / (bins - 2)
    centers = torch.cat([edges - width / 2, edges[-1:] + width / 2])
    return torch.stack([centers, ((CONTACT - centers) / width + 0.5).clamp(0, 1)], -1)


def ranking_confidence(plddt: Float[Tensor, "b r"], seq_mask: Float[Tensor, "b r"]) -> Float[Tensor, "b"]:
    """Return the mean pLDDT of each sample's real residues, AlphaFold's score for ranking predictions of monomers."""
    return (plddt * seq_mask).sum(-1) / seq_mask.sum(-1)


def complex_ranking_confidence(ptm: Float[Tensor, "b"], iptm: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Return 0.8 ipTM + 0.2 pTM, AlphaFold-Multimer's score for ranking predictions (Evans et al. 2021)."""
    return 0.8 * iptm + 0.2 * ptm


def tm_of_alignments(
    logits: Float[Tensor, "b i j v"],
    seq_mask: Float[Tensor, "b j"],
    counted: Bool[Tensor, "b i j"] | None = None,
) -> Float[Tensor, "b i"]:
    """Return the expected TM-score (0 to 1) of each sample if it is aligned on residue i, from aligned-error logits.

    The score is the mean over the residues j that are real and, if `counted` is passed, true there in row i.
    """
    scale = _tm_scale(seq_mask.sum(-1, dtype=torch.float32))
    centers = _aligned_error_centers(logits.shape[-1], logits.device)
    term = _expectation(logits, 1 / (1 + (centers / scale[:, None]) ** 2))
    weight = seq_mask.float()[:, None]
    if counted is not None:
        weight = weight * counted
    return (term * weight).sum(-1) / (weight.sum(-1) + 1e-8)


def tm_between_chains(
    logits: Float[Tensor, "b i j v"],
    seq_mask: Float[Tensor, "b j"],
    asym_id: Int[Tensor, "b j"],
    rows: slice,
    chains: int,
) -> Float[Tensor, "b i k"]:
    """Return the expected TM-score (0 to 1) of each chain k if a complex is aligned on residue i, one of `rows`.

    The scale of the TM-score is computed from residue i's chain and chain k only. The maximum over the residues of a
    chain is its pTM if k is the chain itself, otherwise the ipTM of the two chains in this direction. `asym_id` is the
    index of each residue's chain, from 1 to `chains`.
    """
    indices = torch.arange(1, chains + 1, device=asym_id.device)
    member = (rearrange(asym_id, "b j -> b j 1") == indices).float() * rearrange(seq_mask, "b j -> b j 1")
    sizes = member.sum(1)
    size = torch.einsum("b j k, b k -> b j", member, sizes)
    other = _other_chains(asym_id, rows).float()
    scale = _tm_scale(rearrange(size[:, rows], "b i -> b i 1") + other * rearrange(size, "b j -> b 1 j"))
    centers = _aligned_error_centers(logits.shape[-1], logits.device)
    rows_at_once = max(1, _SLAB_ELEMENTS // max(1, logits[:, 0].numel()))
    terms = [
        (slab.softmax(-1, dtype=torch.float32) / (1 + (centers / scales[..., None]) ** 2)).sum(-1)
        for slab, scales in zip(logits.split(rows_at_once, 1), scale.split(rows_at_once, 1), strict=True)
    ]
    return torch.einsum("b i j, b j k -> b i k", torch.cat(terms, 1), member) / (sizes[:, None] + 1e-8)


def _tm_scale(residues: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Return the distance scale of the TM-score (Angstrom), at which a residue counts half."""
    # The scale (Zhang & Skolnick 2004, Eq. 5) is undefined for short chains; AlphaFold uses at least 19 residues.
    return 1.24 * (residues.clamp(min=19) - 15) ** (1 / 3) - 1.8


def _other_chains(asym_id: Int[Tensor, "b r"], rows: slice) -> Bool[Tensor, "b i r"]:
    """Return whether each residue is in another chain than residue i, for residues i in `rows`."""
    return rearrange(asym_id[:, rows], "b i -> b i 1") != rearrange(asym_id, "b j -> b 1 j")


# Tables are cached for each device, so that they are not copied from the host in each iteration.
@cache
def _aligned_error_centers(bins: int, device: torch.device) -> Float[Tensor, "v"]:
    """Return the centre of every aligned-error bin; the last bin is open and is treated like the others."""
    breaks = aligned_error_breaks(bins)
    half = (breaks[1] - breaks[0]) / 2
    return torch.cat([breaks + half, breaks[-1:] + 3 * half]).to(device)


@cache
def _largest_aligned_error(bins: int) -> float:
    return float(_aligned_error_centers(bins, torch.device("cpu"))[-1])


@cache
def _distance_values(bins: int, device: torch.device) -> Float[Tensor, "v 2"]:
    return distance_values(bins).to(device)


def _expectation(logits: Float[Tensor, "b i j v"], values: Float[Tensor, "b v"]) -> Float[Tensor, "b i j"]:
    """Return the mean of `values` under the distribution of every pair, computing a few rows of pairs at a time."""
    rows = max(1, _SLAB_ELEMENTS // max(1, logits[:, 0].numel()))
    means = [
        torch.einsum("b i j v, b v -> b i j", slab.softmax(-1, dtype=torch.float32), values)
        for slab in torch.split(logits, rows, dim=1)
    ]
    return torch.cat(means, dim=1)
