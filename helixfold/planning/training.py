"""Memory and work of a training pass on one rank of a layout, by part of the network.

A pass is run on meta tensors and counted for a card, or run on the device and timed. On meta tensors stacks have two
blocks, and what the second one adds stands for each further block. So the numbers are those of the whole network to the
byte, in a fraction of the time. For measured times one block is enough. In this module `keep` is a recompute policy
(`RecomputeConfig`), or None for a pass without gradients.
"""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import cast

import torch
from torch import Tensor

from helixfold.execution.counter import Counter
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.execution.stages import synchronize
from helixfold.losses.config import LossConfig, initial_training
from helixfold.losses.labels import Labels
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.config import ModelConfig, of_blocks
from helixfold.model.outputs import Recycled, nothing_recycled
from helixfold.model.update import Stream
from helixfold.ops.card import CARDS, Card, described
from helixfold.ops.cpu import loops
from helixfold.ops.dispatch import forced
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel.collectives import Message
from helixfold.parallel.mesh import Layout, Mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.parallel.shard import Shard
from helixfold.planning.counted import counted_once
from helixfold.planning.executors import RESERVE
from helixfold.planning.size import Forecast, PassSize, streams

# Largest freed blocks, in bytes, that a training pass on a CPU keeps for later tensors. Tensors of a stream's size live
# for very different times; if their memory were kept, up to half of what is in use would be unused.
KEPT_BLOCKS = 4 * 2**20
# Bytes that a CPU's libraries take for each thread (buffers and freed blocks), and those that oneDNN takes for prepared
# products of a whole network. Measured.
_OF_THREAD, _PREPARED = 20 * 2**20, 48 * 2**20
ALONE = Layout()
# The parts of a pass in order, by their names in `RecomputeConfig` if they have one.
PARTS = ("embedding", "template", "extra_msa", "evoformer", "structure", "heads")
# Names of the parts on the screen.
STAGES = dict(zip(PARTS, ("embedding", "templates", "extra MSA", "Evoformer", "structure", "heads"), strict=True))


@dataclass(kw_only=True)
class Direction:
    """Memory and work of the forward or backward pass of one part.

    `peak` is the most bytes beyond those at the end of the forward pass. `products`, `moved` and `launches` are those
    of `Counter`. `seconds` are measured, and 0 on meta tensors. `messages` has the kind and bytes of each collective.
    """

    peak: int = 0
    products: int = 0
    moved: int = 0
    launches: int = 0
    seconds: float = 0.0
    messages: list[Message] = field(default_factory=list)

    def add(self, other: "Direction", count: int = 1) -> None:
        """Add the work of another direction, `count` times; `peak` stays as it is."""
        self.products += count * other.products
        self.moved += count * other.moved
        self.launches += count * other.launches
        self.seconds += count * other.seconds
        self.messages += count * other.messages


@dataclass(kw_only=True)
class PartCost:
    """Memory and work of one part of a training pass; `kept` is the bytes that it keeps for the backward pass."""

    kept: int = 0
    forward: Direction = field(default_factory=Direction)
    backward: Direction = field(default_factory=Direction)


Costs = Mapping[str, PartCost]


@dataclass(frozen=True, kw_only=True)
class TrainingNeeds:
    """Everything on which the memory and time of each rank of a training run depend, except the recompute policy.

    `state` is the bytes of parameters, gradients and optimizer, `samples` the number of samples in a micro-batch,
    `card` the device, and `layout` divides a sample over ranks. Only parameters that `trained` names have gradients,
    all if it is None. Measured passes have the losses of
    `loss`; what is only counted has those of initial training, for complexes with the terms between chains.
    """

    model: ModelConfig
    size: PassSize
    samples: int = 1
    state: int = 0
    card: Card = CARDS["cpu"]
    layout: Layout = ALONE
    loss: LossConfig = field(default_factory=initial_training)
    trained: frozenset[str] | None = None

    def peak(self, keep: RecomputeConfig) -> int:
        """Return the forecast of a rank's peak memory in bytes, with parameters and optimizer."""
        return self.state + self.samples * self.forecast(keep).peak

    def needed(self, keep: RecomputeConfig) -> int:
        """Return the memory in bytes that must be available: the peak with a reserve for the forecast's error."""
        return self.state + int(RESERVE * self.samples * self.forecast(keep).peak)

    def forecast(self, keep: RecomputeConfig) -> Forecast:
        """Return the memory of a pass of one sample, forward and backward, on the rank of the layout that takes most.

        Bytes are those beyond parameters and their gradients. Those of a stage are the peak of its forward or backward
        pass, with everything that earlier stages keep. `size.ensemble` is the number of input samples in memory, one
        for each recycling iteration.
        """
        found = [self._forecast(keep, rank) for rank in range(self.layout.bp)]
        return max(found, key=lambda forecast: forecast.peak)

    def cost(self, keep: RecomputeConfig | None, part: str, branch_rank: int) -> PartCost:
        """Return the memory and work of one part on a rank; if `keep` is None, of a pass without gradients."""
        chosen = None if keep is None else keep_of(keep, part)
        return part_costs(
            self.model, self.size, chosen, self.card, self.layout, branch_rank=branch_rank, trained=self.trained
        )[part]

    def _forecast(self, keep: RecomputeConfig, branch_rank: int) -> Forecast:
        held, stages = 0, {}
        beside = beside_tensors(self.card, self.model, self.size) + prepared_products(self.card)
        if not self.cost(keep, "evoformer", branch_rank).backward.launches:
            # Without gradients of the trunk there are no products for those of its inputs and of its parameters.
            beside -= prepared_products(self.card) * 2 // 3
        for part in PARTS:
            cost = self.cost(keep, part, branch_rank)
            if part == "template" and not cost.kept + cost.forward.peak:
                continue
            held += cost.kept
            stages[STAGES[part]] = held + max(cost.forward.peak, cost.backward.peak) + beside
        return Forecast(stages=stages)


def beside_tensors(card: Card, config: ModelConfig, size: PassSize) -> int:
    """Return the bytes that libraries take beside tensors in a training pass; 0 for a GPU."""
    if card.kind != "cpu":
        return 0
    return _OF_THREAD * torch.get_num_threads() + loops.bytes_taken(*streams(config, size))


def prepared_products(card: Card) -> int:
    """Return the bytes that oneDNN takes for prepared products of a whole network; 0 for a GPU."""
    return _PREPARED * (card.kind == "cpu")


def keep_of(keep: RecomputeConfig, part: str) -> Keep:
    """Return the policy for one part; parts without a setting ("embedding", "heads") recompute nothing."""
    chosen = getattr(keep, part, "none")
    assert chosen != "auto"
    return cast(Keep, chosen)


@counted_once
def part_costs(
    config: ModelConfig,
    size: PassSize,
    keep: Keep | None,
    card: Card,
    layout: Layout = ALONE,
    *,
    branch_rank: int = 0,
    plain: bool = False,
    trained: frozenset[str] | None = None,
) -> Costs:
    """Return the memory and work of each part of a pass on one rank of a layout, with the same policy for all parts.

    A part does not depend on the policies of the others. If `keep` is None the pass has no gradients, such as a
    recycling iteration before the last. `trained` names the parameters that have gradients. If `plain`, operators run
    their reference implementations, whose matrix products can be counted; those inside kernels cannot.
    """
    everywhere = None if keep is None else RecomputeConfig.everywhere(keep)
    _make_tables(config, min(1, size.templates), size.dtype, card)
    with described(card), forced("reference") if plain else nullcontext():
        return Pass(config, size, everywhere, Mesh.simulated(layout, branch_rank), trained=trained).costs()


@cache
def _make_tables(config: ModelConfig, templates: int, dtype: torch.dtype, card: Card) -> None:
    """Make the tables that stay in memory for all passes on a card, which its first pass would count."""
    one = PassSize(residues=1, msa_rows=1, extra_rows=1, templates=templates, dtype=dtype)
    with described(card):
        Pass(config, one, RecomputeConfig.everywhere("none"), Mesh.simulated(ALONE)).costs()


@dataclass
class _Segment:
    """Section of a pass, such as a block: live bytes at its start and end, their peak, and its work.

    `learns` says that its result has a gradient. What does not have one leaves nothing for the backward pass.
    """

    label: str
    start: int
    peak: int = 0
    end: int = 0
    learns: bool = True
    work: Direction = field(default_factory=Direction)


class Pass:
    """One rank's share of a pass through a network with one or two blocks in each stack, measured by segments.

    If `keep` is None the pass has no gradients, else those of `loss`, by default that of initial training. On a real
    device, parameters have the dtype that they have in a training run.
    """

    def __init__(
        self,
        config: ModelConfig,
        size: PassSize,
        keep: RecomputeConfig | None,
        mesh: Mesh,
        loss: LossConfig | None = None,
        *,
        trained: frozenset[str] | None = None,
    ) -> None:
        self.config, self.size, self.device = config, size, mesh.device
        self.loss = loss or initial_training(config.method)
        self.learns = keep is not None
        self.blocks = 2 if self.device.type == "meta" else 1
        with Counter(), self.device:  # a counter makes this faster, since it does not run operators on meta tensors
            self.model = AlphaFold(replace(of_blocks(config, self.blocks), template=config.template)).train()
            if self.device.type != "meta":
                FlatOptimizer(self.model, OptimizerConfig(), working_dtype=size.dtype)
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_(trained is None or name in trained)
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        self.messages: list[Message] = []
        self.run = parallelize(self.model, mesh, keep, messages=self.messages)
        self.counter = Counter()
        self.forward: list[_Segment] = []
        self.backward: list[_Segment] = []
        self.segments = self.forward
        model = self.model
        if model.template_embedder is not None:
            model.template_embedder.register_forward_pre_hook(lambda *_: self._begin("template"))
            model.template_embedder.register_forward_hook(
                lambda _, __, pair: self._passed("template", "extra_msa", pair)
            )
        else:
            model.extra_msa_embedder.register_forward_pre_hook(lambda *_: self._begin("extra_msa"))
        for name, stack, after in (
            ("extra_msa", model.extra_msa_stack, "evoformer"),
            ("evoformer", model.evoformer, "structure"),
        ):
            for block in stack.blocks:
                block.register_forward_pre_hook(lambda *_, name=name: self._begin(f"{name} block"))
                block.register_forward_hook(
                    lambda _, __, streams, name=name: self._passed(f"{name} block", name, streams[1])
                )
            stack.register_forward_hook(lambda *_, after=after: self._begin(after))
        model.structure_module.register_forward_hook(
            lambda _, __, found: self._passed("structure", "heads", found.frames)
        )

    def costs(self) -> Costs:
        """Run the pass, with its backward pass if it has gradients, and return the memory and work of each part."""
        with self.counter:
            self._begin("embedding")
            inputs = self._inputs(self.size.ensemble if self.learns else 1)
            self._end()
            self.segments[-1].work = Direction()  # making random inputs is no work of a run
            self._carry_out(*inputs)
        return self._costs()

    def seconds(self, readings: int = 2) -> dict[str, float]:
        """Return the seconds of each part: the least of several passes, after a first one that is not counted."""
        found, inputs = [], self._inputs(1)
        for _ in range(readings + 1):
            self.forward.clear()
            self.backward.clear()
            self._carry_out(*inputs)
            found.append(self._costs())
        return {
            part: min(each[part].forward.seconds + each[part].backward.seconds for each in found[1:]) for part in PARTS
        }

    def _inputs(self, count: int) -> tuple[list[Batch], Labels, Recycled]:
        size = self.size
        with self.device:
            samples = [
                random_batch(
                    size.residues,
                    size.msa_rows,
                    size.extra_rows,
                    size.templates,
                    self.device,
                    method=self.config.method,
                )
                for _ in range(count)
            ]
            labels = random_labels(samples[0])
        return samples, labels, nothing_recycled(self.run, self.config, samples[0].seq_mask, size.dtype)

    def _carry_out(self, samples: list[Batch], labels: Labels, previous: Recycled) -> None:
        self.segments = self.forward
        self._begin("embedding")
        with torch.set_grad_enabled(self.learns):
            if self.learns:
                folded = self.model(self.run, samples[-1:], previous, self.size.dtype)
                loss = total_loss(folded, samples[-1], labels, self.loss).total.sum()
                del folded
            else:
                self.model.fold(self.run, samples, previous, self.size.dtype)
        self._end()
        if self.learns:
            self.segments = self.backward
            self._begin("heads")
            loss.backward()
            self._end()

    def _begin(self, label: str) -> None:
        """End the current segment, if there is one, and begin another."""
        self._end()
        counter = self.counter
        counter.begin(label)
        work = Direction(products=counter.products, moved=counter.moved, launches=counter.launches, seconds=self._now())
        self.segments.append(_Segment(label, counter.live, work=work))
        self.messages.clear()

    def _end(self) -> None:
        if not self.segments or self.segments[-1].end:
            return
        segment, counter = self.segments[-1], self.counter
        segment.peak, segment.end = counter.peak, max(counter.live, 1)
        work = segment.work
        work.products = counter.products - work.products
        work.moved, work.launches = counter.moved - work.moved, counter.launches - work.launches
        work.seconds = self._now() - work.seconds
        work.messages = self.messages.copy()

    def _now(self) -> float:
        """Return the time in seconds after the device has finished its work; always 0 on the meta device."""
        synchronize(self.device)
        return 0.0 if self.device.type == "meta" else time.perf_counter()

    def _passed(self, label: str, following: str, found: Stream) -> None:
        """Begin the segment `following` after `label`, whose result is `found`.

        In the backward pass, the segment `label` begins when the gradient of its result is complete.
        """
        part = found.part if isinstance(found, Shard) else found
        self.segments[-1].learns = isinstance(part, Tensor) and part.requires_grad
        if isinstance(part, Tensor) and part.requires_grad:
            part.register_hook(lambda _: self._begin(label))
        self._begin(following)

    def _costs(self) -> Costs:
        found = {}
        for part in PARTS:
            stack = {"extra_msa": self.config.extra_msa, "evoformer": self.config.evoformer}.get(part)
            further = max(0, stack.blocks - self.blocks) if stack else 0
            own = [each for each in self.forward if each.label.split()[0] == part]
            if not own:
                found[part] = PartCost()
                continue
            blocks = [each for each in own if each.label != part]
            kept = own[-1].end - own[0].start
            if blocks and blocks[-1].learns:
                kept += further * (blocks[-1].end - blocks[-1].start)
            directions = []
            for segments in (own, [each for each in self.backward if each.label.split()[0] == part]):
                work = Direction(peak=max([0, *(each.peak - own[-1].end for each in segments)]))
                # The last block stands for further ones, since its input comes from a block. Backwards it comes first.
                order = reversed(segments) if segments is own else segments
                block = next((each for each in order if each.label != part), None)
                for each in segments:
                    work.add(each.work, 1 + further if each is block else 1)
                directions.append(work)
            found[part] = PartCost(kept=kept, forward=directions[0], backward=directions[1])
        return found
