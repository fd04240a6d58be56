"""Updates of the MSA mix along one axis only, as the mask allows."""

import torch
from torch import Tensor

from helixfold.execution.whole import Whole
from helixfold.model.msa import MSAColumnAttention, MSAGlobalColumnAttention, MSARowAttention
from helixfold.model.update import Update

C_M, C_Z, HEADS, S, R = 12, 8, 3, 5, 7


def randomised(update: Update) -> Update:
    for parameter in update.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return update.eval()


def changed_elements(update: Update, mask: Tensor, row: int, column: int) -> Tensor:
    """Where the update differs once one element of the MSA is another."""
    msa, pair = torch.randn(1, S, R, C_M), torch.randn(1, R, R, C_Z)
    other = msa.clone()
    other[0, row, column] = torch.randn(C_M)
    source = (pair, torch.ones(1, R, R)) if isinstance(update, MSARowAttention) else None
    changes = [Whole()(update, each.clone(), mask, source) - each for each in (msa, other)]
    return ((changes[0] - changes[1]).abs() > 1e-6).any(-1)[0]


def test_row_attention_mixes_residues_of_one_sequence() -> None:
    found = changed_elements(randomised(MSARowAttention(C_M, C_Z, HEADS, 0.0)), torch.ones(1, S, R), 1, 2)
    assert found[1].all()
    assert found.sum() == R


def test_column_attention_mixes_sequences_at_one_residue() -> None:
    for update in (MSAColumnAttention(C_M, HEADS), MSAGlobalColumnAttention(C_M, HEADS)):
        found = changed_elements(randomised(update), torch.ones(1, S, R), 1, 2)
        assert found[:, 2].all()
        assert found.sum() == S


def test_masked_elements_reach_nobody_else() -> None:
    mask = torch.ones(1, S, R)
    mask[0, 1, 2] = 0
    for update in (
        MSARowAttention(C_M, C_Z, HEADS, 0.0),
        MSAColumnAttention(C_M, HEADS),
        MSAGlobalColumnAttention(C_M, HEADS),
    ):
        assert changed_elements(randomised(update), mask, 1, 2).nonzero().tolist() == [[1, 2]]


def test_row_attention_is_steered_by_the_pair_of_query_and_key() -> None:
    update = randomised(MSARowAttention(C_M, C_Z, HEADS, 0.0))
    msa, pair, mask = torch.randn(1, S, R, C_M), torch.randn(1, R, R, C_Z), torch.ones(1, S, R)
    other = pair.clone()
    other[0, 4, 1] = torch.randn(C_Z)
    found = [Whole()(update, msa, mask, (each, torch.ones(1, R, R))) for each in (pair, other)]
    different = ((found[0] - found[1]).abs() > 1e-6).any(-1)[0]
    assert different[:, 4].all()
    assert different.sum() == S


def test_global_attention_asks_with_the_mean_of_the_real_sequences() -> None:
    update = randomised(MSAGlobalColumnAttention(C_M, HEADS))
    columns, mask = torch.randn(1, R, S, C_M), (torch.rand(1, R, S) > 0.4).float()
    mask[..., 0] = 1
    x = update.norm(columns)
    expected = torch.empty(R, S, C_M)
    for r in range(R):
        real = mask[0, r] == 1
        query = update.query(x[0, r, real].mean(0)).unflatten(-1, (HEADS, -1))
        key, value = update.key(x[0, r, real]), update.value(x[0, r, real])
        gathered = ((query @ key.T / 4**0.5).softmax(-1) @ value).flatten()
        expected[r] = update.out(gathered * update.gate(x[0, r]).sigmoid())
    torch.testing.assert_close(update(columns, mask, ())[0], expected, rtol=1e-4, atol=1e-5)


def test_a_column_without_sequences_stays_finite() -> None:
    mask = torch.ones(1, R, S)
    mask[0, 3] = 0
    for dtype in (torch.float32, torch.bfloat16):
        for update in (MSAColumnAttention(C_M, HEADS), MSAGlobalColumnAttention(C_M, HEADS)):
            assert torch.isfinite(randomised(update)(torch.randn(1, R, S, C_M, dtype=dtype), mask, ())).all()
