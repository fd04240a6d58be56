"""Expected TM-scores of complexes, chains and pairs of chains are those of the formula, and of the network."""

import numpy as np
import pytest
import torch

from helixfold.analysis.chain_tm import TmScores, tm_scores
from helixfold.execution.whole import Whole
from helixfold.model.confidence import aligned_error, tm_between_chains
from helixfold.model.heads import LinearHead

BINS = 64
CENTERS = 0.25 + 0.5 * np.arange(BINS)


def complex_of(*lengths: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits and chain numbers."""
    chain = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    rng = np.random.default_rng(seed)
    peak = rng.uniform(0, 40, (len(chain), len(chain), 1))
    return (-((np.arange(BINS) - peak) ** 2) / 30).astype(np.float32), chain


def expected_tm(logits: np.ndarray, aligned: np.ndarray, scored: np.ndarray, residues: int) -> float:
    """The best over the aligned residues of the mean over the scored ones, by plain loops."""
    scale = 1.24 * (max(residues, 19) - 15) ** (1 / 3) - 1.8
    best = 0.0
    for i in aligned:
        terms = []
        for j in scored:
            weights = np.exp(logits[i, j].astype(np.float64))
            terms.append((weights / weights.sum()) @ (1 / (1 + (CENTERS / scale) ** 2)))
        best = max(best, float(np.mean(terms)))
    return best


def expected_iptm(logits: np.ndarray, chain: np.ndarray) -> float:
    """The best over residues of the mean over the residues of other chains, with the scale of the whole complex."""
    scale = 1.24 * (max(len(chain), 19) - 15) ** (1 / 3) - 1.8
    best = 0.0
    for i in range(len(chain)):
        terms = []
        for j in range(len(chain)):
            if chain[i] != chain[j]:
                weights = np.exp(logits[i, j].astype(np.float64))
                terms.append((weights / weights.sum()) @ (1 / (1 + (CENTERS / scale) ** 2)))
        best = max(best, float(np.mean(terms)))
    return best


@pytest.mark.parametrize("lengths", [(4, 13, 6), (13, 4, 9, 1), (1, 12)])
def test_the_iptm_of_uneven_chains_is_that_of_plain_loops(lengths: tuple[int, ...]) -> None:
    logits, chain = complex_of(*lengths, seed=len(lengths))
    # Chains need not follow each other as blocks.
    order = np.random.default_rng(0).permutation(len(chain))
    for each, numbers in ((logits, chain), (logits[np.ix_(order, order)], chain[order])):
        found = tm_scores(each, numbers)
        assert found.iptm == pytest.approx(expected_iptm(logits, chain), abs=1e-5)
        for one in range(len(lengths)):
            for other in range(len(lengths)):
                places = [np.flatnonzero(chain == 1 + number) for number in (one, other)]
                residues = lengths[one] + lengths[other] * (one != other)
                assert found.by_chain[one, other] == pytest.approx(expected_tm(logits, *places, residues), abs=1e-5)


def test_each_score_is_that_of_plain_loops() -> None:
    logits, chain = complex_of(30, 7, 21)
    found = tm_scores(logits, chain)
    places = [np.flatnonzero(chain == number) for number in (1, 2, 3)]
    everything = np.arange(len(chain))
    assert found.ptm == pytest.approx(expected_tm(logits, everything, everything, 58), abs=1e-5)
    for a, aligned in enumerate(places):
        for b, scored in enumerate(places):
            residues = len(aligned) + (len(scored) if a != b else 0)
            assert found.by_chain[a, b] == pytest.approx(expected_tm(logits, aligned, scored, residues), abs=1e-5)
    assert found.pair_iptm(0, 2) == found.pair_iptm(2, 0) == max(found.by_chain[0, 2], found.by_chain[2, 0])
    assert found.ranking_confidence == pytest.approx(0.8 * found.iptm + 0.2 * found.ptm)


def test_the_iptm_of_two_chains_is_that_of_their_complex() -> None:
    found = tm_scores(*complex_of(24, 35))
    assert found.pair_iptm(0, 1) == pytest.approx(found.iptm, abs=1e-6)


def test_scores_of_chains_do_not_depend_on_their_order_or_on_other_chains() -> None:
    logits, chain = complex_of(25, 33, 8)
    order = np.concatenate([np.flatnonzero(chain == number) for number in (3, 1, 2)])
    found, moved = tm_scores(logits, chain), tm_scores(logits[np.ix_(order, order)], np.repeat([1, 2, 3], [8, 25, 33]))
    assert moved.by_chain == pytest.approx(found.by_chain[np.ix_([2, 0, 1], [2, 0, 1])], abs=1e-6)
    assert (moved.ptm, moved.iptm) == pytest.approx((found.ptm, found.iptm), abs=1e-6)
    two = chain < 3
    assert tm_scores(logits[np.ix_(two, two)], chain[two]).by_chain == pytest.approx(found.by_chain[:2, :2], abs=1e-6)


def test_the_network_gives_the_same_ptm_and_iptm() -> None:
    torch.manual_seed(0)
    head, pair = LinearHead(8, BINS), torch.randn(1, 40, 40, 8)
    torch.nn.init.normal_(head.linear.weight)
    chain = torch.tensor([1] * 15 + [2] * 25)[None]
    with torch.no_grad():
        network = aligned_error(Whole(), head, pair, torch.ones(1, 40), chain)
        found = tm_scores(head(pair)[0].numpy(), chain[0].numpy())
    assert network.iptm is not None
    assert network.by_chain is not None
    assert found.by_chain == pytest.approx(network.by_chain[0].numpy(), abs=1e-6)
    assert (found.ptm, found.iptm) == pytest.approx((float(network.ptm), float(network.iptm)), abs=1e-6)


def test_rows_and_padding_change_no_score() -> None:
    logits, chain = complex_of(12, 20)
    padded = np.pad(logits, ((0, 5), (0, 5), (0, 0)), constant_values=3.0)
    asym_id, mask = torch.from_numpy(np.pad(chain, (0, 5)))[None], torch.from_numpy(np.pad(np.ones(32), (0, 5)))[None]
    whole = tm_between_chains(torch.from_numpy(padded)[None], mask.float(), asym_id, slice(None), 2)
    parts = [
        tm_between_chains(torch.from_numpy(padded)[None, rows], mask.float(), asym_id, rows, 2)
        for rows in (slice(0, 9), slice(9, 37))
    ]
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    best = np.stack([whole[0, :32].numpy()[chain == number].max(0) for number in (1, 2)])
    assert best == pytest.approx(tm_scores(logits, chain).by_chain, abs=1e-6)


@pytest.mark.parametrize("chain", [[1, 1, 1], [0, 1, 1], [1, 3, 3], [2, 2, 2]])
def test_chains_that_are_not_numbered_from_one_are_refused(chain: list[int]) -> None:
    with pytest.raises(ValueError, match="at least two chains from 1 without a gap"):
        tm_scores(np.zeros((3, 3, BINS), np.float32), np.array(chain))


def test_the_ranking_is_alphafold_multimers() -> None:
    scores = TmScores(ptm=0.5, iptm=0.75, by_chain=np.zeros((2, 2), np.float32))
    assert scores.ranking_confidence == pytest.approx(0.7)
