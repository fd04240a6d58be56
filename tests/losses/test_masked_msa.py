"""Only the letters that were hidden are asked for."""

import math

import torch

from helixfold.losses.heads import masked_msa_loss


def test_only_hidden_letters_count() -> None:
    logits, letters = torch.zeros(2, 3, 4, 23), torch.randint(0, 22, (2, 3, 4))
    asked = torch.zeros(2, 3, 4)
    asked[0, 1, 2] = asked[0, 2, 3] = asked[1, 0, 0] = 1
    torch.testing.assert_close(masked_msa_loss(logits, letters, asked), torch.full((2,), math.log(23)))
    logits[0, 1, 2, letters[0, 1, 2]] = 50
    logits[0, 0, 0] = torch.randn(23)
    torch.testing.assert_close(masked_msa_loss(logits, letters, asked), torch.tensor([0.5, 1.0]) * math.log(23))


def test_nothing_hidden_gives_no_error_and_no_gradient() -> None:
    logits = torch.randn(1, 2, 3, 23, requires_grad=True)
    found = masked_msa_loss(logits, torch.zeros(1, 2, 3, dtype=torch.int64), torch.zeros(1, 2, 3))
    found.sum().backward()
    assert found == 0
    assert logits.grad is not None
    assert not logits.grad.any()
