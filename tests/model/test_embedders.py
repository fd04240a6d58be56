"""The first streams say who stands where and what was found before."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import one_hot

from helixfold.model.batch import Batch
from helixfold.model.embedders import RECYCLED_BINS, ExtraMSAEmbedder, InputEmbedder, RecyclingEmbedder
from helixfold.model.multimer import multimer_input_embedder
from tests.support.networks import random_batch, random_complex

C_M, C_Z, R = 12, 8, 6
ALL = slice(None)


def sequence(residue_index: torch.Tensor, target: torch.Tensor | None = None) -> Batch:
    """A batch with these residue numbers, of unknown sequence by default."""
    residues = residue_index.shape[1]
    batch = random_batch(residues=residues)
    return replace(
        batch, residue_index=residue_index, target_feat=torch.zeros(1, residues, 22) if target is None else target
    )


def relative_positions(residue_index: torch.Tensor) -> torch.Tensor:
    """The part of the pair stream that comes from residue numbers."""
    return InputEmbedder(C_M, C_Z).pair_rows(sequence(residue_index), ALL, torch.float32)


def test_separations_are_told_apart_up_to_32() -> None:
    index = torch.tensor([[0, 1, 31, 32, 33, 500]])
    pair = relative_positions(index)
    assert not torch.allclose(pair[0, 2, 0], pair[0, 3, 0])
    assert (pair[0, 3, 0] == pair[0, 4, 0]).all()
    assert (pair[0, 4, 0] == pair[0, 5, 0]).all()
    assert (pair[0, 0, 4] == pair[0, 0, 5]).all()
    assert not torch.allclose(pair[0, 0, 5], pair[0, 5, 0])
    assert (pair[0, 1, 0] == pair[0, 3, 2]).all()


def test_separations_are_a_one_hot_times_a_matrix() -> None:
    embedder, index = InputEmbedder(C_M, C_Z), torch.tensor([[5, 9, 70, 2, 3, 41]])
    torch.nn.init.normal_(embedder.relative_position.bias)
    separation = (index[:, :, None] - index[:, None]).clamp(-32, 32)
    expected = embedder.relative_position(one_hot(separation + 32, 65).float())
    pair = embedder.pair_rows(sequence(index), ALL, torch.float32)
    torch.testing.assert_close(pair, expected)
    some = embedder.pair_rows(sequence(index), slice(2, 4), torch.float32)
    torch.testing.assert_close(some, expected[:, 2:4])


def test_left_is_the_row_and_right_the_column() -> None:
    embedder, target = InputEmbedder(C_M, C_Z), torch.randn(1, R, 22)
    index = torch.zeros(1, R, dtype=torch.int64)
    pair = embedder.pair_rows(sequence(index, target), ALL, torch.float32)
    rest = embedder.relative_position.weight[:, 32]
    expected = embedder.left(target)[0, 1] + embedder.right(target)[0, 4] + rest
    torch.testing.assert_close(pair[0, 1, 4], expected)


def test_the_target_is_added_to_every_row_of_the_msa() -> None:
    embedder, batch = InputEmbedder(C_M, C_Z), random_batch(residues=R, rows=3)
    expected = embedder.msa(batch.msa_feat) + embedder.target(batch.target_feat)[:, None]
    torch.testing.assert_close(embedder.msa_rows(batch, ALL, torch.float32), expected)
    torch.testing.assert_close(embedder.msa_rows(batch, slice(1, 9), torch.float32), expected[:, 1:])


def test_recycling_adds_to_the_first_row_and_to_every_pair() -> None:
    embedder, beta = RecyclingEmbedder(C_M, C_Z), torch.zeros(1, R, 3)
    row, previous_row = torch.randn(2, 1, R, C_M)
    pair, previous = torch.randn(2, 1, R, R, C_Z)
    torch.testing.assert_close(embedder.first_row(row, previous_row) - row, embedder.norm_msa(previous_row))
    # Atoms that all stand in one place are in no bin.
    change = embedder.pair_rows(pair, previous, beta, beta) - pair
    torch.testing.assert_close(change, embedder.norm_pair(previous) + embedder.distances.bias)


def test_recycled_distances_go_from_rows_to_all_residues() -> None:
    embedder = RecyclingEmbedder(C_M, C_Z)
    beta = torch.zeros(1, R, 3)
    beta[0, 1, 0], beta[0, 2, 0] = 8.0, 12.6
    pair = torch.zeros(1, R, R, C_Z)
    change = embedder.pair_rows(pair, pair, beta, beta) - embedder.norm_pair(pair)
    some = embedder.pair_rows(pair[:, 1:3], pair[:, 1:3], beta[:, 1:3], beta) - embedder.norm_pair(pair[:, 1:3])
    torch.testing.assert_close(some, change[:, 1:3])

    def bin_of(distance: float) -> torch.Tensor:
        return embedder.distances.weight[:, int((distance - RECYCLED_BINS.first) / 1.25)] + embedder.distances.bias

    torch.testing.assert_close(change[0, 0, 1], bin_of(8.0))
    torch.testing.assert_close(change[0, 2, 0], bin_of(12.6))
    torch.testing.assert_close(change[0, 1, 2], bin_of(4.6))


def test_extra_sequences_are_letters_and_deletions() -> None:
    embedder, letters = ExtraMSAEmbedder(C_M), torch.tensor([[[0, 20, 21, 22]]])
    has, value = torch.tensor([[[0.0, 1.0, 0.0, 1.0]]]), torch.tensor([[[0.0, 0.5, 0.0, 0.25]]])
    found = embedder(letters, has, value, torch.float32)
    weight = embedder.linear.weight
    expected = weight[:, [0, 20, 21, 22]].T + has[0, 0, :, None] * weight[:, 23] + value[0, 0, :, None] * weight[:, 24]
    torch.testing.assert_close(found[0, 0], expected + embedder.linear.bias)
    assert embedder(letters, has, value, torch.bfloat16).dtype == torch.bfloat16


def test_a_network_of_complexes_refuses_a_batch_without_chains() -> None:
    with pytest.raises(TypeError, match="needs a MultimerBatch, got a Batch"):
        multimer_input_embedder(C_M, C_Z).pair_rows(random_batch(residues=R), ALL, torch.float32)


def test_separations_count_within_a_chain_and_chains_are_told_apart_by_sequence() -> None:
    batch = random_complex("ABA", residues=9)
    position = multimer_input_embedder(C_M, C_Z).relative_position
    edges = position.edges(batch, ALL, torch.float32)[0].detach()
    own, other_sequence, same_sequence = edges[0, 1], edges[0, 4], edges[0, 7]
    assert not torch.allclose(own, other_sequence)
    assert not torch.allclose(other_sequence, same_sequence)
    # Nothing but their relation matters between chains, and the order of equal chains does.
    assert torch.allclose(edges[0, 3], edges[2, 5])
    assert torch.allclose(edges[0, 6], edges[1, 8])
    assert not torch.allclose(edges[0, 6], edges[6, 0])
    torch.testing.assert_close(position.edges(batch, slice(4, 6), torch.float32)[0], edges[4:6])
