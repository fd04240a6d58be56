"""The table of shared memory is what a compiler finds, and cards with less are refused with a reason."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helixfold.ops.attention import attention
from helixfold.ops.card import CARDS, Card, described
from helixfold.ops.transition import transition
from helixfold.ops.triton import refusal
from helixfold.ops.triton import transition as transition_kernels
from helixfold.ops.triton.shared_memory import shared_memory
from helixfold.ops.weights import Affine, TransitionWeights

ROOT = Path(__file__).parents[3]
# Its matrix products are those of capability 8.x, and so is its shared memory.
RTX_5090 = replace(CARDS["rtx4090"], capability=(12, 0))


@pytest.mark.parametrize(
    ("capability", "case"),
    [
        (80, "transition-64"),
        pytest.param(86, "transition-128-small", marks=pytest.mark.long),
        pytest.param(90, "triangle-32", marks=pytest.mark.long),
    ],
)
def test_the_table_is_what_the_compiler_says(capability: int, case: str) -> None:
    triton = pytest.importorskip("triton", reason="kernels are compiled where triton is installed")
    if triton.__version__.split(".")[:2] != ["3", "9"]:
        pytest.skip(f"the table is of Triton 3.9, not {triton.__version__}")
    command = [sys.executable, "-m", "tests.ops.triton.shared_memory", str(capability), case]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)[case]
    version = divmod(capability, 10)
    card = replace(CARDS["h200"], capability=version, shared_memory=2**30)
    assert found == [shared_memory(case, card, gradients=gradients) for gradients in (False, True)]


def refused(card: str | Card, c: int, *, gradients: bool) -> str | None:
    card = CARDS[card] if isinstance(card, str) else card
    x = torch.empty(1, 8, 8, c, dtype=torch.bfloat16, device="meta", requires_grad=gradients)
    affines = [Affine(x.new_empty(*shape), x.new_empty(shape[0])) for shape in ((c,), (4 * c, c), (c, 4 * c))]
    with described(card):
        return transition.refusals(card, x, TransitionWeights(*affines))["triton"]


def test_cards_with_little_shared_memory_take_small_tiles_and_with_less_the_next_backend() -> None:
    for card in (*(CARDS[name] for name in ("h200", "a100", "rtx4090")), RTX_5090):
        assert refused(card, 256, gradients=False) is None
        assert refused(card, 256, gradients=True) is None
    little = replace(CARDS["rtx4090"], shared_memory=48 * 1024)
    assert refused(little, 256, gradients=False) == "its kernels need 68 KiB of shared memory, the card has 48"
    assert refused(little, 128, gradients=False) is None
    assert refused(little, 128, gradients=True) == "its kernels need 52 KiB of shared memory, the card has 48"


def tiles(card: Card, c: int) -> tuple[int, int]:
    """Rows of a tile forward and backward."""
    x = torch.empty(1, 8, 8, c, dtype=torch.bfloat16, device="meta")
    with described(card):
        return transition_kernels._forward_tiles(x)["block_rows"], transition_kernels._backward_tiles(x)["block_rows"]


def test_tiles_are_as_large_as_shared_memory_allows_in_each_pass() -> None:
    assert tiles(CARDS["h200"], 256) == (128, 128)
    assert tiles(CARDS["a100"], 256) == (128, 32)
    assert tiles(CARDS["rtx4090"], 256) == tiles(RTX_5090, 256) == (64, 32)
    assert tiles(CARDS["rtx4090"], 128) == (128, 64)
    assert tiles(CARDS["rtx4090"], 64) == (128, 128)


def test_cards_before_ampere_have_other_backends() -> None:
    assert (
        refused("t4", 64, gradients=False) == "its kernels and bfloat16 need compute capability 8.0, the card has 7.5"
    )
    heads = [torch.empty(1, 3, 2, 5, 16, dtype=torch.float16, device="meta") for _ in range(3)]
    with described(CARDS["t4"]):
        assert attention.choice(*heads, torch.empty(1, 3, 5, device="meta")).name == "sdpa"
        assert attention(*heads, torch.empty(1, 3, 5, device="meta")).shape == (1, 3, 2, 5, 16)


def test_without_triton_kernels_are_refused_unless_a_card_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal, "triton_is_there", lambda: False)
    assert refusal.refusal_of_kernels(CARDS["h200"]) == "triton is not installed"
    with described(CARDS["h200"]):
        assert refusal.refusal_of_kernels(CARDS["h200"]) is None
