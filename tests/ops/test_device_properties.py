"""Cards are described or at hand, and operators choose by them."""

import torch

from helixfold.ops.device_properties import DEVICE_MODELS, properties_of, simulated_device
from helixfold.ops.linear import layer_norm
from helixfold.ops.weights import Affine

CPU, META = torch.device("cpu"), torch.device("meta")


def test_a_card_is_the_described_one_inside_and_the_one_at_hand_outside() -> None:
    assert properties_of(CPU).kind == "cpu"
    assert properties_of(CPU).memory > 2**28
    with simulated_device(DEVICE_MODELS["t4"]):
        with simulated_device(DEVICE_MODELS["h200"]):
            assert properties_of(META).multiprocessors == 132
        assert properties_of(META) is DEVICE_MODELS["t4"]
    assert properties_of(CPU).kind == "cpu"


def test_operators_choose_for_the_described_card() -> None:
    x = torch.empty(2, 3, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    norm = Affine(*torch.empty(2, 64, device="meta"))
    chosen = {}
    for name, properties in DEVICE_MODELS.items():
        with simulated_device(properties):
            chosen[name] = layer_norm.choice(x, norm).name
    assert chosen == {
        **dict.fromkeys(DEVICE_MODELS, "triton"),
        "cpu": "rows",
        **dict.fromkeys(("t4", "v100"), "reference"),
    }
    assert layer_norm.choice(x, norm).name == "reference"
