"""Executor that records how much every update of the Evoformer changes each edge of the pair stream."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.execution.whole import Whole
from helixfold.model.evoformer import EvoformerStack
from helixfold.model.update import ContextInput, Stream, Update, as_tensor

_OF_MSA = ("row_attention", "column_attention", "msa_transition")


@dataclass(frozen=True, kw_only=True)
class Change:
    """Change that one update of one block made to the pair stream of the first sample."""

    block: int  # from 0
    update: str  # name of its attribute in the block: triangle_outgoing, ...
    size: Float[Tensor, "r r"]  # root mean square over the channels, for each edge

    @property
    def title(self) -> str:
        """Return a title with the block (from 1), the update and the mean size of the change."""
        return f"{self.block + 1}: {self.update.replace('_', ' ')}, {float(self.size.mean()):.2f}"

    @property
    def pattern(self) -> Float[Tensor, "r r"]:
        """Return the size of the change relative to its largest edge, so that small changes can be seen in a plot."""
        return self.size / self.size.max().clamp(min=1e-12)


class PairChangeRecorder(Whole):
    """Executor that works as `Whole` does, and records the changes of the last pass through `stack` in `changes`."""

    def __init__(self, stack: EvoformerStack) -> None:
        self.changes: list[Change] = []
        self._places: dict[nn.Module, tuple[int, str]] = {
            update: (number, name)
            for number, block in enumerate(stack.blocks)
            for name, update in block.named_children()
            if name not in _OF_MSA
        }
        self._first = next(iter(self._places), None)

    def __call__(
        self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None = None
    ) -> Tensor:
        changed = super().__call__(update, stream, mask, context_from)
        if update in self._places:
            if update is self._first:
                self.changes = []
            block, name = self._places[update]
            with torch.no_grad():
                size = (changed - as_tensor(stream))[0].float().square().mean(-1).sqrt()
            self.changes.append(Change(block=block, update=name, size=size))
        return changed
