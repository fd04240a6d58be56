"""The part of `helixfold doctor` on operators: which backend computes each of them at a size, and why no other."""

import argparse
from collections.abc import Iterator
from contextlib import nullcontext

import torch

from data_pipeline.errors import InputError
from helixfold.cli.op_cases import OpCase, Shape, op_cases
from helixfold.cli.sizes import positive
from helixfold.device import pick_device
from helixfold.execution import allocator
from helixfold.ops.card import CARDS, Card, card_of, described

# The processors of this machine are asked by their own name, not those of a described one.
DESCRIBED = [name for name in CARDS if name != "cpu"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The size and the place that operators are asked about."""
    group = parser.add_argument_group("operators")
    group.add_argument("--length", type=positive, default=256, metavar="N", help="residues (%(default)s)")
    group.add_argument("--rows", type=positive, default=128, metavar="N", help="of the alignment (%(default)s)")
    group.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="(%(default)s)")
    group.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda", "mps", *DESCRIBED),
        default="auto",
        help="of this machine, or the name of a card that need not be here (%(default)s)",
    )


def report(options: argparse.Namespace) -> Iterator[str]:
    """The report's lines."""
    is_described = options.device in DESCRIBED
    try:
        card = CARDS[options.device] if is_described else card_of(pick_device(options.device))
    except InputError as error:
        yield f"operators: {error}, or a card: {', '.join(DESCRIBED)}"
        return
    shape = Shape(residues=options.length, rows=options.rows, dtype=getattr(torch, options.dtype))
    yield f"operators on {card.name}, {options.length} residues, {options.rows} rows, {options.dtype}"
    for case in op_cases(shape, "meta"):
        with described(card) if is_described else nullcontext():
            lines = _lines(case, card)
        yield from (f"  {case.name if line is lines[0] else '':48}{line}" for line in lines)
    if card.kind == "cpu":
        refused = allocator.refusal()
        kept = "kept for later ones by predict, train and benchmark"
        yield f"  {'memory that tensors leave':48}{kept if refused is None else f'left as it is: {refused}'}"


def _lines(case: OpCase, card: Card) -> list[str]:
    with torch.no_grad():
        predicting = _choices(case, card)
    with torch.enable_grad():
        training = predicting if case.in_place else _choices(case, card)
    if predicting == training:
        return predicting
    return [f"{line}, in prediction" for line in predicting] + [f"{line}, in training" for line in training]


def _choices(case: OpCase, card: Card) -> list[str]:
    """Of each of its operators the first backend that can, and why none before it."""
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
