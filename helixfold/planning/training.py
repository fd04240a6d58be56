"""What a training pass takes: one is run part by part, on meta tensors for a card or really, for one rank of a layout.

On meta tensors stacks are run with two blocks. What the second one adds stands for each further block, so the numbers
are those of the whole network to the byte, in a fraction of the time. Where time is measured one block is enough.
"""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import cast

import torch
from torch import Tensor

from helixfold.batch import Batch
from helixfold.config import ModelConfig
from helixfold.execution.counter import Counter
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.execution.stages import synchronize
from helixfold.losses.config import initial_training
from helixfold.losses.labels import Labels
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Recycled
from helixfold.model.update import Stream
from helixfold.ops.card import CARDS, Card, described
from helixfold.ops.dispatch import forced
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel.collectives import Kind
from helixfold.parallel.layout import Layout
from helixfold.parallel.mesh import Mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.parallel.shard import Shard
from helixfold.planning.executors import RESERVE
from helixfold.planning.prediction import recycled
from helixfold.planning.size import Forecast, PassSize, of_blocks

# Up to what size freed blocks are kept for later tensors of a training pass on a CPU. Tensors of a stream's size live
# for very different times there: kept, what they leave would lie idle, up to half of what is in use.
KEPT_BLOCKS = 4 * 2**20
# What a CPU's libraries take beside tensors for each thread: buffers, and blocks that were freed; and what oneDNN keeps
# prepared for the products of a whole network. Measured.
_OF_THREAD, _PREPARED = 20 * 2**20, 48 * 2**20
ALONE = Layout()
# The parts of a pass in their order; those of `RecomputeConfig` are named as there.
PARTS = ("embedding", "template", "extra_msa", "evoformer", "structure", "heads")
# The name of each part's stage.
STAGES = dict(zip(PARTS, ("embedding", "templates", "extra MSA", "Evoformer", "structure", "heads"), strict=True))


@dataclass(kw_only=True)
class Direction:
    """A part's forward or backward pass: the most bytes that are there beyond those at its end, and its work.

    `seconds` are measured, on a device that is here.
    """

    peak: int = 0
    products: int = 0
    moved: int = 0
    launches: int = 0
    seconds: float = 0.0
    messages: list[tuple[Kind, int]] = field(default_factory=list)

    def add(self, other: "Direction", count: int = 1) -> None:
        """Add what another stretch computes, so many times."""
        self.products += count * other.products
        self.moved += count * other.moved
        self.launches += count * other.launches
        self.seconds += count * other.seconds
        self.messages += count * other.messages


@dataclass(kw_only=True)
class PartCost:
    """A part of a training pass: the bytes that it keeps for its gradients, and both directions."""

    kept: int = 0
    forward: Direction = field(default_factory=Direction)
    backward: Direction = field(default_factory=Direction)


Costs = Mapping[str, PartCost]


@dataclass(frozen=True, kw_only=True)
class TrainingNeeds:
    """What a training run takes on each rank, beside what is recomputed.

    `state` are bytes of parameters and optimizer, `samples` go through the network at once, `card` is what computes,
    and the ranks that share a sample do so as the layout says.
    """

    model: ModelConfig
    size: PassSize
    samples: int = 1
    state: int = 0
    card: Card = CARDS["cpu"]
    layout: Layout = ALONE

    def peak(self, keep: RecomputeConfig) -> int:
        """Return the bytes of the whole run, as forecast."""
        return self.state + self.samples * self.forecast(keep).peak

    def needed(self, keep: RecomputeConfig) -> int:
        """Return the same with a reserve for what forecasts are wrong by."""
        return self.state + int(RESERVE * self.samples * self.forecast(keep).peak)

    def forecast(self, keep: RecomputeConfig) -> Forecast:
        """Return what a pass of one sample takes, forward and backward, on the rank of the layout that takes most.

        These are bytes beyond parameters and their gradients. A stage's are the most while it is computed or its
        gradients are, with all that the stages before it have kept. `size.ensemble` counts the samples that are held,
        such as those of all recycling passes.
        """
        found = [self._forecast(keep, rank) for rank in range(self.layout.bp)]
        return max(found, key=lambda forecast: forecast.peak)

    def cost(self, keep: RecomputeConfig | None, part: str, branch_rank: int) -> PartCost:
        """Return what one part takes on a rank; without `keep`, in a pass without gradients."""
        chosen = None if keep is None else keep_of(keep, part)
        return part_costs(self.model, self.size, chosen, self.card, self.layout, branch_rank=branch_rank)[part]

    def _forecast(self, keep: RecomputeConfig, branch_rank: int) -> Forecast:
        held, stages = 0, {}
        beside = beside_tensors(self.card) + _PREPARED * (self.card.kind == "cpu")
        for part in PARTS:
            cost = self.cost(keep, part, branch_rank)
            if part == "template" and not cost.kept + cost.forward.peak:
                continue
            held += cost.kept
            stages[STAGES[part]] = held + max(cost.forward.peak, cost.backward.peak) + beside
        return Forecast(stages=stages)


def beside_tensors(card: Card) -> int:
    """Return the bytes that libraries take beside tensors in the training pass of a stack."""
    return _OF_THREAD * torch.get_num_threads() * (card.kind == "cpu")


def keep_of(keep: RecomputeConfig, part: str) -> Keep:
    """Return what one part keeps; those that have no choice keep everything."""
    chosen = getattr(keep, part, "none")
    assert chosen != "auto"
    return cast(Keep, chosen)


@cache
def part_costs(
    config: ModelConfig,
    size: PassSize,
    keep: Keep | None,
    card: Card,
    layout: Layout = ALONE,
    *,
    branch_rank: int = 0,
    plain: bool = False,
) -> Costs:
    """Return what each part of a training pass takes if all parts keep the same, on one rank of a layout.

    What a part takes does not depend on what the others keep. Without `keep` it is a pass without gradients, such as a
    recycling pass. If `plain`, operators' references compute: their matrix products are PyTorch's, which it can count;
    those inside kernels it cannot see.
    """
    everywhere = None if keep is None else RecomputeConfig.everywhere(keep)
    with described(card), forced("reference") if plain else nullcontext():
        return Pass(config, size, everywhere, Mesh.simulated(layout, branch_rank)).costs()


@dataclass
class _Segment:
    """A stretch of a pass: what is live at its beginning and its end, the most meanwhile, and what it computes."""

    label: str
    start: int
    peak: int = 0
    end: int = 0
    work: Direction = field(default_factory=Direction)


class Pass:
    """A rank's share of a pass of a network with one or two blocks in each stack, read in segments.

    Without `keep` it is a pass without gradients. On a device that is here the parameters are those of a training run,
    in its dtype.
    """

    def __init__(self, config: ModelConfig, size: PassSize, keep: RecomputeConfig | None, mesh: Mesh) -> None:
        self.config, self.size, self.device = config, size, mesh.device
        self.learns = keep is not None
        self.blocks = 2 if self.device.type == "meta" else 1
        with Counter(), self.device:  # quicker on the meta device than what PyTorch does of itself
            self.model = AlphaFold(replace(of_blocks(config, self.blocks), template=config.template)).train()
            if self.device.type != "meta":
                FlatOptimizer(self.model, OptimizerConfig(), working_dtype=size.dtype)
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
        parallelized = parallelize(self.model, mesh, keep or RecomputeConfig.everywhere("none"))
        self.run, self.communication, self.counter = parallelized.run, parallelized.communication, Counter()
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
        """Run the pass, backward too if it learns, and return what each part takes."""
        with self.counter:
            self._begin("embedding")
            inputs = self._inputs(self.size.ensemble if self.learns else 1)
            self._end()
            self.segments[-1].work = Direction()  # A run has inputs, it does not draw them.
            self._carry_out(*inputs)
        return self._costs()

    def seconds(self, readings: int = 2) -> dict[str, float]:
        """Return the shortest of some readings of each part, after a pass that is not counted."""
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
                random_batch(size.residues, size.msa_rows, size.extra_rows, size.templates, self.device)
                for _ in range(count)
            ]
            labels = random_labels(samples[0])
        return samples, labels, recycled(self.run, self.config, samples[0].seq_mask, size.dtype)

    def _carry_out(self, samples: list[Batch], labels: Labels, previous: Recycled) -> None:
        self.segments = self.forward
        self._begin("embedding")
        with torch.set_grad_enabled(self.learns):
            if self.learns:
                folded = self.model(self.run, samples[-1:], previous, self.size.dtype)
                loss = total_loss(folded, samples[-1], labels, initial_training()).total.sum()
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
        """End the segment that there is, and begin another one."""
        self._end()
        counter = self.counter
        counter.begin(label)
        work = Direction(products=counter.products, moved=counter.moved, launches=counter.launches, seconds=self._now())
        self.segments.append(_Segment(label, counter.live, work=work))
        self.communication.messages = self.segments[-1].work.messages

    def _end(self) -> None:
        if not self.segments or self.segments[-1].end:
            return
        segment, counter = self.segments[-1], self.counter
        segment.peak, segment.end = counter.peak, max(counter.live, 1)
        work = segment.work
        work.products = counter.products - work.products
        work.moved, work.launches = counter.moved - work.moved, counter.launches - work.launches
        work.seconds = self._now() - work.seconds

    def _now(self) -> float:
        """Return the time, once all is computed; on the meta device none passes."""
        synchronize(self.device)
        return 0.0 if self.device.type == "meta" else time.perf_counter()

    def _passed(self, label: str, following: str, found: Stream) -> None:
        """Begin the next part; backwards, its gradients end where those of this part's result are complete."""
        part = found.part if isinstance(found, Shard) else found
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
            kept = own[-1].end - own[0].start + further * (blocks[-1].end - blocks[-1].start if blocks else 0)
            directions = []
            for segments in (own, [each for each in self.backward if each.label.split()[0] == part]):
                work = Direction(peak=max([0, *(each.peak - own[-1].end for each in segments)]))
                # The last block stands for further ones: its streams come from a block. Backwards it comes first.
                order = reversed(segments) if segments is own else segments
                block = next((each for each in order if each.label != part), None)
                for each in segments:
                    work.add(each.work, 1 + further if each is block else 1)
                directions.append(work)
            found[part] = PartCost(kept=kept, forward=directions[0], backward=directions[1])
        return found
