"""Cards are described or at hand, and operators choose by them."""

import torch

from helixfold.ops.card import CARDS, card_of, described
from helixfold.ops.linear import layer_norm
from helixfold.ops.weights import Affine

CPU, META = torch.device("cpu"), torch.device("meta")


def test_a_card_is_the_described_one_inside_and_the_one_at_hand_outside() -> None:
    assert card_of(CPU).kind == "cpu"
    assert card_of(CPU).memory > 2**28
    with described(CARDS["t4"]):
        with described(CARDS["h200"]):
            assert card_of(META).multiprocessors == 132
        assert card_of(META) is CARDS["t4"]
    assert card_of(CPU).kind == "cpu"


def test_operators_choose_for_the_described_card() -> None:
    x = torch.empty(2, 3, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    norm = Affine(*torch.empty(2, 64, device="meta"))
    chosen = {}
    for name, card in CARDS.items():
        with described(card):
            chosen[name] = layer_norm.choice(x, norm).name
    assert chosen == {**dict.fromkeys(CARDS, "triton"), "cpu": "rows", "t4": "reference"}
    assert layer_norm.choice(x, norm).name == "reference"
