"""Estimate memory and time before a run, and choose the executor of a prediction or the recompute policy of a training.

`estimate(workload, device)` counts one pass of the workload (a recycling iteration of the network) for the device. A
`policy` is a recompute policy: "none", "operators", "inputs" or "block" for each part (`RecomputeConfig`). The field
`recompute` of a workload may also have "auto". `RECOMPUTED_PARTS` are the parts of the network with a policy.
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import overload

import numpy as np
import torch

from helixfold.execution.available import available_memory, free_disk
from helixfold.execution.graphs import MAX_GRAPHS
from helixfold.execution.iteration_runner import bucket_size
from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.execution.stages import mean_seconds
from helixfold.losses.config import LossConfig, initial_training
from helixfold.model.config import ConfigError, ModelConfig
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties, properties_of
from helixfold.parallel.mesh import Layout, layouts
from helixfold.planning.executors import EXECUTORS
from helixfold.planning.passes import (
    ALONE,
    PARTS,
    STAGES,
    Costs,
    Direction,
    Step,
    library_memory,
    part_costs,
    prediction_memory,
    prepared_product_memory,
    step_peak,
)
from helixfold.planning.size import Memory, PassSize, floor, gib

# Factor, not a share, by which available memory must exceed an estimate, because estimates have an error of up to a
# tenth.
RESERVE = 1.1
# Maximum length of a chain for which the executor "whole" is chosen on a CPU, and the maximum share of available memory
# that it may take there. It saves up to 7 % of the time of short chains; from 256 residues on, slabs take no longer.
# Because of the share, the choice rarely depends on the memory of other programs. A GPU, whose memory is rarely shared,
# computes whole streams wherever they fit, because every slab launches all kernels of an update again.
WHOLE_RESIDUES, WHOLE_SHARE = 256, 0.5
# Share of a GPU's remaining memory that the temporaries of slabs may take, and the maximum in bytes: it gives even the
# longest chains slabs of hundreds of rows, whose kernels take much longer than their launches.
_SLAB_SHARE, _MAX_SLAB_BYTES = 0.5, 8 * 2**30
# Maximum length of a chain whose memory is estimated for rounded sizes, on a GPU and on a CPU.
_MAX_ROUNDED_LENGTH, _SHORT_ON_CPU = 512, 128
# Lengths whose estimates define the curve of memory by residues, as multiples of the workload's length.
_LENGTH_FACTORS = (1, 2, 4)
# Maximum ratio of the next length to the longest one with an estimate, relative difference of lengths that count as
# near, and maximum number of estimates.
_MAX_LENGTH_RATIO, _NEAR_DIFFERENCE, _MAX_ESTIMATES = 8, 0.1, 9
# Share of the rate of a large matrix product that a whole pass reaches, and seconds to call an operator. Measured on a
# CPU (docs/explanation/performance.md); assumed for GPUs, near NVIDIA's share in MLPerf HPC (`planning.machines`).
_REACHED_SHARES = {("cpu", torch.float32): 1.0, ("cpu", torch.bfloat16): 0.4}
REACHED_BY_GPU, _CALL_SECONDS = 0.2, 1e-5
# Seconds per target for features, plots, the report and other files. Measured for short peptides on a CPU.
TARGET_SECONDS = 1.0
# Side of the matrices whose product is timed.
_MATRIX_SIDES = {"cpu": 1024}
_MATRIX_SIDE_ON_GPU = 4096
# Number of elements of the tensor whose copy is timed; it does not fit into a processor's caches.
_COPIED_ELEMENTS = 2**24
# Passes are counted for lengths that are multiples of this.
_COUNTED_LENGTH_UNIT = 32
# Parts of the network with a recompute policy; policies from the fastest to the one that needs the least memory; and
# the estimated share of the forward pass's products that each policy computes again. On a CPU, operators keep the
# results of about half of the products with "none", and of the update whose gradients are computed with "inputs".
RECOMPUTED_PARTS = tuple(each.name for each in fields(RecomputeConfig))
CHECKPOINT_POLICIES: tuple[Keep, ...] = ("none", "operators", "inputs", "block")
_RECOMPUTED_SHARES_ON_CPU: Mapping[Keep, float] = {"none": 0, "operators": 0.5, "inputs": 1, "block": 1.5}
_RECOMPUTED_SHARES: Mapping[Keep, float] = {"none": 0, "operators": 0, "inputs": 1, "block": 1}
# Number of floating-point operations that take as long as launching an operator, assumed for any device.
_OPERATIONS_OF_A_CALL = 10**6


class NotEnoughMemoryError(RuntimeError):
    """Error for a target that does not fit into memory; the text has the needed and available memory and remedies."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """Device for which a workload is estimated.

    `memory` is the bytes available on the device, and `spill` those for spilled streams, on disk or in the memory of a
    GPU's host. `rate` is the FLOP per second that a prediction reaches; None measures it on the local device.
    """

    properties: DeviceProperties
    memory: int
    spill: int = 0
    rate: float | None = None

    @classmethod
    def at_hand(cls, device: torch.device, directory: Path, memory: int | None = None) -> "Device":
        """Return the local device with the memory that is free now, or with `memory` bytes.

        On a CPU streams are spilled to `directory`, on a GPU to the host's memory. `spill` is the free space there.
        """
        free = available_memory(device) if memory is None else memory
        spill = free_disk(directory) if device.type == "cpu" else available_memory(torch.device("cpu"))
        return cls(properties=properties_of(device), memory=free, spill=spill)

    def step_seconds(self, work: "Training", policy: RecomputeConfig) -> "Seconds":
        """Return the time of a training step with a recompute policy; only the subclass `Machine` can.

        A plain `Device` raises `NotImplementedError`.
        """
        raise NotImplementedError("only a Machine has the speeds to estimate the time of a step")


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Workload of one or more predictions of one input size: all recycling iterations with an executor.

    If `executor` is None, the first of "whole", "slabs" and "spilled" that fits is chosen. `recycling_iterations` is
    the total for all predictions.
    """

    model: ModelConfig
    size: PassSize
    executor: str | None = None
    recycling_iterations: int = 1


@dataclass(frozen=True, kw_only=True)
class Training:
    """Workload of one step of training, fine-tuning or design.

    Each of the batch's `micro_batches` has `samples` samples, with on average `recycling_iterations` without gradients
    before the last one, which has gradients. `state` is the bytes of parameters, gradients and optimizer, and
    `parameters` the number of the network's parameters. `trained` names the parameters with gradients; None means all.
    `layout` divides a sample over ranks. "auto" in `recompute` is the fastest policy that fits into memory. Measured
    passes use the losses of `loss`; counted passes use the losses of initial training, and the terms between chains for
    complexes. A design has its own `step` instead of a loss, and its network is not trained.
    """

    model: ModelConfig
    size: PassSize
    samples: int = 1
    state: int = 0
    layout: Layout = ALONE
    recompute: RecomputeConfig = field(default_factory=RecomputeConfig)
    trained: frozenset[str] | None = None
    loss: LossConfig = field(default_factory=initial_training)
    step: Step | None = None
    micro_batches: int = 1
    recycling_iterations: float = 0.0
    parameters: int = 0
    gradient_itemsize: int = 4  # bytes of each gradient element in messages between ranks
    clips_samples: bool = False  # gradients of ranks that share a sample are averaged before each clipping

    @property
    def batch_size(self) -> int:
        """Return the number of samples of a step, on all ranks together."""
        return self.micro_batches * self.samples

    @property
    def policies(self) -> list[RecomputeConfig]:
        """Return the policies to compare: `recompute` with every "auto" replaced by the same checkpoint policy.

        They follow the order of `CHECKPOINT_POLICIES`, from the fastest to the one with the least memory. Without any
        "auto", only `recompute` itself is returned.
        """
        automatic = [name for name in RECOMPUTED_PARTS if getattr(self.recompute, name) == "auto"]
        return [
            replace(self.recompute, **dict.fromkeys(automatic, policy))
            for policy in (CHECKPOINT_POLICIES if automatic else CHECKPOINT_POLICIES[:1])
        ]

    def layouts(self, ranks: int) -> list[Layout]:
        """Return all possible layouts of exactly `ranks` ranks.

        Branch parallelism is possible only if the outer product is at the end of blocks.
        """
        model = self.model
        return layouts(ranks, branches=model.evoformer.outer_product == model.extra_msa.outer_product == "end")

    def costs(self, policy: Keep | None, properties: DeviceProperties, rank: int = 0, *, plain: bool = False) -> Costs:
        """Return the memory and operations of each part of the network, for one sample, on one rank.

        `rank` is the index in branch parallelism. All parts have the same checkpoint policy; None means a pass without
        gradients. With `plain`, operators run their reference implementations, because matrix products inside kernels
        cannot be counted.
        """
        # The work of a rank on a sample does not depend on the ranks of other samples.
        layout = replace(self.layout, dp=1)
        return part_costs(
            self.model, self.size, policy, properties, layout, branch_rank=rank, plain=plain, trained=self.trained
        )

    def memory(self, policy: RecomputeConfig, properties: DeviceProperties) -> Memory:
        """Return the memory of a forward and backward pass of one sample, on the rank that needs the most.

        Parameters and their gradients are not included. The bytes of a stage are the peak of its forward or backward
        pass, including what earlier stages keep. `size.ensemble` is the number of input samples in memory, one for each
        recycling iteration.
        """
        overhead = library_memory(properties, self.model, self.size) + prepared_product_memory(properties)
        if self.step is not None:
            return Memory(stages={"step": step_peak(self.model, self.size, policy, properties, self.step) + overhead})
        return max(
            (self._memory(policy, properties, rank, overhead) for rank in range(self.layout.bp)), key=lambda it: it.peak
        )

    def _memory(self, policy: RecomputeConfig, properties: DeviceProperties, rank: int, overhead: int) -> Memory:
        saved, stages = 0, {}
        costs = {part: self.costs(policy_of(policy, part), properties, rank)[part] for part in PARTS}
        if not costs["evoformer"].backward.launches:
            # Without gradients of the trunk, its backward products are not prepared: two thirds of all.
            overhead -= prepared_product_memory(properties) * 2 // 3
        for part, cost in costs.items():
            if part == "template" and not cost.kept + cost.forward.peak:
                continue
            saved += cost.kept
            stages[STAGES[part]] = saved + max(cost.forward.peak, cost.backward.peak) + overhead
        return Memory(stages=stages)


@dataclass(frozen=True, kw_only=True)
class PredictionEstimate:
    """Estimated memory and time of a prediction on a device with an executor.

    `work` is the workload, whose own executor may be None; `executor` is the one that is estimated. `slab_budget` is
    the maximum bytes of a slab's temporaries; None is a small share of the stream.
    """

    work: Prediction
    device: Device
    executor: str
    slab_budget: int | None = None

    @property
    def size(self) -> PassSize:
        """Return the workload's size of the network's input."""
        return self.work.size

    @property
    def memory(self) -> Memory:
        """Return the memory of a recycling iteration; for short chains, with sizes rounded up (`bucket_size`).

        An estimate takes as long as folding several short chains, and rounded sizes share it. Their memory is small.
        """
        size, properties = self.size, self.device.properties
        if size.residues <= (_MAX_ROUNDED_LENGTH if properties.has_own_memory else _SHORT_ON_CPU):
            size = replace(
                size,
                residues=bucket_size(size.residues),
                msa_rows=bucket_size(size.msa_rows),
                extra_rows=bucket_size(size.extra_rows),
            )
        return prediction_memory(self.work.model, size, self.executor, properties, self.slab_budget)

    @property
    def needed(self) -> int:
        """Return the bytes that must be available: the peak and a tenth of it, for the estimate's error."""
        return int(self.memory.peak * RESERVE)

    @property
    def fits(self) -> bool:
        """Return whether the peak with its reserve, and the spilled streams, fit into what the device has for them."""
        return self.memory.peak * RESERVE <= self.device.memory and self.memory.spilled <= self.device.spill

    @property
    def has_room_for_graphs(self) -> bool:
        """Return whether CUDA graphs fit as well: what each reads and returns, and their pool.

        The pool keeps the peak of an iteration, and nothing else can use it.
        """
        of_each = floor(self.work.model, self.size)
        return self.needed + self.memory.peak + MAX_GRAPHS * of_each <= self.device.memory

    @property
    def seconds(self) -> float:
        """Return the estimated seconds of all recycling iterations, with all ranks working together.

        Searches, features, relaxation and the writing of files are not included.
        """
        size, properties, rate, copies = self.size, self.device.properties, self.device.rate, math.inf
        counted = -(-size.residues // _COUNTED_LENGTH_UNIT) * _COUNTED_LENGTH_UNIT
        work = pass_work(self.work.model, replace(size, residues=counted, ensemble=1, ranks=1, dtype=torch.float32))
        if rate is None:
            reached = _REACHED_SHARES.get((properties.kind, size.dtype), REACHED_BY_GPU)
            rate = reached * _product_rate(
                torch.device("cuda" if properties.has_own_memory else properties.kind), size.dtype
            )
            if properties.kind == "cpu":  # for a GPU, the assumed share includes the time of memory traffic
                copies = _copy_rate()
        # Scale from the rounded length; the work grows at least with the square of the length.
        shorter = (size.residues / counted) ** 2 / size.ranks
        busy = shorter * (work.products / rate + work.moved / copies)
        return self.work.recycling_iterations * size.ensemble * (busy + _CALL_SECONDS * work.launches)

    @property
    def fallbacks(self) -> "Iterator[PredictionEstimate]":
        """Yield estimates to try when this one runs out of memory: with smaller slabs, then with the next executors.

        Smaller slabs are the default ones, and are only yielded if this estimate has a `slab_budget`.
        """
        names = EXECUTORS[EXECUTORS.index(self.executor) + (self.slab_budget is None) :]
        return (self.of(name) for name in names)

    def of(self, executor: str, **size: object) -> "PredictionEstimate":
        """Return the estimate with another executor, with default slabs, and with changed fields of `PassSize`."""
        work = replace(self.work, size=replace(self.size, **size))  # type: ignore[arg-type]
        return replace(self, work=work, executor=executor, slab_budget=None)

    @property
    def problem(self) -> str:
        """Return a sentence for the user with the needed and the available memory, and with changes that would fit."""
        smallest, free = min((self.of(name) for name in EXECUTORS), key=lambda each: each.memory.peak), self.device
        each = f", on each of {self.size.ranks} ranks" if self.size.ranks > 1 else ""
        needs = (
            f"{self.size.residues:,} residues need {gib(smallest.needed)} of memory (a tenth of reserve included{each})"
        )
        has = f"there are {gib(free.memory)}"
        if smallest.memory.spilled > free.spill:
            needs += f" and {gib(smallest.memory.spilled)} to spill to"
            has += f" and {gib(free.spill)}"
        return f"{needs}; {has}; what would fit: {', or '.join(self._remedies())}"

    def _remedies(self) -> Iterator[str]:
        short, slabs, spilled = {"dtype": torch.bfloat16}, self.of("slabs"), self.of("spilled")
        if self.size.dtype != torch.bfloat16 and self._has_room(**short):
            yield "--dtype bfloat16"
        for changes, option in (({}, ""), (short, "--dtype bfloat16 ")):
            halves = itertools.takewhile(bool, (self.size.extra_rows >> count for count in itertools.count(1)))
            if rows := next((rows for rows in halves if self._has_room(**changes, extra_rows=rows)), 0):
                yield f"{option}--max-extra-rows {rows}"
                break
        if residues := max_residues(self.work, self.device):
            yield f"at most {residues:,} residues"
        if spilled.memory.spilled <= self.device.spill:
            yield f"{gib(spilled.needed)} of memory"
        else:
            yield f"{gib(slabs.needed)} of memory"
            fits = spilled.memory.peak * RESERVE <= self.device.memory
            memory = "" if fits else f"{gib(spilled.needed)} of memory and "
            yield f"{memory}{gib(spilled.memory.spilled)} to spill to"

    def _has_room(self, **size: object) -> bool:
        return any(self.of(name, **size).fits for name in EXECUTORS)


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Seconds of a training step, or of a part of it, by purpose; `total` is their sum."""

    passes: float = 0.0  # computation of forward and backward passes
    messages: float = 0.0  # messages between ranks that share a sample
    gradients: float = 0.0  # sum of gradients over ranks, where it does not overlap with computation
    optimizer: float = 0.0

    @property
    def total(self) -> float:
        """Return the sum of all fields in seconds."""
        return sum(vars(self).values())

    def plus(self, other: "Seconds", times: float = 1.0) -> "Seconds":
        """Return these seconds plus `times` times the other seconds."""
        return Seconds(**{name: value + times * getattr(other, name) for name, value in vars(self).items()})

    @property
    def most(self) -> str:
        """Return the name of the field with the most seconds, such as "messages"."""
        return max(vars(self), key=lambda name: getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class TrainingEstimate:
    """Estimated memory and time of a training step on a device with a recompute policy.

    `policy` is the policy that is estimated; it has no "auto", unlike `work.recompute`.
    """

    work: Training
    device: Device
    policy: RecomputeConfig

    @property
    def memory(self) -> Memory:
        """Return the memory of a forward and backward pass of one sample."""
        return self.work.memory(self.policy, self.device.properties)

    @property
    def peak(self) -> int:
        """Return the peak memory of a rank in bytes, including parameters and optimizer."""
        return self.work.state + self.work.samples * self.memory.peak

    @property
    def needed(self) -> int:
        """Return the bytes that must be available: the peak and a tenth of it, for the estimate's error.

        The tenth is not added for parameters, gradients and optimizer, which are known exactly.
        """
        return self.work.state + int(RESERVE * self.work.samples * self.memory.peak)

    @property
    def fits(self) -> bool:
        """Return whether the needed memory is at most the device's memory."""
        return self.needed <= self.device.memory

    @cached_property
    def seconds(self) -> Seconds:
        """Return the time of a step; the device must be a `Machine`."""
        return self.device.step_seconds(self.work, self.policy)

    @property
    def samples_per_second(self) -> float:
        """Return the number of samples per second, on all ranks together."""
        return self.work.batch_size / self.seconds.total

    @property
    def rank_seconds(self) -> float:
        """Return the rank-seconds per sample: the number of ranks times the seconds per sample."""
        return self.work.layout.ranks / self.samples_per_second

    @property
    def idle(self) -> int:
        """Return the number of ranks without a sample, because the batch has too few micro-batches for all of them."""
        return max(0, self.work.layout.dp - self.work.micro_batches) * self.work.layout.sharing

    @property
    def again(self) -> tuple[float, int]:
        """Return a key to compare policies: first the cost of recomputation, then the bytes of needed memory.

        The cost is the floating-point operations that are computed again, plus 10^6 for each operator launched again.
        """
        work, properties = replace(self.work, layout=ALONE), self.device.properties
        once = work.costs("none", properties, plain=True)
        shares = _RECOMPUTED_SHARES_ON_CPU if properties.kind == "cpu" else _RECOMPUTED_SHARES
        launches = {policy: work.costs(policy, properties) for policy in CHECKPOINT_POLICIES}
        again = 0.0
        for part in RECOMPUTED_PARTS:
            if (own := getattr(self.policy, part)) != "none":
                more = launches[own][part].backward.launches - launches["none"][part].backward.launches
                again += shares[own] * once[part].forward.products + _OPERATIONS_OF_A_CALL * more
        return again, self.needed

    def settled(self) -> RecomputeConfig:
        """Return the policy.

        Raise `ConfigError` with remedies if it was chosen automatically and does not fit. A policy that the user chose
        is returned even if it does not fit.
        """
        if not self.fits and not self.work.recompute.is_settled:
            raise ConfigError(self.problem)
        return self.policy

    @property
    def problem(self) -> str:
        """Return a sentence for the user with the needed and the available memory, and with changes that would fit."""
        work, size, memory = self.work, self.work.size, gib(self.device.memory)
        needed, remedies = min(each.needed for each in _settlements(work, self.device)), []
        short = replace(work, size=replace(size, dtype=torch.bfloat16))
        if size.dtype != torch.bfloat16 and any(each.fits for each in _settlements(short, self.device)):
            remedies.append("dtype=bfloat16")
        for name, option in (("extra_rows", "example.sampling.max_extra_msa"), ("residues", "example.crop_size")):
            if getattr(size, name) > 1 and (maximum := self._max_size(name)):
                remedies.append(f"{option}={maximum}")
        remedies.append(f"{gib(needed)} of memory")
        return (
            f"a training pass of {size.residues} residues needs {gib(needed)} whatever is recomputed, and there are "
            f"{memory}; what would fit: {', or '.join(remedies)}"
        )

    def _max_size(self, name: str) -> int:
        """Return the approximate maximum of a field of the size that fits, all else being equal; 0 if nothing fits."""
        # The policy with the least memory for the whole size nearly has it for smaller sizes. To count all takes long.
        smallest = min(_settlements(self.work, self.device), key=lambda each: each.needed)
        fits, too_large = 0, getattr(self.work.size, name)
        while too_large - fits > max(1, fits // 8):
            middle = (fits + too_large) // 2
            work = replace(self.work, size=replace(self.work.size, **{name: middle}))
            if replace(smallest, work=work).fits:
                fits = middle
            else:
                too_large = middle
        return fits


@overload
def estimate(workload: Prediction, device: Device) -> PredictionEstimate: ...
@overload
def estimate(workload: Training, device: Device) -> TrainingEstimate: ...
def estimate(workload: Prediction | Training, device: Device) -> PredictionEstimate | TrainingEstimate:
    """Estimate the memory and time of a workload on a device, and choose its executor or recompute policy.

    For a prediction without an executor, the first one that fits is chosen; slabs on a GPU are as large as the
    remaining memory allows. For a training with "auto" in `recompute`, the policy that fits and recomputes the least is
    chosen, then the one with the least memory. If nothing fits, the choice that needs the least memory is estimated,
    and `fits` is False.
    """
    if isinstance(workload, Prediction):
        return _prediction(workload, device)
    estimates = _settlements(workload, device)
    if workload.recompute.is_settled:
        return next(estimates)
    fitting = min((each for each in estimates if each.fits), key=lambda each: each.again, default=None)
    return fitting or min(_settlements(workload, device), key=lambda each: each.needed)


def _prediction(work: Prediction, device: Device) -> PredictionEstimate:
    names = EXECUTORS if work.executor is None else (work.executor,)
    estimates = (PredictionEstimate(work=work, device=device, executor=name) for name in names)
    small = next((each for each in estimates if work.executor is not None or _is_suitable(each)), None)
    small = small or PredictionEstimate(work=work, device=device, executor=EXECUTORS[-1])
    if small.executor == "whole" or not device.properties.has_own_memory:
        return small
    # Half of the remaining memory, as a power of 2, so that estimates for nearly the same memory are cached.
    budget = min(_MAX_SLAB_BYTES, int(_SLAB_SHARE * (device.memory - small.needed)))
    large = replace(small, slab_budget=1 << budget.bit_length() - 1) if budget > 0 else small
    return large if large.fits else small


def _is_suitable(plan: PredictionEstimate) -> bool:
    if plan.executor != "whole" or plan.device.properties.has_own_memory:
        return plan.fits
    is_short = plan.size.residues <= WHOLE_RESIDUES
    return is_short and plan.fits and plan.memory.peak <= WHOLE_SHARE * plan.device.memory


def _settlements(work: Training, device: Device) -> Iterator[TrainingEstimate]:
    """Yield the estimates with every combination of policies for the parts that are "auto"."""
    choices = [
        CHECKPOINT_POLICIES if (choice := getattr(work.recompute, part)) == "auto" else (choice,)
        for part in RECOMPUTED_PARTS
    ]
    for combination in itertools.product(*choices):
        policy = RecomputeConfig(**dict(zip(RECOMPUTED_PARTS, combination, strict=True)))
        yield TrainingEstimate(work=work, device=device, policy=policy)


def policy_of(policy: RecomputeConfig | None, part: str) -> Keep | None:
    """Return the recompute policy of one part of the network; None if `policy` is None (a pass without gradients).

    It is "none" for parts without a setting ("embedding", "heads").
    """
    return None if policy is None else getattr(policy, part, "none")


def max_residues(work: Prediction, device: Device, executors: Sequence[str] = EXECUTORS[1:]) -> int:
    """Return the number of residues of the longest chain that fits with one of the executors, all else being equal.

    It is 0 if nothing fits. It is approximate: it is read from a quadratic curve through the estimates for the three
    nearest lengths. Slabs take a different share of the memory for long and short chains, so estimates are added until
    one is near the result.
    """
    return max(_max_residues(work, device, name) for name in executors)


def _max_residues(work: Prediction, device: Device, executor: str) -> int:
    memories: dict[int, tuple[float, int]] = {}  # peak and spilled bytes by length
    lengths = [max(16, work.size.residues) * step for step in _LENGTH_FACTORS]
    while True:
        for length in lengths:
            # All arguments are passed, as in `PredictionEstimate.memory`, so that both share the cache.
            memory = prediction_memory(
                work.model, replace(work.size, residues=length), executor, device.properties, None
            )
            memories[length] = RESERVE * memory.peak, memory.spilled
        nearest = sorted(memories, key=lambda length: abs(math.log(length / lengths[-1])))[:3]
        curves = np.polyfit(nearest, [memories[length] for length in nearest], 2)

        def is_too_long(residues: int, curves: np.ndarray = curves) -> bool:
            return bool((np.polyval(curves, residues) > (device.memory, device.spill)).any())

        longest = bisect_left(range(1, _MAX_LENGTH_RATIO * max(memories)), x=True, key=is_too_long)
        is_last = len(memories) == _MAX_ESTIMATES
        if not longest or is_last or any(abs(longest / length - 1) < _NEAR_DIFFERENCE for length in memories):
            return longest
        lengths = [longest]


def fit_together(plans: Sequence[PredictionEstimate]) -> bool:
    """Return whether targets with these estimates fit into memory as one batch, on the executor "whole".

    It is False if another executor was chosen for any of them. All are padded to the largest sizes.
    """
    names = ("residues", "msa_rows", "extra_rows", "templates")
    padded = {name: max(getattr(each.size, name) for each in plans) for name in names}
    # A target in a batch takes at most as much memory as alone.
    return all(each.executor == "whole" for each in plans) and (
        len(plans) * RESERVE * plans[0].of("whole", **padded).memory.peak <= plans[0].device.memory
    )


@cache
def pass_work(config: ModelConfig, size: PassSize) -> Direction:
    """Return the work of one pass of the whole network without gradients, counted for a CPU with plain operators.

    This is the FLOP of matrix products, the bytes moved, and the number of operators.
    """
    work = Direction()
    for cost in part_costs(config, size, None, DEVICE_MODELS["cpu"], plain=True).values():
        work.add(cost.forward)
    return work


@cache
def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Measure the FLOP per second of a large matrix product, in a fraction of a second."""
    side = _MATRIX_SIDES.get(device.type, _MATRIX_SIDE_ON_GPU)
    left = torch.ones(side, side, dtype=dtype, device=device)
    left @ left
    return float(2 * side**3 / mean_seconds(lambda: left @ left, 3, device))


@cache
def _copy_rate() -> float:
    """Measure the bytes per second that a CPU reads and writes in a copy, in a fraction of a second."""
    source, target = torch.ones(_COPIED_ELEMENTS), torch.empty(_COPIED_ELEMENTS)
    target.copy_(source)
    return float(2 * source.nbytes / mean_seconds(lambda: target.copy_(source), 3))
