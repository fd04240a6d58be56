"""Self-attention mixes within rows, gates what it found, and keeps query, key and value apart."""

import torch
from torch import Tensor

from helixfold.model.attention import SelfAttention
from helixfold.ops.weights import Affine

C, HEADS = 12, 3
NORM = Affine(torch.ones(C), torch.zeros(C))


def random_attention() -> SelfAttention:
    attention = SelfAttention(C, HEADS)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return attention


def by_hand(attention: SelfAttention, x: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
    """Head by head, one row after the other."""
    x = torch.nn.functional.layer_norm(x, (C,))
    query, key, value = (x @ part.T for part in attention.qkv.weight.chunk(3))
    heads = []
    for head in range(HEADS):
        channels = slice(4 * head, 4 * head + 4)
        logits = query[..., channels] @ key[..., channels].mT / 4**0.5 + bias[:, None, head]
        weights = logits.masked_fill(mask[:, :, None] == 0, -torch.inf).softmax(-1)
        heads.append(weights @ value[..., channels])
    gated = torch.cat(heads, -1) * attention.gate(x).sigmoid()
    return attention.out(gated)


def test_heads_gate_and_output_are_those_of_the_paper() -> None:
    attention, x = random_attention(), torch.randn(2, 4, 5, C)
    mask = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]).expand(2, 4, 5)
    bias = torch.randn(2, HEADS, 5, 5)
    torch.testing.assert_close(attention(x, mask, NORM, bias), by_hand(attention, x, mask, bias), rtol=1e-4, atol=1e-5)


def test_a_shut_gate_leaves_the_output_bias() -> None:
    attention = random_attention()
    attention.gate.weight.data.zero_()
    attention.gate.bias.data.fill_(-100)
    found = attention(torch.randn(1, 2, 5, C), torch.ones(1, 2, 5), NORM)
    torch.testing.assert_close(found, attention.out.bias.expand_as(found))


def test_rows_do_not_see_each_other() -> None:
    attention, x = random_attention(), torch.randn(1, 3, 5, C)
    mask, changed = torch.ones(1, 3, 5), x.clone()
    changed[:, 1] = torch.randn(5, C)
    same = (attention(x, mask, NORM) == attention(changed, mask, NORM)).all(-1).all(-1)
    assert same.tolist() == [[True, False, True]]


def test_query_key_and_value_start_as_three_maps_not_as_one() -> None:
    weight = SelfAttention(64, 4).qkv.weight
    limit = (6 / (64 * 4 + 64 * 16)) ** 0.5
    for part in weight.chunk(3):
        assert 0.95 * limit < part.abs().max() <= limit
