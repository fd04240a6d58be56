"""Run a block's updates on meta tensors, one by one, and record what a GPU would be given to do."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from helixfold.benchmark.block import evoformer, random_streams
from helixfold.benchmark.static.operator_log import OperatorCall, OperatorLog
from helixfold.execution.nested import tensors
from helixfold.execution.whole import Whole
from helixfold.model.evoformer import EvoformerBlock
from helixfold.ops.card import Card, described
from helixfold.ops.dispatch import recorded

if TYPE_CHECKING:
    from helixfold.ops.triton.compiled import Launch

# The updates of a block in the paper's order: name, stream, and the stream that the context comes from.
UPDATES = (
    ("row_attention", "msa", "pair"),
    ("column_attention", "msa", "msa"),
    ("msa_transition", "msa", "msa"),
    ("outer_product_mean", "pair", "msa"),
    *((name, "pair", "pair") for name in ("triangle_outgoing", "triangle_incoming")),
    *((name, "pair", "pair") for name in ("triangle_starting", "triangle_ending", "pair_transition")),
)
BLOCK = "block"
NAMES = (*(name for name, _, _ in UPDATES), BLOCK)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The forward or backward pass of an update, or of the whole block.

    `launches` is the kernels' and `operators` the calls of PyTorch's. `floor` is the bytes of memory that any
    implementation moves: each input and output once. The inputs are the streams, their masks and the parameters, and
    for the backward pass also the gradient of the output; the outputs are the new stream, or the gradients of streams
    and parameters. The floor of a block is the sum of its updates'.
    """

    update: str
    backward: bool
    launches: list["Launch"]
    operators: list[OperatorCall]
    floor: int


@dataclass(frozen=True, kw_only=True)
class BlockSize:
    """The size of an Evoformer block: preset, residues and MSA rows, and the dtype of streams and parameters."""

    preset: str
    residues: int
    rows: int
    dtype: torch.dtype


class BlockPasses:
    """Both passes of every update of a training block on a card that is only described, then those of the block.

    `compiled` makes a context that yields the list of kernel launches inside it. `refusals` has the reasons why kernels
    do not compute an operator on the card, by the operator's name, as far as the passes have been run.
    """

    def __init__(self, size: BlockSize, card: Card, compiled: Callable[[], AbstractContextManager[Any]]) -> None:
        self.card, self.refusals = card, dict[str, str]()
        self._compiled = compiled
        meta = torch.device("meta")
        stack = evoformer(size.preset, 1, meta).requires_grad_(True).train().to(size.dtype)
        self._block: EvoformerBlock = stack.blocks[0]  # type: ignore[assignment]
        msa, pair, *masks = random_streams(size.preset, size.residues, size.rows, size.dtype, meta)
        self._streams = {"msa": msa.requires_grad_(), "pair": pair.requires_grad_()}
        self._masks = dict(zip(("msa", "pair"), masks, strict=True))

    def run(self, names: Sequence[str] = NAMES) -> Iterator[Pass]:
        """Yield both passes of the updates with these names, and those of the block if its name is among them."""
        floors = [0, 0]
        for name, stream, context in UPDATES:
            update, streams = getattr(self._block, name), dict.fromkeys((stream, context))
            floor = self._floor(update, streams)
            floors = [total + each for total, each in zip(floors, floor, strict=True)]
            if name in names:
                context_from = None if context == stream else (self._streams[context], self._masks[context])
                run = partial(Whole(), update, self._streams[stream], self._masks[stream], context_from)
                yield from self._both(name, update, streams, run, floor)
        if BLOCK in names:
            run = partial(self._block, Whole(), *self._streams.values(), *self._masks.values())
            yield from self._both(BLOCK, self._block, self._streams, run, floors)

    def _floor(self, update: nn.Module, streams: Mapping[str, Any]) -> list[int]:
        """Return the least bytes that the update's two passes move; the first of the streams is what it changes."""
        leaves = sum(each.nbytes for each in self._leaves(update, streams))
        changed = self._streams[next(iter(streams))].nbytes
        forward = leaves + sum(self._masks[each].nbytes for each in streams) + changed
        return [forward, forward + leaves]

    def _leaves(self, module: nn.Module, streams: Iterable[str]) -> list[Tensor]:
        return [*(self._streams[each] for each in streams), *module.parameters()]

    def _both(
        self, name: str, module: nn.Module, streams: Iterable[str], run: Callable[[], Any], floor: Sequence[int]
    ) -> Iterator[Pass]:
        with described(self.card), recorded() as calls, self._compiled() as launches, OperatorLog() as log:
            outputs = list(tensors(run()))
        yield Pass(update=name, backward=False, launches=launches, operators=_others(log), floor=floor[0])
        for operator, arguments in calls:
            reason = operator.refusals(self.card, *arguments).get("triton")
            if reason is not None:
                self.refusals[operator.name] = reason
        gradients = [torch.empty_like(each) for each in outputs]
        with described(self.card), self._compiled() as launches, OperatorLog() as log:
            torch.autograd.grad(outputs, self._leaves(module, streams), gradients)
        yield Pass(update=name, backward=True, launches=launches, operators=_others(log), floor=floor[1])


def _others(log: OperatorLog) -> list[OperatorCall]:
    """Return the calls of PyTorch's operators, without those of our kernels."""
    return [call for call in log.calls if not call.is_kernel]
