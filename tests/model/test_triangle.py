"""Triangles are closed by the right edges in the right direction."""

import pytest
import torch

from helixfold.execution.whole import Whole
from helixfold.model.triangle import TriangleAttention, TriangleMultiplication
from helixfold.model.update import Axis, Update

C_Z, C, HEADS, R = 6, 4, 2, 5


def randomised(update: Update) -> Update:
    for parameter in update.parameters():
        torch.nn.init.normal_(parameter)
    return update.eval()


@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_multiplication_sums_over_the_third_corner(axis: Axis) -> None:
    """Outgoing: ij from ik and jk. Incoming: ij from ki and kj, where DeepMind's left operand is that of kj."""
    update = randomised(TriangleMultiplication(C_Z, C, axis, 0.0))
    pair, mask = torch.randn(1, R, R, C_Z), (torch.rand(1, R, R) > 0.3).float()
    x = update.norm_in(pair)
    left = (update.left(x) * update.left_gate(x).sigmoid() * mask[..., None])[0]
    right = (update.right(x) * update.right_gate(x).sigmoid() * mask[..., None])[0]
    if axis == "rows":
        products = torch.stack([torch.stack([(left[i] * right[j]).sum(0) for j in range(R)]) for i in range(R)])
    else:
        products = torch.stack([torch.stack([(left[:, j] * right[:, i]).sum(0) for j in range(R)]) for i in range(R)])
    expected = update.out(update.norm_out(products)) * update.gate(x[0]).sigmoid()
    found = Whole()(update, pair, mask) - pair
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_attention_is_steered_by_the_third_edge(axis: Axis) -> None:
    """Starting node: ij looks at ik, steered by jk. Ending node: ij looks at kj, steered by ki."""
    update = randomised(TriangleAttention(C_Z, HEADS, axis, 0.0))
    pair, mask = torch.randn(1, R, R, C_Z), (torch.rand(1, R, R) > 0.3).float()
    mask[:, 0] = mask[:, :, 0] = 1
    x = update.norm(pair)[0]
    query, key, value = (part.unflatten(-1, (HEADS, -1)) for part in update.attention.qkv(x).chunk(3, -1))
    bias = update.pair_bias(x)
    gathered = torch.empty(R, R, HEADS, C_Z // HEADS)
    for i in range(R):
        for j in range(R):
            if axis == "rows":
                keys, values, steering, real = key[i], value[i], bias[j], mask[0, i]
            else:
                keys, values, steering, real = key[:, j], value[:, j], bias[:, i], mask[0, :, j]
            for head in range(HEADS):
                logits = keys[:, head] @ query[i, j, head] / (C_Z // HEADS) ** 0.5 + steering[:, head]
                gathered[i, j, head] = logits.masked_fill(real == 0, -torch.inf).softmax(0) @ values[:, head]
    expected = update.attention.out(gathered.flatten(-2) * update.attention.gate(x).sigmoid())
    found = Whole()(update, pair, mask) - pair
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [TriangleMultiplication, TriangleAttention])
def test_one_direction_is_the_other_on_the_turned_stream(kind: type[Update]) -> None:
    size = C if kind is TriangleMultiplication else HEADS
    rows, columns = kind(C_Z, size, "rows", 0.0), kind(C_Z, size, "columns", 0.0)
    columns.load_state_dict(randomised(rows).state_dict())
    pair, mask = torch.randn(1, R, R, C_Z), (torch.rand(1, R, R) > 0.3).float()
    turned = Whole()(rows, pair.transpose(1, 2), mask.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(Whole()(columns.eval(), pair, mask), turned)
