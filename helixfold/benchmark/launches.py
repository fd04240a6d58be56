"""Count what the parts of the network launch on a GPU, for `helixfold benchmark launches`."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import torch

from helixfold.annotations import Parameter
from helixfold.benchmark.options import Model
from helixfold.benchmark.static.kept import KeptMemory
from helixfold.benchmark.static.network_parts import Part, PassSizes, parts
from helixfold.benchmark.static.operator_log import OperatorCall, OperatorLog
from helixfold.execution.nested import tensors
from helixfold.ops.card import CARDS, Card, described
from helixfold.optim.flat import add_together
from helixfold.options import File, Positive

_HEADER = (
    f"{'':47} {'':8} {'kernels':>7} {'others':>6} "
    f"{'parameter casts':>15} {'other casts':>11} {'waits':>5} {'kept MiB':>8}"
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LaunchesOptions:
    """Options of `helixfold benchmark launches`."""

    card: Annotated[str, Parameter(choices=[name for name, card in CARDS.items() if card.kind == "cuda"])] = "h200"
    """GPU to count for; this machine need not have it."""
    preset: Model = "model_1"
    """Model whose parts are counted."""
    residues: Positive = 256
    """Number of residues."""
    rows: Positive = 128
    """MSA rows."""
    extra_rows: Positive = 1024
    """Extra MSA rows."""
    only: Annotated[str, Parameter(metavar="WORDS", show_default="all")] = ""
    """Count only parts whose name contains this text."""
    names: Annotated[bool, Parameter(negative=())] = False
    """Also list the launches by name."""
    json: File | None = None
    """Also write the table to this file."""


_USUAL = LaunchesOptions()


@dataclass(frozen=True, kw_only=True)
class Launches:
    """The launches of a part's forward or backward pass.

    `names` counts our kernels and PyTorch's operators by name. Casts are operators too, `waits` those for which the
    host waits. `kept` is the bytes that the forward pass keeps for the backward pass, without parameters.
    """

    part: str
    backward: bool
    kernels: int
    others: int
    parameter_casts: int
    other_casts: int
    waits: dict[str, int]
    kept: int
    names: dict[str, int]

    @classmethod
    def of(cls, part: Part, calls: Sequence[OperatorCall], *, backward: bool, kept: int = 0) -> "Launches":
        launched = [call for call in calls if call.is_kernel or call.moved or not call.waits]
        return cls(
            part=part.name,
            backward=backward,
            kernels=sum(call.is_kernel for call in launched),
            others=sum(not call.is_kernel for call in launched),
            parameter_casts=sum(call.cast == "parameter" for call in calls),
            other_casts=sum(call.cast == "other" for call in calls),
            waits=dict(Counter(call.name for call in calls if call.waits)),
            kept=kept,
            names=dict(Counter(call.name for call in launched).most_common()),
        )

    def line(self) -> str:
        kept = "" if self.backward else f"{self.kept / 2**20:8,.0f}"
        return (
            f"{self.part:47} {'backward' if self.backward else 'forward':8} {self.kernels:7,} {self.others:6,} "
            f"{self.parameter_casts:15,} {self.other_casts:11,} {sum(self.waits.values()):5} {kept}"
        ).rstrip()


def run(options: LaunchesOptions = _USUAL) -> None:
    """Print how many kernels and operators every part launches, and what it casts, waits for and keeps."""
    card = CARDS[options.card]
    sizes = PassSizes(
        preset=options.preset, residues=options.residues, rows=options.rows, extra_rows=options.extra_rows
    )
    print(
        f"{card.name}: {options.preset}, {options.residues} residues, {options.rows} + {options.extra_rows} rows, "
        "bfloat16, nothing recomputed"
    )
    print(_HEADER)
    found: list[Launches] = []
    for part in parts(sizes):
        if options.only in part.name:
            for launches in counted(part, card):
                found.append(launches)
                print(launches.line(), flush=True)
                for name, count in launches.waits.items():
                    print(f"    the host waits {count} times for {name}")
                if options.names:
                    print("    " + ", ".join(f"{count} {name}" for name, count in launches.names.items()))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")


def counted(part: Part, card: Card) -> Iterator[Launches]:
    """Yield the launches of a part's forward pass, and of its backward pass if it has one, on a described card.

    The part is run twice, and the second run counts: tables of constants are then there.
    """
    with described(card), torch.set_grad_enabled(bool(part.leaves)):
        with OperatorLog():
            part.run()
        with KeptMemory(part.module) as kept, OperatorLog(part.module) as log:
            outputs = [each for each in tensors(part.run()) if each.requires_grad]
        yield Launches.of(part, log.calls, backward=False, kept=kept.bytes)
        if not part.leaves:
            return
        gradients = [torch.empty_like(each) for each in outputs]
        if part.accumulates:
            for leaf in part.leaves:
                leaf.grad = torch.empty_like(leaf)
        with OperatorLog(part.module) as log:
            if part.accumulates:
                found = torch.autograd.grad(outputs, part.leaves, gradients, allow_unused=True)
                # One operator for each dtype, which on a GPU is a launch for each 64 parameters.
                add_together([leaf.grad for leaf in part.leaves if leaf.grad is not None], found)
            else:
                torch.autograd.grad(outputs, part.leaves, gradients, allow_unused=True)
        yield Launches.of(part, log.calls, backward=True)
