"""Run updates of a block and other parts of the network on meta tensors, and record what a GPU would be given to do."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from helixfold.benchmark.block import evoformer, random_streams
from helixfold.benchmark.static.kept import KeptMemory
from helixfold.benchmark.static.network_parts import PassSizes, parts
from helixfold.benchmark.static.operator_log import META, OperatorCall, OperatorLog
from helixfold.execution.nested import tensors
from helixfold.execution.whole import Whole
from helixfold.model.evoformer import EvoformerBlock
from helixfold.ops.card import CARDS, Card, described
from helixfold.ops.dispatch import recorded

if TYPE_CHECKING:
    from helixfold.ops.triton.compiled import CompiledKernel

# The updates of a block in the paper's order: name, stream, and the stream that the context comes from.
UPDATES = (
    ("row_attention", "msa", "pair"),
    ("column_attention", "msa", "msa"),
    ("msa_transition", "msa", "msa"),
    ("outer_product_mean", "pair", "msa"),
    *((name, "pair", "pair") for name in ("triangle_outgoing", "triangle_incoming")),
    *((name, "pair", "pair") for name in ("triangle_starting", "triangle_ending", "pair_transition")),
)
BLOCK = "Evoformer block"
# Other parts whose kernels differ from the block's.
PARTS = ("extra-MSA block", "template embedding", "structure module")
# A GPU for each architecture that kernels are compiled for.
ARCHITECTURES: Mapping[str, Card] = {
    "sm_75": CARDS["t4"],
    "sm_80": CARDS["a100-80"],
    "sm_86": CARDS["rtx3090"],
    "sm_89": CARDS["rtx4090"],
    "sm_90": CARDS["h200"],
    "sm_100": replace(CARDS["h200"], name="NVIDIA B200", capability=(10, 0), memory=178 * 2**30, multiprocessors=148),
    "sm_120": replace(
        CARDS["rtx4090"], name="NVIDIA GeForce RTX 5090", capability=(12, 0), memory=31 * 2**30, multiprocessors=170
    ),
}
NAMES = (*(name.replace("_", " ") for name, _, _ in UPDATES), BLOCK, *PARTS)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The forward or backward pass of an update, of the whole block, or of another part of the network.

    `kernels` has the compiled kernel of each launch of ours, and `calls` everything that is launched, our kernels in
    the same order. `floor` is the bytes of memory that any implementation moves: each input and output once. The
    inputs are the streams, their masks and the parameters, and for the backward pass also the gradient of the output;
    the outputs are the new stream, or the gradients of streams and parameters. The floor of the Evoformer block is the
    sum of its updates'. `kept` is the bytes that the forward pass keeps for the backward pass, without parameters.
    """

    name: str
    backward: bool
    kernels: list["CompiledKernel"]
    calls: list[OperatorCall]
    floor: int
    kept: int


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """Recorder of both passes of any code on a card that is only described.

    `compiled` makes a context that yields the list of kernels launched inside it. `refusals` has the reasons why
    kernels do not compute an operator on the card, by the operator's name, as far as passes have been recorded.
    """

    card: Card
    compiled: Callable[[], AbstractContextManager[list["CompiledKernel"]]]
    refusals: dict[str, str] = field(default_factory=dict)

    def both(
        self,
        name: str,
        run: Callable[[], Any],
        leaves: Sequence[Tensor],
        floor: Sequence[int],
        module: nn.Module | None,
    ) -> Iterator[Pass]:
        """Yield the forward pass of `run`, and the backward pass to the leaves.

        `floor` is that of either pass, and `module` has the parameters.
        """
        with ExitStack() as place:
            place.enter_context(described(self.card))
            calls, kernels = place.enter_context(recorded()), place.enter_context(self.compiled())
            log, kept = place.enter_context(OperatorLog()), place.enter_context(KeptMemory(module))
            outputs = [each for each in tensors(run()) if each.requires_grad]
        yield Pass(name=name, backward=False, kernels=kernels, calls=log.calls, floor=floor[0], kept=kept.bytes)
        for operator, arguments in calls:
            reason = operator.refusals(self.card, *arguments).get("triton")
            if reason is not None:
                self.refusals[operator.name] = reason
        gradients = [torch.empty_like(each) for each in outputs]
        with described(self.card), self.compiled() as kernels, OperatorLog() as log:
            torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)
        yield Pass(name=name, backward=True, kernels=kernels, calls=log.calls, floor=floor[1], kept=kept.bytes)


def passes(sizes: PassSizes, names: Sequence[str], recorder: Recorder) -> Iterator[Pass]:
    """Yield both passes, in training, of what has these names: updates of a block, the block, and other parts."""
    yield from _Block(sizes).passes(names, recorder)
    if any(name in PARTS for name in names):
        for part in parts(sizes):
            if part.name in names and part.name in PARTS:
                inputs = sum(each.nbytes for each in part.leaves)
                with described(recorder.card), OperatorLog():
                    outputs = sum(each.nbytes for each in tensors(part.run()))
                floor = [inputs + outputs, 2 * inputs + outputs]
                yield from recorder.both(part.name, part.run, part.leaves, floor, part.module)


class _Block:
    """A block of the Evoformer with its streams; parameters have the streams' dtype."""

    def __init__(self, sizes: PassSizes) -> None:
        stack = evoformer(sizes.preset, 1, META).requires_grad_(True).train().to(sizes.dtype)
        self._block: EvoformerBlock = stack.blocks[0]  # type: ignore[assignment]
        msa, pair, *masks = random_streams(sizes.preset, sizes.residues, sizes.rows, sizes.dtype, META)
        self._streams = {"msa": msa.requires_grad_(), "pair": pair.requires_grad_()}
        self._masks = dict(zip(("msa", "pair"), masks, strict=True))

    def passes(self, names: Sequence[str], recorder: Recorder) -> Iterator[Pass]:
        """Yield the passes of the updates with these names, and those of the block if its name is among them."""
        floors = [0, 0]
        for attribute, stream, context in UPDATES:
            name, update, streams = (
                attribute.replace("_", " "),
                getattr(self._block, attribute),
                {stream: 0, context: 0},
            )
            floor = self._floor(update, streams)
            floors = [total + each for total, each in zip(floors, floor, strict=True)]
            if name in names:
                context_from = None if context == stream else (self._streams[context], self._masks[context])
                run = partial(Whole(), update, self._streams[stream], self._masks[stream], context_from)
                yield from recorder.both(name, run, self._leaves(update, streams), floor, update)
        if BLOCK in names:
            run = partial(self._block, Whole(), *self._streams.values(), *self._masks.values())
            yield from recorder.both(BLOCK, run, self._leaves(self._block, self._streams), floors, self._block)

    def _floor(self, update: nn.Module, streams: Mapping[str, Any]) -> list[int]:
        """Return the least bytes that the update's two passes move; the first of the streams is what it changes."""
        leaves = sum(each.nbytes for each in self._leaves(update, streams))
        changed = self._streams[next(iter(streams))].nbytes
        forward = leaves + sum(self._masks[each].nbytes for each in streams) + changed
        return [forward, forward + leaves]

    def _leaves(self, module: nn.Module, streams: Iterable[str]) -> list[Tensor]:
        return [*(self._streams[each] for each in streams), *module.parameters()]
