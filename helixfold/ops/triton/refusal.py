"""Reasons why a card cannot run Triton kernels."""

from functools import cache
from importlib.util import find_spec

from helixfold.ops.card import Card, is_described
from helixfold.ops.triton.shared_memory import shared_memory


@cache
def triton_is_there() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None


def refusal_of_kernels(card: Card, kernels: str | None = None, *, gradients: bool = False) -> str | None:
    """Return why kernels cannot run on the card, or None.

    `kernels` is a name in `shared_memory` of kernels that need much of it. Cards without a compute capability are
    accepted: there Triton interprets the kernels, or nothing is computed.
    """
    if not triton_is_there() and not is_described():
        return "triton is not installed"
    if card.capability is None:
        return None
    if card.capability < (8, 0):
        found = ".".join(map(str, card.capability))
        return f"its kernels and bfloat16 need compute capability 8.0, the card has {found}"
    needed = 0 if kernels is None else shared_memory(kernels, card.capability, gradients=gradients)
    reason = f"its kernels need {needed // 1024} KiB of shared memory, the card has {card.shared_memory // 1024}"
    return reason if needed > card.shared_memory else None
