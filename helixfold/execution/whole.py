"""Updates carried out whole: for training on one device, and wherever memory is plenty."""

from collections.abc import Callable

from torch import Tensor

from helixfold.model.update import Source, Update, turned
from helixfold.ops.residual import add_change


class Whole:
    """`stream + dropout(update(stream, context))`, everything at once, with gradients."""

    def __call__(self, update: Update, stream: Tensor, mask: Tensor, source: Source | None = None) -> Tensor:
        turned_source = [turned(each, update.source_axis) for each in source or (stream, mask)]
        context = update.context(*turned_source)
        aligned = turned_source if update.reads_source else []
        change = update(turned(stream, update.axis), turned(mask, update.axis), context, *aligned)
        return add_change(stream, turned(change, update.axis), update.kept(stream))

    def each(self, make: Callable[..., Tensor], *along: Tensor, workspace: int, into: Tensor | None = None) -> Tensor:
        return make(*along)
