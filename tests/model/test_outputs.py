"""What one pass leaves to the next."""

import torch

from helixfold.execution.whole import Whole
from helixfold.model.outputs import Recycled
from tests.networks import random_batch, tiny_model


def test_nothing_is_zeros_in_the_trunks_dtype_and_atoms_in_float32() -> None:
    nothing = Recycled.nothing(2, 5, 8, 4, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert nothing.msa_first_row.shape == (2, 5, 8)
    assert nothing.pair.shape == (2, 5, 5, 4)
    assert nothing.positions.shape == (2, 5, 37, 3)
    assert nothing.pair.dtype == nothing.msa_first_row.dtype == torch.bfloat16
    assert nothing.positions.dtype == torch.float32
    assert all((each == 0).all() for each in (nothing.msa_first_row, nothing.pair, nothing.positions))


def test_no_gradient_crosses_from_one_pass_to_the_next() -> None:
    model, batch = tiny_model(), random_batch()
    outputs = model(Whole(), [batch])
    previous = outputs.recycled()
    assert outputs.representations.pair.requires_grad
    assert not any(each.requires_grad for each in (previous.msa_first_row, previous.pair, previous.positions))
    assert (previous.positions == outputs.structure.positions).all()
    assert (previous.pair == outputs.representations.pair).all()
    assert (previous.msa_first_row == outputs.representations.msa[:, 0]).all()
