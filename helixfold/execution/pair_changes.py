"""Executor that records how much each update of the Evoformer changes each edge of the pair stream."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.execution.whole import Whole
from helixfold.model.evoformer import EvoformerStack
from helixfold.model.update import ContextInput, Stream, Update, as_tensor

# Attributes of a block whose updates change the MSA stream, which is not recorded.
_MSA_UPDATES = ("row_attention", "column_attention", "msa_transition")


@dataclass(frozen=True, kw_only=True)
class Change:
    """Size of the change that one update of one block made to the pair stream of the first sample.

    `block` is an index from 0, and `update` the update's attribute name in the block. `size` is the root mean square
    over the channels, for each edge.
    """

    block: int  # from 0
    update: str  # attribute name in the block: triangle_outgoing, ...
    size: Float[Tensor, "r r"]  # root mean square over the channels, for each edge

    @property
    def title(self) -> str:
        """Return a title with the block (from 1), the update and the mean size of the change."""
        return f"{self.block + 1}: {self.update.replace('_', ' ')}, {float(self.size.mean()):.2f}"

    @property
    def pattern(self) -> Float[Tensor, "r r"]:
        """Return the change of each edge relative to the largest one, for plots."""
        return self.size / self.size.max().clamp(min=1e-12)


class PairChangeRecorder(Whole):
    """`Whole` executor that records in `changes` how each pair update of `stack` changed the pair stream.

    `changes` is in the order of the updates and is emptied when the first block begins again, so in the end it has the
    last recycling iteration.
    """

    def __init__(self, stack: EvoformerStack) -> None:
        """Record the pair updates of all blocks of `stack`."""
        self.changes: list[Change] = []
        self._places: dict[nn.Module, tuple[int, str]] = {
            update: (index, name)
            for index, block in enumerate(stack.blocks)
            for name, update in block.named_children()
            if name not in _MSA_UPDATES
        }
        self._first = next(iter(self._places), None)

    def __call__(
        self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None = None
    ) -> Tensor:
        """Run an update as `Whole` does, and record its change if it is a pair update of the stack."""
        changed = super().__call__(update, stream, mask, context_from)
        if update in self._places:
            if update is self._first:
                self.changes = []
            block, name = self._places[update]
            with torch.no_grad():
                size = (changed - as_tensor(stream))[0].float().square().mean(-1).sqrt()
            self.changes.append(Change(block=block, update=name, size=size))
        return changed
