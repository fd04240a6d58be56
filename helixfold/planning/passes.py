"""Count the memory and work of a pass through the network, by part of the network, on one rank of a layout.

A pass is run on meta tensors and counted for a device model, or run on the device and timed. On meta tensors, stacks
have two blocks, and each further block counts as much as the second one. This gives the numbers of the whole network to
the byte, in a fraction of the time. For measured times one block is enough. In this module `policy` is a recompute
policy (`RecomputeConfig`), or None for a pass without gradients. `PARTS` are the parts of the network, and `STAGES`
their names on the screen. `ALONE` is the layout of a single rank.
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
# Maximum size in bytes of freed blocks that a training pass on a CPU keeps for later tensors. Tensors as large as a
# stream have very different lifetimes; if their memory were kept, up to half of the memory would be unused.
KEPT_BLOCKS = 4 * 2**20
# Measured bytes that libraries on a CPU take: per thread in a training pass (buffers and freed blocks), per thread in a
# prediction (buffers for packed matrices), and in oneDNN for prepared products of a whole network in training.
_BYTES_PER_THREAD, _OF_THREAD_IN_PREDICTION, _PREPARED_PRODUCT_BYTES = 20 * 2**20, 6 * 2**20, 48 * 2**20
# Unused memory in a CPU's heap during a prediction, between blocks in use. With the executor "whole" it is a share of
# all tensors, which is larger with compiled loops. With slabs it is a multiple of the bytes of temporaries, but at most
# a share of all tensors. All values were measured; repeated measurements differ by up to a seventh.
_IDLE_SHARE_OF_WHOLE, _IDLE_FACTOR_OF_SLABS, _MAX_IDLE_SHARE = 0.65, 3.5, 0.5
_IDLE_SHARE_OF_WHOLE_IN_LOOPS = 1.0
# Layout of a single rank.
ALONE = Layout()
# The parts of the network in order; parts with a recompute policy have their name in `RecomputeConfig`.
PARTS = ("embedding", "template", "extra_msa", "evoformer", "structure", "heads")
# Names of the parts on the screen. In a prediction, the logits of the heads count as part of the structure.
STAGES = dict(zip(PARTS, ("embedding", "templates", "extra MSA", "Evoformer", "structure", "heads"), strict=True))
_STAGES_OF_PREDICTION = STAGES | {"heads": "structure", "confidence": "confidence"}
# Function that computes the loss of a design step from a network, its executor, an input and the trunk's dtype.
Step = Callable[[AlphaFold, Executor, Batch, torch.dtype], Tensor]


@dataclass(kw_only=True)
class Direction:
    """Memory and work of the forward or the backward pass of one part of the network.

    `peak` is the maximum bytes beyond the memory at the end of the part's forward pass. `products` (FLOP of matrix
    products), `moved` (bytes of tensors read and written) and `launches` (operators) are counted by `Counter`.
    `seconds` are measured, and 0 on meta tensors. `messages` has the kind and bytes of each collective.
    """

    peak: int = 0
    products: int = 0
    moved: int = 0
    launches: int = 0
    seconds: float = 0.0
    messages: list[Message] = field(default_factory=list)

    def add(self, other: "Direction", count: int = 1) -> None:
        """Add the work of another direction `count` times to this one, in place, without changing `peak`."""
        for name in ("products", "moved", "launches", "seconds", "messages"):
            setattr(self, name, getattr(self, name) + count * getattr(other, name))


@dataclass(kw_only=True)
class PartCost:
    """Memory and work of one part of the network; `kept` is the bytes that it saves for the backward pass."""

    kept: int = 0
    forward: Direction = field(default_factory=Direction)
    backward: Direction = field(default_factory=Direction)


Costs = Mapping[str, PartCost]


def library_memory(properties: DeviceProperties, config: ModelConfig, size: PassSize, *, predicts: bool = False) -> int:
    """Return the bytes that libraries on a CPU take besides tensors; 0 for a GPU.

    `predicts` is whether the pass is part of a prediction instead of training. Prepared products are not included.
    """
    if properties.kind != "cpu":
        return 0
    of_thread = _OF_THREAD_IN_PREDICTION if predicts else _BYTES_PER_THREAD
    return of_thread * torch.get_num_threads() + loops.numba_bytes(*streams(config, size))


def prepared_product_memory(properties: DeviceProperties) -> int:
    """Return the bytes that oneDNN takes for prepared matrix products of a whole network in training; 0 for a GPU."""
    return _PREPARED_PRODUCT_BYTES * (properties.kind == "cpu")


@cache
def part_costs(
    config: ModelConfig,
    size: PassSize,
    policy: Keep | None,
    properties: DeviceProperties,
    layout: Layout = ALONE,
    *,
    branch_rank: int = 0,
    plain: bool = False,
    trained: frozenset[str] | None = None,
) -> Costs:
    """Return the memory and operations of each part of the network on one rank, with the same policy for all parts.

    The numbers are for one sample. A part does not depend on the policies of other parts. If `policy` is None, there
    are no gradients, as in a recycling iteration before the last. `trained` names the parameters that have gradients.
    With `plain`, operators run their reference implementations, because matrix products inside kernels cannot be
    counted.
    """
    everywhere = None if policy is None else RecomputeConfig.everywhere(policy)
    with simulated_device(properties), forced("reference") if plain else nullcontext():
        make_tables(config, size.dtype, properties, learns=policy is not None)
        return Pass(config, size, everywhere, Mesh.simulated(layout, branch_rank), trained=trained).costs()


@cache
def prediction_memory(
    config: ModelConfig, size: PassSize, name: str, properties: DeviceProperties, slab_budget: int | None = None
) -> Memory:
    """Return the estimated memory of a recycling iteration after the first, with confidences, on the executor `name`.

    On a CPU, the memory of libraries and unused memory of the heap are included. `slab_budget` is the maximum bytes of
    a slab's temporaries (see `Slabs`).
    """
    # Without gradients, further iterations of the structure module add little more memory than their results.
    config = replace(config, structure=replace(config.structure, layers=min(2, config.structure.layers)))
    with simulated_device(properties):
        make_tables(config, torch.float32, properties, learns=False)
        within = executor(name, Path("/"), META, slab_budget)
        counted = Pass(config, size, None, Mesh.simulated(Layout(dap=size.ranks)), within=within)
        counted.costs()
    overhead = library_memory(properties, config, size, predicts=True)
    stages: dict[str, int] = {}
    for segment in counted.forward:
        stage = _STAGES_OF_PREDICTION[segment.part]
        idle = _idle(name, segment.peak, config, size) if properties.kind == "cpu" else 0
        stages[stage] = max(stages.get(stage, 0), segment.peak + idle + overhead)
    return Memory(stages=stages, spilled=counted.counter.peak_offloaded)


@cache
def step_peak(
    config: ModelConfig, size: PassSize, policy: RecomputeConfig, properties: DeviceProperties, step: Step
) -> int:
    """Return the peak bytes of tensors in a design step, forward and backward through a network that is not trained.

    `step` computes the loss. The memory of libraries is not included.
    """
    with simulated_device(properties):
        make_tables(config, size.dtype, properties, learns=True)
        counted = Pass(config, size, policy, Mesh.simulated(ALONE), trained=frozenset(), step=step)
        counted.costs()
    return counted.peak()


def make_tables(config: ModelConfig, dtype: torch.dtype, properties: DeviceProperties, *, learns: bool) -> None:
    """Run a tiny pass that creates the tables which stay in memory, so that later passes do not count them.

    `learns` is whether the later passes have gradients. Equal calls run the pass only once.
    """
    small = replace(of_blocks(config, 1), structure=replace(config.structure, layers=1))
    _make_tables(small, dtype, properties, learns)


@cache
def _make_tables(config: ModelConfig, dtype: torch.dtype, properties: DeviceProperties, learns: bool) -> None:
    tiny_size = PassSize(residues=1, msa_rows=1, extra_rows=1, templates=1, dtype=dtype)
    policy = RecomputeConfig.everywhere("none") if learns else None
    with simulated_device(properties):
        Pass(config, tiny_size, policy, Mesh.simulated(ALONE), within=None if learns else Whole()).costs()


def _idle(name: str, peak: int, config: ModelConfig, size: PassSize) -> int:
    """Return the bytes of unused memory in a CPU's heap for a prediction whose tensors take `peak` bytes."""
    if name == "whole":
        in_loops = loops.numba_bytes(*streams(config, size)) > 0
        return int((_IDLE_SHARE_OF_WHOLE_IN_LOOPS if in_loops else _IDLE_SHARE_OF_WHOLE) * peak)
    temporaries = MIN_ELEMENTS // size.ranks * size.dtype.itemsize
    return int(min(_MAX_IDLE_SHARE * peak, _IDLE_FACTOR_OF_SLABS * temporaries))


@dataclass
class _Segment:
    """Section of a pass, such as a block: live bytes at its start and end, their peak, and its work.

    `learns` is whether its result has a gradient; only then does it keep tensors for the backward pass.
    """

    label: str
    start: int
    peak: int = 0
    end: int = 0
    learns: bool = True
    work: Direction = field(default_factory=Direction)

    @property
    def part(self) -> str:
        """Return the part of the network that the section belongs to."""
        return self.label.split()[0]


class Pass:
    """One rank's share of a pass through a network with one or two blocks per stack, measured section by section.

    If `policy` is None, the pass has no gradients; otherwise it has the gradients of `loss` (by default the loss of
    initial training), or of the result of `step`. With an executor `within`, it is a pass of a prediction with
    confidences. On a real device, parameters have the same dtype as in a training run.
    """

    def __init__(
        self,
        config: ModelConfig,
        size: PassSize,
        policy: RecomputeConfig | None,
        mesh: Mesh,
        loss: LossConfig | None = None,
        *,
        trained: frozenset[str] | None = None,
        within: Whole | Slabs | None = None,
        step: Step | None = None,
    ) -> None:
        self.config, self.size, self.device = config, size, mesh.device
        self.loss, self.step = loss or initial_training(config.method), step
        self.learns, self.predicts = policy is not None, within is not None
        self.blocks = 2 if self.device.type == "meta" else 1
        with Counter(), self.device:  # faster with a counter, which does not run operators on meta tensors
            self.model = AlphaFold(replace(of_blocks(config, self.blocks), template=config.template))
            self.model.train(not self.predicts)
            if self.device.type != "meta":
                FlatOptimizer(self.model, OptimizerConfig(), working_dtype=size.dtype)
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_(self.learns and (trained is None or name in trained))
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        self.messages: list[Message] = []
        self.run = parallelize(self.model, mesh, policy, within, self.messages)
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
            lambda _, __, outputs: self._passed("structure", "heads", outputs.frames)
        )

    def costs(self) -> Costs:
        """Run the pass, with its backward pass if it has gradients, and return the memory and work of each part.

        Blocks that are not run count like the last one.
        """
        with self.counter:
            self._begin("embedding")
            inputs = self._inputs(self.size.ensemble if self.learns or self.predicts else 1)
            self._end()
            self.segments[-1].work = Direction()  # random inputs are not work of a run
            self._run(*inputs)
        return {part: self._cost(part) for part in PARTS}

    def peak(self) -> int:
        """Return the peak bytes of tensors in a pass that was run, including the blocks that were not run."""
        further = sum(self._further(part) * self._kept_by_block(part) for part in ("extra_msa", "evoformer"))
        return max(each.peak for each in (*self.forward, *self.backward)) + further

    def seconds(self, readings: int = 2) -> dict[str, float]:
        """Run several passes, and return the seconds of each part of the whole network, forward and backward.

        These are minima over `readings` passes, after a warm-up pass. Blocks that are not run count like the last one.
        """
        costs, inputs = [], self._inputs(1)
        for _ in range(readings + 1):
            self.forward.clear()
            self.backward.clear()
            self._run(*inputs)
            costs.append({part: self._cost(part) for part in PARTS})
        return {
            part: min(each[part].forward.seconds + each[part].backward.seconds for each in costs[1:]) for part in PARTS
        }

    def _inputs(self, count: int) -> tuple[list[Batch], Labels, Recycled]:
        size = self.size
        sizes = size.residues, size.msa_rows, size.extra_rows, size.templates
        with self.device:
            samples = [random_batch(*sizes, self.device, method=self.config.method) for _ in range(count)]
            labels = random_labels(samples[0])
        return samples, labels, nothing_recycled(self.run, self.config, samples[0].seq_mask, size.dtype)

    def _run(self, samples: list[Batch], labels: Labels, previous: Recycled) -> None:
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
        """End the current segment, if any, and begin another."""
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
        """Wait for the device, and return the work since the beginning, with the messages of this segment."""
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

    def _passed(self, label: str, following: str, result: Stream) -> None:
        """End the segment `label` with its result, and begin the segment `following`.

        In the backward pass, the segment `label` begins when the gradient of its result is complete.
        """
        part = result.part if isinstance(result, Shard) else result
        self.segments[-1].learns = isinstance(part, Tensor) and part.requires_grad
        if isinstance(part, Tensor) and part.requires_grad:
            part.register_hook(lambda _: self._begin(label))
        self._begin(following)

    def _further(self, part: str) -> int:
        """Return the number of blocks of a stack that are not run; the last block that is run represents them."""
        stack = {"extra_msa": self.config.extra_msa, "evoformer": self.config.evoformer}.get(part)
        return max(0, stack.blocks - self.blocks) if stack else 0

    def _kept_by_block(self, part: str) -> int:
        """Return the bytes that the last block of a stack saves for the backward pass, in all iterations."""
        blocks = [each for each in self.forward if each.label == f"{part} block"]
        return sum(each.end - each.start for each in blocks[self.blocks - 1 :: self.blocks] if each.learns)

    def _cost(self, part: str) -> PartCost:
        further, directions = self._further(part), []
        own = [each for each in self.forward if each.part == part]
        if not own:
            return PartCost()
        for segments in (own, [each for each in self.backward if each.part == part]):
            work = Direction(peak=max([0, *(each.peak - own[-1].end for each in segments)]))
            # The last block represents further ones, because its input comes from a block. Backwards it comes first.
            order = reversed(segments) if segments is own else segments
            block = next((each for each in order if each.label != part), None)
            for each in segments:
                work.add(each.work, 1 + further if each is block else 1)
            directions.append(work)
        saved = own[-1].end - own[0].start + further * self._kept_by_block(part)
        return PartCost(kept=saved, forward=directions[0], backward=directions[1])
