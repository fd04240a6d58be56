"""Updates carried out slab by slab and in place: inference whose peak memory is the stream and one context."""

from collections.abc import Iterator

import torch
from torch import Tensor

from helixfold.model.update import Context, Source, Update, turned

# Temporaries may take this part of the stream, or so many elements: small beside it, and still enough rows to keep the
# cores busy.
BUDGET_SHARE = 1 / 16
LEAST_ELEMENTS = 8 * 2**20


class Slabs:
    """Computes the context part by part, then adds the update to each slab of the stream in place; no gradients.

    The size of a slab follows from `budget`, the bytes that its temporaries may take (by default a share of the
    stream), unless `rows` fixes it.
    """

    def __init__(self, budget: int | None = None, rows: int | None = None) -> None:
        for name, value in (("budget", budget), ("rows", rows)):
            if value is not None and value < 1:
                raise ValueError(f"{name} of slabs must be at least 1, got {value}")
        self.budget, self.rows = budget, rows

    @torch.no_grad()
    def __call__(self, update: Update, stream: Tensor, mask: Tensor, source: Source | None = None) -> Tensor:
        if update.training and update.dropout_rate > 0:
            raise ValueError("slabs are for inference: set the model to evaluation, or train with the Whole executor")
        turned_source = tuple(turned(each, update.source_axis) for each in source or (stream, mask))
        context = self._context(update, *turned_source)
        slabs, slab_mask = turned(stream, update.axis), turned(mask, update.axis)
        for part in self._parts(update, slabs):
            aligned = [each[:, part] for each in turned_source] if update.reads_source else []
            slabs[:, part] += update(slabs[:, part], slab_mask[:, part], context, *aligned)
        return stream

    def _context(self, update: Update, source: Tensor, mask: Tensor) -> Context:
        whole: Context = ()
        for part in self._parts(update, source):
            pieces = update.context(source[:, part], mask[:, part])
            if not whole:
                # Filled in place: joining at the end would hold every piece twice.
                whole = tuple(_room(piece, update.context_dim, source.shape[1]) for piece in pieces)
            for room, piece in zip(whole, pieces, strict=True):
                room.narrow(update.context_dim, part.start, part.stop - part.start).copy_(piece)
            if not pieces:
                break
        return whole

    def _parts(self, update: Update, slabs: Tensor) -> Iterator[slice]:
        length = slabs.shape[1]
        row_bytes = update.workspace(slabs.shape[2], slabs.shape[3]) * slabs.shape[0] * slabs.element_size()
        budget = self.budget or max(LEAST_ELEMENTS * slabs.element_size(), int(slabs.nbytes * BUDGET_SHARE))
        size = self.rows or max(1, budget // max(row_bytes, 1))
        for start in range(0, length, size):
            yield slice(start, min(start + size, length))


def _room(piece: Tensor, dim: int, length: int) -> Tensor:
    shape = list(piece.shape)
    shape[dim] = length
    return piece.new_empty(shape)
