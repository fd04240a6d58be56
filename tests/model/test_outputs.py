"""What one pass leaves to the next."""

from helixfold.execution.whole import Whole
from tests.support.networks import random_batch, tiny_model


def test_no_gradient_crosses_from_one_pass_to_the_next() -> None:
    model, batch = tiny_model(), random_batch()
    outputs = model(Whole(), [batch])
    previous = outputs.recycled()
    assert outputs.representations.pair.requires_grad
    assert not any(each.requires_grad for each in (previous.msa_first_row, previous.pair, previous.positions))
    assert (previous.positions == outputs.structure.positions).all()
    assert (previous.pair == outputs.representations.pair).all()
    assert (previous.msa_first_row == outputs.representations.msa[:, 0]).all()
