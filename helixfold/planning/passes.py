"""Memory and work of a pass through the network, by its parts, on one rank of a layout.

A pass is run on meta tensors and counted for a card, or run on the device and timed. On meta tensors stacks have two
blocks, and what the second one adds stands for each further block. So the numbers are those of the whole network to the
byte, in a fraction of the time. For measured times one block is enough. In this module `keep` is a recompute policy
(`RecomputeConfig`), or None for a pass without gradients.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from helixfold.execution.counter import Counter
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.execution.slabs import MIN_ELEMENTS, Slabs
from helixfold.execution.stages import synchronize
from helixfold.execution.whole import Whole
from helixfold.losses.config import LossConfig, initial_training
from helixfold.losses.labels import Labels
from helixfold.losses.total import total_loss
from helixfold.model import confidence
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.config import ModelConfig, of_blocks
from helixfold.model.outputs import Recycled, nothing_recycled
from helixfold.model.update import Executor, Stream
from helixfold.ops.cpu import loops
from helixfold.ops.device_properties import DeviceProperties, simulated_device
from helixfold.ops.dispatch import forced
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel.collectives import Message
from helixfold.parallel.mesh import Layout, Mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.parallel.shard import Shard
from helixfold.planning.executors import executor
from helixfold.planning.size import Memory, PassSize, streams

META = torch.device("meta")
# Largest freed blocks, in bytes, that a training pass on a CPU keeps for later tensors. Tensors of a stream's size live
# for very different times; if their memory were kept, up to half of what is in use would be unused.
KEPT_BLOCKS = 4 * 2**20
# Bytes that a CPU's libraries take for each thread in a training pass (buffers and freed blocks) and in a prediction
# (buffers in which matrix products are packed), and those that oneDNN takes for prepared products of a whole network in
# a training pass. Measured.
_OF_THREAD, _OF_THREAD_IN_PREDICTION, _PREPARED = 20 * 2**20, 6 * 2**20, 48 * 2**20
# Unused memory in a CPU's heap during a prediction, between blocks that are still needed. With the executor "whole" it
# is a share of all tensors, which is larger where compiled loops compute. With slabs it is a multiple of the bytes that
# temporaries may take, but at most a share of all tensors. All were measured; measurements of the same case differ by
# up to a seventh, with where the heap's holes happen to be.
_IDLE_OF_WHOLE, _IDLE_OF_SLABS, _MOST_IDLE = 0.65, 3.5, 0.5
_IDLE_OF_WHOLE_IN_LOOPS = 1.0
ALONE = Layout()
# The parts of a pass in order, by their names in `RecomputeConfig` if they have one.
PARTS = ("embedding", "template", "extra_msa", "evoformer", "structure", "heads")
# Names of the parts on the screen. A prediction computes few logits, and these with the structure.
STAGES = dict(zip(PARTS, ("embedding", "templates", "extra MSA", "Evoformer", "structure", "heads"), strict=True))
_STAGES_OF_PREDICTION = STAGES | {"heads": "structure", "confidence": "confidence"}
# The loss of a step other than that of a training, from a network, its executor, an input and the trunk's dtype.
Step = Callable[[AlphaFold, Executor, Batch, torch.dtype], Tensor]


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
        for name in ("products", "moved", "launches", "seconds", "messages"):
            setattr(self, name, getattr(self, name) + count * getattr(other, name))


@dataclass(kw_only=True)
class PartCost:
    """Memory and work of one part of a training pass; `kept` is the bytes that it keeps for the backward pass."""

    kept: int = 0
    forward: Direction = field(default_factory=Direction)
    backward: Direction = field(default_factory=Direction)


Costs = Mapping[str, PartCost]


def beside_tensors(properties: DeviceProperties, config: ModelConfig, size: PassSize, *, predicts: bool = False) -> int:
    """Return the bytes that libraries take beside tensors in a pass of a training or prediction; 0 for a GPU."""
    if properties.kind != "cpu":
        return 0
    of_thread = _OF_THREAD_IN_PREDICTION if predicts else _OF_THREAD
    return of_thread * torch.get_num_threads() + loops.numba_bytes(*streams(config, size))


def prepared_products(properties: DeviceProperties) -> int:
    """Return the bytes that oneDNN takes for prepared products of a whole network; 0 for a GPU."""
    return _PREPARED * (properties.kind == "cpu")


@cache
def part_costs(
    config: ModelConfig,
    size: PassSize,
    keep: Keep | None,
    properties: DeviceProperties,
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
    with simulated_device(properties), forced("reference") if plain else nullcontext():
        make_tables(config, size.dtype, properties, learns=keep is not None)
        return Pass(config, size, everywhere, Mesh.simulated(layout, branch_rank), trained=trained).costs()


@cache
def prediction_memory(
    config: ModelConfig, size: PassSize, name: str, properties: DeviceProperties, slab_budget: int | None = None
) -> Memory:
    """Return the memory of a recycling iteration after the first, with confidences, by the executor of that name.

    `slab_budget` is that of the executors with slabs (see `Slabs`).
    """
    # Without gradients, further iterations of the structure module leave little more than their results.
    config = replace(config, structure=replace(config.structure, layers=min(2, config.structure.layers)))
    with simulated_device(properties):
        make_tables(config, torch.float32, properties, learns=False)
        within = executor(name, Path("/"), META, slab_budget)
        counted = Pass(config, size, None, Mesh.simulated(Layout(dap=size.ranks)), within=within)
        counted.costs()
    beside = beside_tensors(properties, config, size, predicts=True)
    stages: dict[str, int] = {}
    for segment in counted.forward:
        stage = _STAGES_OF_PREDICTION[segment.part]
        idle = _idle(name, segment.peak, config, size) if properties.kind == "cpu" else 0
        stages[stage] = max(stages.get(stage, 0), segment.peak + idle + beside)
    return Memory(stages=stages, spilled=counted.counter.peak_offloaded)


@cache
def step_peak(
    config: ModelConfig, size: PassSize, keep: RecomputeConfig, properties: DeviceProperties, step: Step
) -> int:
    """Return the most bytes of a step through a network that is not trained, forward and backward."""
    with simulated_device(properties):
        make_tables(config, size.dtype, properties, learns=True)
        counted = Pass(config, size, keep, Mesh.simulated(ALONE), trained=frozenset(), step=step)
        counted.costs()
    return counted.peak()


def make_tables(config: ModelConfig, dtype: torch.dtype, properties: DeviceProperties, *, learns: bool) -> None:
    """Make the tables that stay in memory for all passes on a card, which its first pass would count."""
    small = replace(of_blocks(config, 1), structure=replace(config.structure, layers=1))
    _make_tables(small, dtype, properties, learns)


@cache
def _make_tables(config: ModelConfig, dtype: torch.dtype, properties: DeviceProperties, learns: bool) -> None:
    one = PassSize(residues=1, msa_rows=1, extra_rows=1, templates=1, dtype=dtype)
    keep = RecomputeConfig.everywhere("none") if learns else None
    with simulated_device(properties):
        Pass(config, one, keep, Mesh.simulated(ALONE), within=None if learns else Whole()).costs()


def _idle(name: str, peak: int, config: ModelConfig, size: PassSize) -> int:
    """Return the bytes of unused memory in a CPU's heap for a prediction whose tensors take `peak` bytes."""
    if name == "whole":
        in_loops = loops.numba_bytes(*streams(config, size)) > 0
        return int((_IDLE_OF_WHOLE_IN_LOOPS if in_loops else _IDLE_OF_WHOLE) * peak)
    temporaries = MIN_ELEMENTS // size.ranks * size.dtype.itemsize
    return int(min(_MOST_IDLE * peak, _IDLE_OF_SLABS * temporaries))


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

    @property
    def part(self) -> str:
        """Return the part of the network that it belongs to."""
        return self.label.split()[0]


class Pass:
    """One rank's share of a pass through a network with one or two blocks in each stack, measured by segments.

    If `keep` is None the pass has no gradients, else those of `loss`, by default that of initial training, or those of
    what `step` returns. With an executor `within` it is a pass of a prediction, with confidences. On a real device,
    parameters have the dtype that they have in a training run.
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
        within: Whole | Slabs | None = None,
        step: Step | None = None,
    ) -> None:
        self.config, self.size, self.device = config, size, mesh.device
        self.loss, self.step = loss or initial_training(config.method), step
        self.learns, self.predicts = keep is not None, within is not None
        self.blocks = 2 if self.device.type == "meta" else 1
        with Counter(), self.device:  # a counter makes this faster, since it does not run operators on meta tensors
            self.model = AlphaFold(replace(of_blocks(config, self.blocks), template=config.template))
            self.model.train(not self.predicts)
            if self.device.type != "meta":
                FlatOptimizer(self.model, OptimizerConfig(), working_dtype=size.dtype)
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_(self.learns and (trained is None or name in trained))
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        self.messages: list[Message] = []
        self.run = parallelize(self.model, mesh, keep, within, self.messages)
        self.counter = Counter()
        self.forward: list[_Segment] = []
        self.backward: list[_Segment] = []
        self.segments = self.forward
        model = self.model
        model.extra_msa_embedder.register_forward_pre_hook(lambda *_: self._begin("extra_msa"))
        if model.template_embedder is not None:
            model.template_embedder.register_forward_pre_hook(lambda *_: self._begin("template"))
            model.template_embedder.register_forward_hook(
                lambda _, __, pair: self._passed("template", "extra_msa", pair)
            )
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
            inputs = self._inputs(self.size.ensemble if self.learns or self.predicts else 1)
            self._end()
            self.segments[-1].work = Direction()  # making random inputs is no work of a run
            self._carry_out(*inputs)
        return {part: self._cost(part) for part in PARTS}

    def peak(self) -> int:
        """Return the most bytes of a pass that was run, whose last blocks stand for further ones."""
        further = sum(self._further(part) * self._kept_by_block(part) for part in ("extra_msa", "evoformer"))
        return max(each.peak for each in (*self.forward, *self.backward)) + further

    def seconds(self, readings: int = 2) -> dict[str, float]:
        """Return the seconds of each part: the least of several passes, after a first one that is not counted."""
        found, inputs = [], self._inputs(1)
        for _ in range(readings + 1):
            self.forward.clear()
            self.backward.clear()
            self._carry_out(*inputs)
            found.append({part: self._cost(part) for part in PARTS})
        return {
            part: min(each[part].forward.seconds + each[part].backward.seconds for each in found[1:]) for part in PARTS
        }

    def _inputs(self, count: int) -> tuple[list[Batch], Labels, Recycled]:
        size = self.size
        sizes = size.residues, size.msa_rows, size.extra_rows, size.templates
        with self.device:
            samples = [random_batch(*sizes, self.device, method=self.config.method) for _ in range(count)]
            labels = random_labels(samples[0])
        return samples, labels, nothing_recycled(self.run, self.config, samples[0].seq_mask, size.dtype)

    def _carry_out(self, samples: list[Batch], labels: Labels, previous: Recycled) -> None:
        self.segments = self.forward
        self._begin("embedding")
        with torch.set_grad_enabled(self.learns):
            if self.step is not None:
                loss = self.step(self.model, self.run, samples[-1], self.size.dtype)
            elif self.learns:
                folded = self.model(self.run, samples[-1:], previous, self.size.dtype)
                loss = total_loss(folded, samples[-1], labels, self.loss).total.sum()
                del folded
            else:
                self._fold(samples, previous)
        self._end()
        if self.learns:
            self.segments = self.backward
            self._begin("heads")
            loss.backward()
            self._end()

    def _fold(self, samples: list[Batch], previous: Recycled) -> None:
        folded = self.model.fold(self.run, samples, previous, self.size.dtype)
        if self.predicts:
            self._begin("confidence")
            heads, pair = self.model.heads, folded.representations.pair
            if heads.aligned_error is not None:
                confidence.aligned_error(self.run, heads.aligned_error, pair, samples[0].seq_mask)
            confidence.expected_distances(self.run, heads.distogram, pair)

    def _begin(self, label: str) -> None:
        """End the current segment, if there is one, and begin another."""
        self._end()
        self.counter.begin(label)
        self.messages.clear()
        self.segments.append(_Segment(label, self.counter.live, work=self._work()))

    def _end(self) -> None:
        if not self.segments or self.segments[-1].end:
            return
        segment, counter = self.segments[-1], self.counter
        segment.peak, segment.end = counter.peak, max(counter.live, 1)
        work = self._work()
        work.add(segment.work, -1)
        segment.work = work

    def _work(self) -> Direction:
        """Return the work since the beginning, with the messages of this segment, after the device has finished it."""
        counter, seconds = self.counter, 0.0
        synchronize(self.device)
        if self.device.type != "meta":
            seconds = time.perf_counter()
        return Direction(
            products=counter.products,
            moved=counter.moved,
            launches=counter.launches,
            seconds=seconds,
            messages=self.messages.copy(),
        )

    def _passed(self, label: str, following: str, found: Stream) -> None:
        """Begin the segment `following` after `label`, whose result is `found`.

        In the backward pass, the segment `label` begins when the gradient of its result is complete.
        """
        part = found.part if isinstance(found, Shard) else found
        self.segments[-1].learns = isinstance(part, Tensor) and part.requires_grad
        if isinstance(part, Tensor) and part.requires_grad:
            part.register_hook(lambda _: self._begin(label))
        self._begin(following)

    def _further(self, part: str) -> int:
        """Return how many blocks the last one stands for."""
        stack = {"extra_msa": self.config.extra_msa, "evoformer": self.config.evoformer}.get(part)
        return max(0, stack.blocks - self.blocks) if stack else 0

    def _kept_by_block(self, part: str) -> int:
        """Return the bytes that the last block of a stack keeps for the backward pass, in all iterations."""
        blocks = [each for each in self.forward if each.label == f"{part} block"]
        return sum(each.end - each.start for each in blocks[self.blocks - 1 :: self.blocks] if each.learns)

    def _cost(self, part: str) -> PartCost:
        further, directions = self._further(part), []
        own = [each for each in self.forward if each.part == part]
        if not own:
            return PartCost()
        for segments in (own, [each for each in self.backward if each.part == part]):
            work = Direction(peak=max([0, *(each.peak - own[-1].end for each in segments)]))
            # The last block stands for further ones, since its input comes from a block. Backwards it comes first.
            order = reversed(segments) if segments is own else segments
            block = next((each for each in order if each.label != part), None)
            for each in segments:
                work.add(each.work, 1 + further if each is block else 1)
            directions.append(work)
        kept = own[-1].end - own[0].start + further * self._kept_by_block(part)
        return PartCost(kept=kept, forward=directions[0], backward=directions[1])
