"""Confidences equal DeepMind's, whatever the precision, the padding and the size of the slabs."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model import confidence
from helixfold.model.heads import DistogramHead, LinearHead
from helixfold.model.update import Executor
from tests.model.ptm import ptm_of


def float64_scores(logits: np.ndarray, centers: np.ndarray) -> np.ndarray:
    probabilities = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return probabilities @ centers / probabilities.sum(-1)


class LargestResult(TorchDispatchMode):
    """Remembers the largest tensor that any operation returned."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


@pytest.mark.parity
def test_scores_equal_those_of_deepminds_functions(reference: Path) -> None:
    arrays = np.load(reference / "modules" / "functions.npz")

    def given(name: str) -> Tensor:
        return torch.from_numpy(arrays[name])[None]

    pae, max_pae = confidence.predicted_aligned_error(given("confidence_pae|in:logits"))
    np.testing.assert_allclose(pae[0], arrays["confidence_pae|out:predicted_aligned_error"], rtol=1e-5)
    assert max_pae == arrays["confidence_pae|out:max_predicted_aligned_error"] == 31.75
    np.testing.assert_array_equal(confidence.aligned_error_breaks(64), arrays["confidence_pae|in:breaks"])

    everyone = torch.ones(1, 20)
    ptm = ptm_of(given("confidence_ptm|in:logits"), everyone)
    np.testing.assert_allclose(ptm[0], arrays["confidence_ptm|out:result"], rtol=1e-5)
    plddt = confidence.plddt(given("confidence_plddt|in:logits"))
    np.testing.assert_allclose(plddt[0], arrays["confidence_plddt|out:result"], rtol=1e-5)


@pytest.mark.parity
def test_scores_equal_those_of_deepminds_whole_runs(reference: Path) -> None:
    runs = [dict(np.load(path)) for path in sorted(reference.glob("cases/*/outputs.npz"))]
    assert sum("confidence/ptm" in run for run in runs) >= 3
    for run in runs:
        plddt = confidence.plddt(torch.from_numpy(run["predicted_lddt/logits"])[None])
        np.testing.assert_allclose(plddt[0], run["confidence/plddt"], rtol=1e-5)
        everyone = torch.ones_like(plddt)
        if "confidence/ranking_confidence" in run:
            mean = confidence.ranking_confidence(plddt, everyone)
            np.testing.assert_allclose(mean[0], run["confidence/ranking_confidence"], rtol=1e-5)
        if "confidence/ptm" in run:
            logits = torch.from_numpy(run["predicted_aligned_error/logits"])[None]
            pae, max_pae = confidence.predicted_aligned_error(logits)
            np.testing.assert_allclose(pae[0], run["confidence/predicted_aligned_error"], rtol=1e-5)
            assert max_pae == run["confidence/max_predicted_aligned_error"]
            ptm = ptm_of(logits, everyone)
            np.testing.assert_allclose(ptm[0], run["confidence/ptm"], rtol=1e-5)


def test_scores_are_means_over_the_bins() -> None:
    logits = 4 * torch.randn(2, 5, 5, 64)
    pae, max_pae = confidence.predicted_aligned_error(logits)
    np.testing.assert_allclose(pae, float64_scores(logits.numpy(), np.arange(64) * 0.5 + 0.25), rtol=1e-5)
    assert max_pae == 31.75
    plddt = confidence.plddt(logits[:, 0, :, :50])
    np.testing.assert_allclose(plddt, float64_scores(logits[:, 0, :, :50].numpy(), np.arange(1, 100, 2)), rtol=1e-5)


@pytest.mark.parametrize("residues", [5, 40])
def test_predicted_tm_score_is_that_of_the_best_alignment(residues: int) -> None:
    logits = 4 * torch.randn(1, residues, residues, 64)
    scale = 1.24 * (max(residues, 19) - 15) ** (1 / 3) - 1.8
    terms = float64_scores(logits[0].numpy(), 1 / (1 + ((np.arange(64) * 0.5 + 0.25) / scale) ** 2))
    ptm = ptm_of(logits, torch.ones(1, residues))
    np.testing.assert_allclose(ptm[0], terms.mean(1).max(), rtol=1e-5)


def test_padding_and_the_rest_of_the_batch_change_nothing() -> None:
    logits = 4 * torch.randn(2, 30, 30, 64)
    plddt = 100 * torch.rand(2, 30)
    mask = torch.ones(2, 30)
    mask[0, 22:] = 0
    ptm = ptm_of(logits, mask)
    torch.testing.assert_close(ptm[:1], ptm_of(logits[:1, :22, :22], torch.ones(1, 22)))
    torch.testing.assert_close(ptm[1:], ptm_of(logits[1:], torch.ones(1, 30)))
    ranking = confidence.ranking_confidence(plddt, mask)
    torch.testing.assert_close(ranking, torch.stack([plddt[0, :22].mean(), plddt[1].mean()]))


def best_alignment(logits: np.ndarray, scale_of: int, aligned: list[int], counted: Callable[[int, int], bool]) -> float:
    """The largest mean expected TM-score of the counted residues over the aligned ones, for so many residues."""
    scale = 1.24 * (max(scale_of, 19) - 15) ** (1 / 3) - 1.8
    terms = float64_scores(logits, 1 / (1 + ((np.arange(64) * 0.5 + 0.25) / scale) ** 2))
    means = []
    for i in aligned:
        found = [terms[i, j] for j in range(len(terms)) if counted(i, j)]
        means.append(sum(found) / len(found))
    return max(means)


@pytest.mark.parametrize("run", [Whole(), Slabs(rows=1), Slabs(rows=3), Slabs(rows=99)], ids=["whole", "1", "3", "all"])
def test_scores_of_complexes_are_those_of_their_real_residues_alone(run: Executor) -> None:
    """Masked residues are in the middle and at the end; they have logits that would be the best, and chain numbers."""
    torch.manual_seed(1)
    head, pair = LinearHead(16, 64), torch.randn(2, 34, 34, 16)
    torch.nn.init.normal_(head.linear.weight)
    # The chains of both samples differ in lengths and order, and some are not in one piece.
    asym_id = torch.tensor([[1] * 4 + [2] * 15 + [3] * 9 + [0] * 6, [2] * 9 + [1] * 7 + [3] * 3 + [2] * 9 + [3] * 6])
    mask = torch.ones(2, 34)
    mask[0, [2, 6, 7, 20]], mask[0, 28:], mask[1, [0, 10, 33]] = 0, 0, 0
    masked = mask[:, :, None] * mask[:, None] == 0
    pair[masked] = 10 * head.linear.weight[0].detach()
    with torch.no_grad():
        found = confidence.aligned_error(run, head, pair, mask, asym_id)
        logits = head(pair).numpy()
    assert found.iptm is not None
    assert found.by_chain is not None
    for sample in range(2):
        real = np.flatnonzero(mask[sample].numpy())
        only, chain = logits[sample][np.ix_(real, real)], asym_id[sample].numpy()[real]
        everyone = list(range(len(real)))
        expected = float64_scores(only, np.arange(64) * 0.5 + 0.25)
        np.testing.assert_allclose(found.expected[sample].numpy()[np.ix_(real, real)], expected, rtol=1e-4)
        ptm = best_alignment(only, len(real), everyone, lambda i, j: True)
        iptm = best_alignment(only, len(real), everyone, lambda i, j, chain=chain: chain[i] != chain[j])
        assert (float(found.ptm[sample]), float(found.iptm[sample])) == pytest.approx((ptm, iptm), rel=1e-4)
        for one, other in product(range(1, 4), repeat=2):
            size = int((chain == one).sum() + (chain == other).sum() * (one != other))
            members = np.flatnonzero(chain == one).tolist()
            score = best_alignment(only, size, members, lambda i, j, chain=chain, other=other: chain[j] == other)
            assert float(found.by_chain[sample, one - 1, other - 1]) == pytest.approx(score, rel=1e-4)


def test_the_ranking_of_chains_does_not_read_masked_residues_in_the_middle() -> None:
    plddt, mask = 100 * torch.rand(1, 9), torch.tensor([[1.0, 0, 1, 1, 0, 0, 1, 1, 0]])
    plddt[mask == 0] = 1e6
    expected = [float(value) for value in plddt[0] if value <= 100]
    assert float(confidence.ranking_confidence(plddt, mask)) == pytest.approx(sum(expected) / 5)


@pytest.mark.parametrize("run", [Whole(), Slabs(rows=1), Slabs(rows=3), Slabs(rows=99)], ids=["whole", "1", "3", "all"])
@pytest.mark.parametrize("elements", [1, 2 * 11 * 64 * 3, 2**24])
def test_distances_of_every_slab_are_those_of_loops(
    run: Executor, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, pair = distogram_head(), torch.randn(2, 11, 11, 16)
    monkeypatch.setattr(confidence, "_SLAB_ELEMENTS", elements)
    with torch.no_grad():
        found = confidence.expected_distances(run, head, pair)
        logits = (head.linear(pair) + head.linear(pair.transpose(1, 2))).double().numpy()
    for sample, i, j in product(range(2), range(11), range(11)):
        weights = np.exp(logits[sample, i, j] - logits[sample, i, j].max())
        distance = contact = 0.0
        for v, weight in enumerate(weights / weights.sum()):
            distance += weight * (2.3125 + 0.3125 * (v - 0.5))
            contact += weight * min(1, max(0, (8 - (2.3125 + 0.3125 * (v - 1))) / 0.3125))
        assert float(found.expected[sample, i, j]) == pytest.approx(distance, rel=1e-5)
        assert float(found.contact[sample, i, j]) == pytest.approx(contact, rel=1e-4, abs=1e-6)


def test_small_slabs_change_nothing_and_bound_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, mask = torch.randn(2, 17, 17, 64), torch.ones(2, 17)
    pae, _ = confidence.predicted_aligned_error(logits)
    ptm = ptm_of(logits, mask)
    rows = 3
    monkeypatch.setattr(confidence, "_SLAB_ELEMENTS", rows * logits[:, 0].numel())
    with LargestResult() as largest:
        torch.testing.assert_close(confidence.predicted_aligned_error(logits)[0], pae)
        torch.testing.assert_close(ptm_of(logits, mask), ptm)
    assert largest.elements == rows * logits[:, 0].numel()


def test_bfloat16_logits_are_scored_in_float32() -> None:
    logits = torch.randn(1, 6, 6, 64).bfloat16()
    pae, _ = confidence.predicted_aligned_error(logits)
    assert pae.dtype == torch.float32
    torch.testing.assert_close(pae, confidence.predicted_aligned_error(logits.float())[0])
    torch.testing.assert_close(confidence.plddt(logits[0]), confidence.plddt(logits[0].float()))


def distogram_head(bins: int = 64) -> DistogramHead:
    head = DistogramHead(16, bins)
    torch.nn.init.normal_(head.linear.weight, std=0.8)
    return head


def test_expected_distances_are_means_and_contacts_sums_over_the_bins() -> None:
    head, pair = distogram_head(), torch.randn(2, 9, 9, 16)
    with torch.no_grad():
        found = confidence.expected_distances(Whole(), head, pair)
        logits = (head.linear(pair) + head.linear(pair.transpose(1, 2))).numpy()
    edges = 2.3125 + 0.3125 * np.arange(63)
    middles = np.append(edges - 0.15625, edges[-1] + 0.15625)
    np.testing.assert_allclose(found.expected, float64_scores(logits, middles), rtol=1e-5)
    # 8 Angstrom is a fifth of a bin above the 19th edge.
    below = np.where(np.arange(64) < 19, 1.0, 0.0) + np.where(np.arange(64) == 19, 0.2, 0.0)
    np.testing.assert_allclose(found.contact, float64_scores(logits, below), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.expected, found.expected.transpose(1, 2))


def test_pairs_in_one_bin_have_its_distance() -> None:
    values = confidence.distance_values(64)
    torch.testing.assert_close(
        values[[0, 18, 19, 20, 63], 0], torch.tensor([2.15625, 7.78125, 8.09375, 8.40625, 21.84375])
    )
    torch.testing.assert_close(values[[0, 18, 19, 20, 63], 1], torch.tensor([1.0, 1.0, 0.2, 0.0, 0.0]))


@pytest.mark.parametrize("run", [Whole(), Slabs(rows=2)], ids=["whole", "slabs"])
def test_distances_are_made_for_few_edges_at_a_time(run: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    head, pair = distogram_head(), torch.randn(1, 17, 17, 16)
    with torch.no_grad():
        expected = confidence.expected_distances(Whole(), head, pair)
        monkeypatch.setattr(confidence, "_SLAB_ELEMENTS", 3 * 17 * 64)
        with LargestResult() as largest:
            found = confidence.expected_distances(run, head, pair)
    assert largest.elements <= max(3 * 17 * 64, pair.numel())
    torch.testing.assert_close(found.expected, expected.expected)
    torch.testing.assert_close(found.contact, expected.contact)
