"""Executor that computes each update on the whole stream, for training and for short chains."""

from collections.abc import Callable

import torch
from torch import Tensor

from helixfold.model.update import Context, ContextInput, Executor, Stream, Update, as_tensor, transposed
from helixfold.ops.device_properties import properties_of
from helixfold.ops.residual import Residual


class Whole(Executor):
    """Executor that computes `stream + dropout(update(stream, context))` for all rows at once, with gradients."""

    def __call__(
        self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None = None
    ) -> Tensor:
        """Return the stream plus dropout mask times change; `context_from` is the input of the context."""
        dropout_mask = update.dropout_mask(stream.shape, dtype=stream.dtype, device=stream.device)
        context_input = context_from or (stream, mask)
        context = None if update.makes_own_context else self.context(update, *context_input)
        return self.apply(update, stream, mask, context_input, context=context, dropout_mask=dropout_mask)

    def streams_at_once(self, count: int, device: torch.device) -> int:
        # In training a GPU is limited by kernel launches rather than memory, and all streams stay in memory anyway.
        return count if properties_of(device).kind != "cpu" and torch.is_grad_enabled() else 1

    def context(self, update: Update, context_input: Stream, mask: Tensor) -> Context:
        """Return the context of an update from all rows of its input."""
        rows = as_tensor(context_input)
        return update.context(transposed(rows, update.context_axis), transposed(mask, update.context_axis))

    def apply(
        self,
        update: Update,
        stream: Stream,
        mask: Tensor,
        context_input: ContextInput,
        *,
        context: Context | None,
        dropout_mask: Tensor | None,
    ) -> Tensor:
        """Return the stream plus the update's change, which is multiplied by the dropout mask.

        `context_input` is read only by updates that also use its rows.
        """
        rows: list[Tensor] = []
        if update.reads_context_rows:
            rows = [transposed(as_tensor(each), update.context_axis) for each in context_input]
        before = transposed(as_tensor(stream), update.axis)
        residual = Residual(before, None if dropout_mask is None else transposed(dropout_mask, update.axis))
        return transposed(update.added(residual, transposed(mask, update.axis), context, *rows), update.axis)

    def map_rows(self, make: Callable[..., Tensor], *streams: Stream) -> Tensor:
        return make(slice(0, streams[0].shape[1]), *streams)
