"""Report which backend computes each operator of the network on a device or a card, and why no other does."""

from collections.abc import Iterator
from contextlib import nullcontext

import torch

from data_pipeline.errors import InputError
from helixfold.benchmark.op_cases import OpCase, Shape, op_cases
from helixfold.execution import allocator
from helixfold.execution.device import pick_device
from helixfold.ops.card import CARDS, Card, card_of, described
from helixfold.predict.doctor import CARD_NAMES
from helixfold.predict.options import OperatorOptions


def operator_table(options: OperatorOptions) -> Iterator[str]:
    """Yield lines that say which backend computes each operator at a size, and why no preferred one does."""
    is_described = options.device in CARD_NAMES
    try:
        card = CARDS[options.device] if is_described else card_of(pick_device(options.device))
    except InputError as error:
        yield f"operators: {error}, or a card: {', '.join(CARD_NAMES)}"
        return
    shape = Shape(residues=options.length, rows=options.rows, dtype=getattr(torch, options.dtype))
    yield f"operators on {card.name}, {options.length} residues, {options.rows} rows, {options.dtype}"
    for case in op_cases(shape, "meta"):
        with described(card) if is_described else nullcontext():
            lines = _operator_lines(case, card)
        yield from (f"  {case.name if line is lines[0] else '':48}{line}" for line in lines)
    if card.kind == "cpu":
        refused = allocator.refusal()
        kept = "kept for later ones by predict, train and benchmark"
        yield f"  {'memory that tensors leave':48}{kept if refused is None else f'left as it is: {refused}'}"


def _operator_lines(case: OpCase, card: Card) -> list[str]:
    with torch.no_grad():
        predicting = _choices(case, card)
    with torch.enable_grad():
        training = predicting if case.in_place else _choices(case, card)
    if predicting == training:
        return predicting
    return [f"{line}, in prediction" for line in predicting] + [f"{line}, in training" for line in training]


def _choices(case: OpCase, card: Card) -> list[str]:
    """Return a line for each operator: the first backend that supports the call, and why none before it does."""
    lines = []
    for op, arguments in case.calls:
        before: list[str] = []
        for name, reason in op.refusals(card, *arguments).items():
            if reason is None:
                because = f" ({'; '.join(before)})" if before else ""
                lines.append(f"{op.name}: {name}{because}")
                break
            before.append(f"{name}: {reason}")
    return lines
