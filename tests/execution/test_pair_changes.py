"""Looking on changes nothing, and sees every change of the pair stream."""

import torch

from helixfold.execution.pair_changes import PairChangeRecorder
from helixfold.execution.whole import Whole
from helixfold.model.update import ContextInput, Update
from tests.support.networks import random_batch, tiny_model

UPDATES = [
    "outer_product_mean",
    "triangle_outgoing",
    "triangle_incoming",
    "triangle_starting",
    "triangle_ending",
    "pair_transition",
]


class Remembering(Whole):
    """Keeps the pair streams that go into and come out of the Evoformer's updates."""

    def __init__(self, updates: set[Update]) -> None:
        self.updates, self.seen = updates, []

    def __call__(
        self, update: Update, stream: torch.Tensor, mask: torch.Tensor, context_from: ContextInput | None = None
    ) -> torch.Tensor:
        changed = super().__call__(update, stream, mask, context_from)
        if update in self.updates:
            self.seen.append((changed - stream)[0])
        return changed


@torch.no_grad()
def test_changes_are_those_of_the_evoformers_pair_updates_in_their_order() -> None:
    model, batch = tiny_model().eval(), random_batch()
    stack = model.evoformer
    watch = PairChangeRecorder(stack)
    remember = Remembering({getattr(block, name) for block in stack.blocks for name in UPDATES})
    watched, plain = (model.fold(run, [batch], None) for run in (watch, remember))
    assert (watched.representations.pair == plain.representations.pair).all()
    assert [(change.block, change.update) for change in watch.changes] == [
        (block, name) for block in range(len(stack.blocks)) for name in UPDATES
    ]
    for change, seen in zip(watch.changes, remember.seen, strict=True):
        torch.testing.assert_close(change.size, seen.square().mean(-1).sqrt())
        assert change.pattern.max() == 1
    assert watch.changes[0].title.startswith("1: outer product mean, ")


@torch.no_grad()
def test_only_the_last_pass_is_kept() -> None:
    model, batch = tiny_model().eval(), random_batch()
    watch = PairChangeRecorder(model.evoformer)
    first = model.fold(watch, [batch], None)
    before = watch.changes
    model.fold(watch, [batch], first.recycled())
    assert len(watch.changes) == len(before)
    assert (watch.changes[0].size != before[0].size).any()
