"""The first streams say who stands where and what was found before."""

import torch
from torch.nn.functional import one_hot

from helixfold.model.embedders import RECYCLED_BINS, ExtraMSAEmbedder, InputEmbedder, RecyclingEmbedder
from helixfold.model.outputs import Recycled

C_M, C_Z, R = 12, 8, 6


def relative_positions(residue_index: torch.Tensor) -> torch.Tensor:
    """The part of the pair stream that comes from residue numbers."""
    r = residue_index.shape[1]
    return InputEmbedder(C_M, C_Z)(torch.zeros(1, r, 22), torch.zeros(1, 2, r, 49), residue_index)[1]


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
    _, pair = embedder(torch.zeros(1, R, 22), torch.zeros(1, 2, R, 49), index)
    torch.testing.assert_close(pair, expected)


def test_left_is_the_row_and_right_the_column() -> None:
    embedder, target = InputEmbedder(C_M, C_Z), torch.randn(1, R, 22)
    _, pair = embedder(target, torch.zeros(1, 2, R, 49), torch.zeros(1, R, dtype=torch.int64))
    rest = embedder.relative_position.weight[:, 32]
    expected = embedder.left(target)[0, 1] + embedder.right(target)[0, 4] + rest
    torch.testing.assert_close(pair[0, 1, 4], expected)


def test_the_target_is_added_to_every_row_of_the_msa() -> None:
    embedder, target, rows = InputEmbedder(C_M, C_Z), torch.randn(1, R, 22), torch.randn(1, 3, R, 49)
    msa, _ = embedder(target, rows, torch.arange(R)[None])
    torch.testing.assert_close(msa, embedder.msa(rows) + embedder.target(target)[:, None])


def recycled(positions: torch.Tensor) -> Recycled:
    return Recycled(msa_first_row=torch.randn(1, R, C_M), pair=torch.randn(1, R, R, C_Z), positions=positions)


def test_recycling_adds_to_the_first_row_and_to_every_pair() -> None:
    embedder, previous = RecyclingEmbedder(C_M, C_Z), recycled(torch.zeros(1, R, 37, 3))
    msa, pair = torch.randn(1, 3, R, C_M), torch.randn(1, R, R, C_Z)
    new_msa, new_pair = embedder(torch.zeros(1, R, dtype=torch.int64), previous, msa, pair)
    torch.testing.assert_close(new_msa[:, 0] - msa[:, 0], embedder.norm_msa(previous.msa_first_row))
    assert (new_msa[:, 1:] == msa[:, 1:]).all()
    # Atoms that all stand in one place are in no bin.
    torch.testing.assert_close(new_pair - pair, embedder.norm_pair(previous.pair) + embedder.distances.bias)


def test_recycled_distances_are_between_pseudo_beta_atoms() -> None:
    embedder = RecyclingEmbedder(C_M, C_Z)
    positions = torch.zeros(1, R, 37, 3)
    positions[0, 1, 3, 0] = 8.0  # C-beta of an alanine
    positions[0, 2, 1, 0] = 12.6  # C-alpha of a glycine
    aatype = torch.tensor([[0, 0, 7, 0, 0, 0]])
    pair = torch.zeros(1, R, R, C_Z)
    previous = recycled(positions)
    change = embedder(aatype, previous, torch.zeros(1, 1, R, C_M), pair)[1] - embedder.norm_pair(previous.pair)

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
