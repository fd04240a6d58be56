"""`Whole` is for training: gradients flow and dropout is shared as the paper says."""

import pytest
import torch

from helixfold.execution.whole import Whole
from helixfold.model.update import Update


class Ones(Update):
    """Adds one everywhere."""

    def forward(self, slab: torch.Tensor, mask: torch.Tensor, context: tuple[()]) -> torch.Tensor:
        return torch.ones_like(slab)


@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_dropout_is_shared_along_its_axis(axis: str) -> None:
    update = Ones().train()
    update.dropout_rate, update.dropout_axis = 0.5, axis
    change = Whole()(update, torch.zeros(1, 8, 9, 16), torch.ones(1, 8, 9))
    shared = 1 if axis == "rows" else 2
    assert set(change.unique().tolist()) == {0.0, 2.0}
    assert (change == change.narrow(shared, 0, 1)).all()
    assert not (change == change.narrow(3 - shared, 0, 1)).all()


def test_evaluation_has_no_dropout() -> None:
    update = Ones().eval()
    update.dropout_rate = 0.5
    assert (Whole()(update, torch.zeros(1, 4, 4, 2), torch.ones(1, 4, 4)) == 1).all()


def test_the_stream_given_is_left_as_it_was() -> None:
    stream = torch.zeros(1, 4, 4, 2)
    Whole()(Ones(), stream, torch.ones(1, 4, 4))
    assert (stream == 0).all()


def test_all_rows_are_made_at_once_with_gradients() -> None:
    one, other = torch.randn(1, 5, 2, requires_grad=True), torch.randn(1, 5, 2)
    made = Whole().replace_rows(lambda _, *rows: rows[0] * rows[1], one, other)
    (gradient,) = torch.autograd.grad(made.sum(), one)
    assert torch.equal(gradient, other)
    assert torch.equal(made, one * other)
