"""Rows of a table by number, with a gradient that is a sum over all places that looked a row up."""

import pytest
import torch

from helixfold.ops.look_up import look_up


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_and_gradients_are_those_of_a_one_hot_product(dtype: torch.dtype) -> None:
    table, index = torch.randn(65, 12), torch.randint(0, 65, (2, 90, 91))
    gradient = torch.randn(*index.shape, 12) + 0.5
    ours, theirs = table.to(dtype, copy=True).requires_grad_(), table.double().requires_grad_()
    found = look_up(ours, index)
    assert torch.equal(found, ours[index])
    found.backward(gradient.to(dtype))
    (torch.nn.functional.one_hot(index, 65).double() @ theirs).backward(gradient.double())
    assert ours.grad.dtype == dtype
    # PyTorch's indexing is off by a third here in bfloat16, for it adds the rows up one by one.
    assert (ours.grad - theirs.grad).norm() < (1e-5 if dtype == torch.float32 else 0.01) * theirs.grad.norm()


def test_rows_that_nobody_looked_up_get_no_gradient() -> None:
    table = torch.randn(5, 3, requires_grad=True)
    look_up(table, torch.tensor([[1, 3], [3, 3]])).sum().backward()
    assert table.grad[:, 0].tolist() == [0, 1, 0, 3, 0]
