"""The dtype that suits a device."""

import pytest

from helixfold.execution.dtypes import AUTO, DTYPES, common_dtype, dtype_on, settled_dtype
from helixfold.ops.card import CARDS, Card

ROCM = Card(name="AMD Instinct MI300X", kind="rocm", memory=2**30, multiprocessors=304)
MPS = Card(name="mps", kind="mps", memory=2**30, multiprocessors=8)


@pytest.mark.parametrize("card", [*CARDS.values(), ROCM, MPS], ids=lambda card: card.name)
def test_auto_is_bfloat16_on_nvidia_gpus_that_multiply_it(card: Card) -> None:
    has_bfloat16 = card.name not in ("CPU", "NVIDIA T4", ROCM.name, MPS.name)
    assert settled_dtype(AUTO, card) == ("bfloat16" if has_bfloat16 else "float32")
    assert dtype_on(AUTO, card) == DTYPES[settled_dtype(AUTO, card)]


def test_a_dtype_that_is_asked_for_is_taken_on_every_device() -> None:
    assert {settled_dtype("float32", card) for card in CARDS.values()} == {"float32"}
    assert {settled_dtype("bfloat16", card) for card in CARDS.values()} == {"bfloat16"}


def test_different_devices_compute_alike() -> None:
    assert common_dtype(["bfloat16", "bfloat16"]) == "bfloat16"
    assert common_dtype(["bfloat16", "float32"]) == "float32"
