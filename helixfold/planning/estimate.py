"""Estimates of memory and time before a run, and what is chosen by them: the executor, or what is recomputed.

`estimate(workload, device)` counts a pass of the workload for the device. A pass is one recycling iteration of the
network. In this module a `keep` is a recompute policy, "none", "operators", "inputs" or "block" for each part
(`RecomputeConfig`); in `recompute` a choice may also be "auto".
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
    beside_tensors,
    part_costs,
    prediction_memory,
    prepared_products,
    step_peak,
)
from helixfold.planning.size import Memory, PassSize, gib

# Factor by which available memory must exceed an estimate: estimates are right within a tenth.
RESERVE = 1.1
# Most residues of a chain for which the executor "whole" is chosen on a CPU, and the share of available memory that it
# may take there. It saves up to 7 % of the time of short chains; from 256 residues on slabs take no longer. Because of
# the share, the choice hardly ever depends on other programs' memory. A GPU, whose memory other programs seldom share,
# computes whole streams wherever they fit: every slab launches all kernels of an update again.
WHOLE_RESIDUES, WHOLE_SHARE = 256, 0.5
# Of a GPU's memory that slabs leave free, the share that their temporaries may take, and the most bytes of these: with
# more, even the longest chains have slabs of hundreds of rows, whose kernels take much longer than their launches.
_SLAB_SHARE, _MOST_OF_SLABS = 0.5, 8 * 2**30
# Most residues of a chain whose memory is estimated for rounded sizes, on a GPU and on a CPU.
_SHORT, _SHORT_ON_CPU = 512, 128
# Lengths whose estimates define the curve of memory by residues, as multiples of the given length.
_STEPS = (1, 2, 4)
# How many times as long as the longest chain with an estimate the next one may be, the share by which a length may
# differ from one that is near it, and the most estimates.
_FARTHEST, _NEAR, _MOST_ESTIMATES = 8, 0.1, 9
# Share of the rate of a large matrix product that a whole pass reaches (docs/explanation/performance.md has the
# measurements on a CPU; for GPUs it is assumed, near NVIDIA's share in MLPerf HPC, see `planning.machines`), and
# seconds to call an operator.
_REACHED = {("cpu", torch.float32): 1.0, ("cpu", torch.bfloat16): 0.4}
REACHED_BY_GPU, _CALL = 0.2, 1e-5
# Side of the matrices whose product is timed.
_SIDES = {"cpu": 1024}
_SIDE_OF_GPU = 4096
# Elements of a tensor whose copy is timed: more than a processor's caches hold.
_COPIED = 2**24
# Passes are counted for lengths that are multiples of this.
_STEP = 32
# Policies from the fastest to the one with the least memory, for each part that has one, and the share of the forward
# pass's products that each computes again, by estimate: on a CPU about half of them are of results that operators keep
# with "none", and in the one update whose gradients are computed with "inputs".
CHOICES = tuple(each.name for each in fields(RecomputeConfig))
CHECKPOINT_POLICIES: tuple[Keep, ...] = ("none", "operators", "inputs", "block")
_AGAIN_ON_CPU: Mapping[Keep, float] = {"none": 0, "operators": 0.5, "inputs": 1, "block": 1.5}
_AGAIN: Mapping[Keep, float] = {"none": 0, "operators": 0, "inputs": 1, "block": 1}
# Floating-point operations in the time of launching an operator that computes next to nothing, taken for any device.
_OPERATIONS_OF_A_CALL = 10**6


class NotEnoughMemoryError(RuntimeError):
    """Error for a target that does not fit into memory; the text has needed and available memory, and remedies."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device by its properties, with the memory in bytes that is available for a pass: its own, and that of the disk
    or the GPU's host for spilled streams.

    `rate` is the FLOP per second that a prediction reaches; None: as measured on the device of this kind at hand.
    """

    properties: DeviceProperties
    memory: int
    spill: int = 0
    rate: float | None = None

    @classmethod
    def at_hand(cls, device: torch.device, directory: Path, memory: int | None = None) -> "Device":
        """Return a device with the memory that is available now, or with `memory` if given.

        On a CPU streams are spilled to `directory`, on a GPU to the host's memory.
        """
        free = available_memory(device) if memory is None else memory
        spill = free_disk(directory) if device.type == "cpu" else available_memory(torch.device("cpu"))
        return cls(properties=properties_of(device), memory=free, spill=spill)

    def step_seconds(self, work: "Training", keep: RecomputeConfig) -> "Seconds":
        """Return the time of a training step with a recompute policy."""
        raise NotImplementedError("only a `Machine` has the speeds from which the time of a step follows")


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Workload: the passes of a prediction, with an executor, or with the first of whole, slabs and spilled that fits.

    `passes` is the number of recycling iterations of all predictions together.
    """

    model: ModelConfig
    size: PassSize
    executor: str | None = None
    passes: int = 1


@dataclass(frozen=True, kw_only=True)
class Training:
    """Workload: one step of a training, fine-tuning or design.

    Each of the batch's `micro_batches` has `samples` samples, with on average `recycling_iterations` without gradients
    before the last one, which has gradients. `state` is the bytes of parameters, gradients and optimizer, and
    `parameters` the number of the network's parameters. Only parameters that `trained` names have gradients, all if it
    is None. `layout` divides a sample over ranks. An "auto" in `recompute` stands for the fastest policy that fits into
    memory. Measured passes have the losses of `loss`; what is only counted has those of initial training, for complexes
    with the terms between chains. A design has a `step` of its own instead, through a network that is not trained.
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
        """Return the recompute policies with every "auto" replaced by the same value."""
        automatic = [name for name in CHOICES if getattr(self.recompute, name) == "auto"]
        return [
            replace(self.recompute, **dict.fromkeys(automatic, keep))
            for keep in (CHECKPOINT_POLICIES if automatic else CHECKPOINT_POLICIES[:1])
        ]

    def layouts(self, ranks: int) -> list[Layout]:
        """Return all layouts of a number of ranks.

        Branch parallelism is among them only if the outer product is at the end of blocks.
        """
        model = self.model
        return layouts(ranks, branches=model.evoformer.outer_product == model.extra_msa.outer_product == "end")

    def costs(self, keep: Keep | None, properties: DeviceProperties, rank: int = 0, *, plain: bool = False) -> Costs:
        """Return the memory and work of each part on a rank of the branches, with the same policy for all parts."""
        # The work of a rank on a sample does not depend on the ranks of other samples.
        layout = replace(self.layout, dp=1)
        return part_costs(
            self.model, self.size, keep, properties, layout, branch_rank=rank, plain=plain, trained=self.trained
        )

    def memory(self, keep: RecomputeConfig, properties: DeviceProperties) -> Memory:
        """Return the memory of a pass of one sample, forward and backward, on the rank of the layout that takes most.

        Bytes are those beyond parameters and their gradients. Those of a stage are the peak of its forward or backward
        pass, with everything that earlier stages keep. `size.ensemble` is the number of input samples in memory, one
        for each recycling iteration.
        """
        beside = beside_tensors(properties, self.model, self.size) + prepared_products(properties)
        if self.step is not None:
            return Memory(stages={"step": step_peak(self.model, self.size, keep, properties, self.step) + beside})
        return max(
            (self._memory(keep, properties, rank, beside) for rank in range(self.layout.bp)), key=lambda it: it.peak
        )

    def _memory(self, keep: RecomputeConfig, properties: DeviceProperties, rank: int, beside: int) -> Memory:
        held, stages = 0, {}
        costs = {part: self.costs(keep_of(keep, part), properties, rank)[part] for part in PARTS}
        if not costs["evoformer"].backward.launches:
            # Without gradients of the trunk there are no products for those of its inputs and of its parameters.
            beside -= prepared_products(properties) * 2 // 3
        for part, cost in costs.items():
            if part == "template" and not cost.kept + cost.forward.peak:
                continue
            held += cost.kept
            stages[STAGES[part]] = held + max(cost.forward.peak, cost.backward.peak) + beside
        return Memory(stages=stages)


@dataclass(frozen=True, kw_only=True)
class PredictionEstimate:
    """Estimate of a prediction on a device with an executor.

    `slab_budget` is the bytes that temporaries of a slab may take; None is a small share of the stream.
    """

    work: Prediction
    device: Device
    executor: str
    slab_budget: int | None = None

    @property
    def size(self) -> PassSize:
        return self.work.size

    @property
    def memory(self) -> Memory:
        """Return the memory of a pass; for short chains, of one of rounded sizes (`bucket_size`).

        A GPU folds many of them in the time of an estimate, and a CPU some; either has memory enough for all.
        """
        size, properties = self.size, self.device.properties
        if size.residues <= (_SHORT if properties.has_own_memory else _SHORT_ON_CPU):
            size = replace(
                size,
                residues=bucket_size(size.residues),
                msa_rows=bucket_size(size.msa_rows),
                extra_rows=bucket_size(size.extra_rows),
            )
        return prediction_memory(self.work.model, size, self.executor, properties, self.slab_budget)

    @property
    def needed(self) -> int:
        """Return the bytes that must be available: the peak with a reserve for the estimate's error."""
        return int(self.memory.peak * RESERVE)

    @property
    def fits(self) -> bool:
        return self.memory.peak * RESERVE <= self.device.memory and self.memory.spilled <= self.device.spill

    @property
    def seconds(self) -> float:
        """Return about how many seconds the passes take, all ranks together.

        Searches, the making of features, relaxation and writing are not included.
        """
        size, properties, rate, copies = self.size, self.device.properties, self.device.rate, math.inf
        counted = -(-size.residues // _STEP) * _STEP
        work = pass_work(self.work.model, replace(size, residues=counted, ensemble=1, ranks=1, dtype=torch.float32))
        if rate is None:
            reached = _REACHED.get((properties.kind, size.dtype), REACHED_BY_GPU)
            rate = reached * _product_rate(
                torch.device("cuda" if properties.has_own_memory else properties.kind), size.dtype
            )
            if properties.kind == "cpu":  # the share that a GPU reaches includes what waits for its memory
                copies = _copy_rate()
        # The work grows with the square of the length, and faster where triangles dominate.
        shorter = (size.residues / counted) ** 2 / size.ranks
        busy = shorter * (work.products / rate + work.moved / copies)
        return self.work.passes * size.ensemble * (busy + _CALL * work.launches)

    @property
    def fallbacks(self) -> "Iterator[PredictionEstimate]":
        """Yield what to try when this one runs out of memory: smaller slabs, then the next executors."""
        names = EXECUTORS[EXECUTORS.index(self.executor) + (self.slab_budget is None) :]
        return (self.of(name) for name in names)

    def of(self, executor: str, **size: object) -> "PredictionEstimate":
        """Return the estimate with another executor, with small slabs, and with other sizes."""
        work = replace(self.work, size=replace(self.size, **size))  # type: ignore[arg-type]
        return replace(self, work=work, executor=executor, slab_budget=None)

    @property
    def problem(self) -> str:
        """Return a sentence for the user with the needed and the available memory, and with changes that would fit."""
        least, free = min((self.of(name) for name in EXECUTORS), key=lambda each: each.memory.peak), self.device
        each = f", on each of {self.size.ranks} ranks" if self.size.ranks > 1 else ""
        needs = (
            f"{self.size.residues:,} residues need {gib(least.needed)} of memory (a tenth of reserve included{each})"
        )
        has = f"there are {gib(free.memory)}"
        if least.memory.spilled > free.spill:
            needs += f" and {gib(least.memory.spilled)} to spill to"
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
    """Time of a step in seconds by what it is spent on; the time of the step is the sum."""

    passes: float = 0.0  # computation of forward and backward passes
    messages: float = 0.0  # messages between ranks that share a sample
    gradients: float = 0.0  # summing gradients over ranks, as far as it does not overlap with computation
    optimizer: float = 0.0

    @property
    def total(self) -> float:
        """Return the time of the step in seconds."""
        return sum(vars(self).values())

    def plus(self, other: "Seconds", times: float = 1.0) -> "Seconds":
        """Return the sum of these times and `times` times the others."""
        return Seconds(**{name: value + times * getattr(other, name) for name, value in vars(self).items()})

    @property
    def most(self) -> str:
        """Return the name of the field with the most seconds."""
        return max(vars(self), key=lambda name: getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class TrainingEstimate:
    """Estimate of a training step on a device with a recompute policy."""

    work: Training
    device: Device
    keep: RecomputeConfig

    @property
    def memory(self) -> Memory:
        """Return the memory of a pass of one sample."""
        return self.work.memory(self.keep, self.device.properties)

    @property
    def peak(self) -> int:
        """Return the bytes of a rank at the peak, with parameters and optimizer."""
        return self.work.state + self.work.samples * self.memory.peak

    @property
    def needed(self) -> int:
        """Return the bytes that must be available: the peak with a reserve for the estimate's error."""
        return self.work.state + int(RESERVE * self.work.samples * self.memory.peak)

    @property
    def fits(self) -> bool:
        return self.needed <= self.device.memory

    @cached_property
    def seconds(self) -> Seconds:
        """Return the time of a step; the device must be a `Machine`."""
        return self.device.step_seconds(self.work, self.keep)

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
        """Return the number of ranks without a sample."""
        return max(0, self.work.layout.dp - self.work.micro_batches) * self.work.layout.sharing

    @property
    def again(self) -> tuple[float, int]:
        """Return what is computed again in a step, as floating-point operations; of equals, less memory is better."""
        work, properties = replace(self.work, layout=ALONE), self.device.properties
        once, shares = work.costs("none", properties, plain=True), _AGAIN_ON_CPU if properties.kind == "cpu" else _AGAIN
        launches = {keep: work.costs(keep, properties) for keep in CHECKPOINT_POLICIES}
        again = 0.0
        for part in CHOICES:
            if (chosen := getattr(self.keep, part)) != "none":
                more = launches[chosen][part].backward.launches - launches["none"][part].backward.launches
                again += shares[chosen] * once[part].forward.products + _OPERATIONS_OF_A_CALL * more
        return again, self.needed

    def settled(self) -> RecomputeConfig:
        """Return the policy; raise `ConfigError` if none fits, with what would fit. A policy that was named may not."""
        if not self.fits and not self.work.recompute.is_settled:
            raise ConfigError(self.problem)
        return self.keep

    @property
    def problem(self) -> str:
        """Return a sentence for the user with the needed and the available memory, and with changes that would fit."""
        work, size, memory = self.work, self.work.size, gib(self.device.memory)
        least, remedies = min(each.needed for each in _settlements(work, self.device)), []
        short = replace(work, size=replace(size, dtype=torch.bfloat16))
        if size.dtype != torch.bfloat16 and any(each.fits for each in _settlements(short, self.device)):
            remedies.append("dtype=bfloat16")
        for name, option in (("extra_rows", "example.sampling.max_extra_msa"), ("residues", "example.crop_size")):
            if getattr(size, name) > 1 and (most := self._most(name)):
                remedies.append(f"{option}={most}")
        remedies.append(f"{gib(least)} of memory")
        return (
            f"a training pass of {size.residues} residues needs {gib(least)} whatever is recomputed, and there are "
            f"{memory}; what would fit: {', or '.join(remedies)}"
        )

    def _most(self, name: str) -> int:
        """Return about the most that a field of the size may be to fit, all else being equal; 0 if nothing fits."""
        # The least for the whole size is nearly so for parts of it, and others take long to count.
        found = min(_settlements(self.work, self.device), key=lambda each: each.needed)
        fits, too_large = 0, getattr(self.work.size, name)
        while too_large - fits > max(1, fits // 8):
            middle = (fits + too_large) // 2
            work = replace(self.work, size=replace(self.work.size, **{name: middle}))
            if replace(found, work=work).fits:
                fits = middle
            else:
                too_large = middle
        return fits


@overload
def estimate(workload: Prediction, device: Device) -> PredictionEstimate: ...
@overload
def estimate(workload: Training, device: Device) -> TrainingEstimate: ...
def estimate(workload: Prediction | Training, device: Device) -> PredictionEstimate | TrainingEstimate:
    """Return the memory and time of a workload on a device, and choose what the workload leaves open.

    For a prediction that is the first executor that fits; slabs on a GPU are as large as the memory that is left
    allows. For a training it is the recompute policy that fits and computes the least again, of equals the one that
    needs the least memory. If nothing fits, what needs the least is estimated, and the result's `fits` is False.
    """
    if isinstance(workload, Prediction):
        return _prediction(workload, device)
    found = _settlements(workload, device)
    if workload.recompute.is_settled:
        return next(found)
    fitting = min((each for each in found if each.fits), key=lambda each: each.again, default=None)
    return fitting or min(_settlements(workload, device), key=lambda each: each.needed)


def _prediction(work: Prediction, device: Device) -> PredictionEstimate:
    names = EXECUTORS if work.executor is None else (work.executor,)
    found = (PredictionEstimate(work=work, device=device, executor=name) for name in names)
    small = next((each for each in found if work.executor is not None or _is_chosen(each)), None)
    small = small or PredictionEstimate(work=work, device=device, executor=EXECUTORS[-1])
    if small.executor == "whole" or not device.properties.has_own_memory:
        return small
    # Half of the memory that is left, as a power of 2: estimates for nearly the same memory are then made once.
    budget = min(_MOST_OF_SLABS, int(_SLAB_SHARE * (device.memory - small.needed)))
    large = replace(small, slab_budget=1 << budget.bit_length() - 1) if budget > 0 else small
    return large if large.fits else small


def _is_chosen(found: PredictionEstimate) -> bool:
    if found.executor != "whole" or found.device.properties.has_own_memory:
        return found.fits
    is_short = found.size.residues <= WHOLE_RESIDUES
    return is_short and found.fits and found.memory.peak <= WHOLE_SHARE * found.device.memory


def _settlements(work: Training, device: Device) -> Iterator[TrainingEstimate]:
    asked = work.recompute
    choices = [CHECKPOINT_POLICIES if (given := getattr(asked, part)) == "auto" else (given,) for part in CHOICES]
    for chosen in itertools.product(*choices):
        yield TrainingEstimate(
            work=work, device=device, keep=RecomputeConfig(**dict(zip(CHOICES, chosen, strict=True)))
        )


def keep_of(keep: RecomputeConfig | None, part: str) -> Keep | None:
    """Return the policy for one part; parts without a setting ("embedding", "heads") recompute nothing."""
    return None if keep is None else getattr(keep, part, "none")


def max_residues(work: Prediction, device: Device, executors: Sequence[str] = EXECUTORS[1:]) -> int:
    """Return the number of residues of the longest chain that fits with one of the executors, all else being equal.

    It is read from quadratic curves through the memory for the three nearest lengths. Slabs take another share of the
    memory of long chains than of short ones, so lengths are added until one is near.
    """
    return max(_max_residues(work, device, name) for name in executors)


def _max_residues(work: Prediction, device: Device, executor: str) -> int:
    found: dict[int, tuple[float, int]] = {}
    lengths = [max(16, work.size.residues) * step for step in _STEPS]
    while True:
        for length in lengths:
            # With all arguments, as in `PredictionEstimate.memory`: what is counted there is not counted again.
            memory = prediction_memory(
                work.model, replace(work.size, residues=length), executor, device.properties, None
            )
            found[length] = RESERVE * memory.peak, memory.spilled
        nearest = sorted(found, key=lambda length: abs(math.log(length / lengths[-1])))[:3]
        curves = np.polyfit(nearest, [found[length] for length in nearest], 2)

        def is_too_long(residues: int, curves: np.ndarray = curves) -> bool:
            return bool((np.polyval(curves, residues) > (device.memory, device.spill)).any())

        most = bisect_left(range(1, _FARTHEST * max(found)), x=True, key=is_too_long)
        if not most or len(found) == _MOST_ESTIMATES or any(abs(most / length - 1) < _NEAR for length in found):
            return most
        lengths = [most]


def fit_together(found: Sequence[PredictionEstimate]) -> bool:
    """Return whether targets with these estimates are all computed whole, and fit into memory in the same passes."""
    names = ("residues", "msa_rows", "extra_rows", "templates")
    padded = {name: max(getattr(each.size, name) for each in found) for name in names}
    # Each of them takes as much as one alone, or less.
    return all(each.executor == "whole" for each in found) and (
        len(found) * RESERVE * found[0].of("whole", **padded).memory.peak <= found[0].device.memory
    )


@cache
def pass_work(config: ModelConfig, size: PassSize) -> Direction:
    """Return the work of a pass: its FLOP of matrix products, the bytes that it moves, and its number of operators."""
    found = Direction()
    for cost in part_costs(config, size, None, DEVICE_MODELS["cpu"], plain=True).values():
        found.add(cost.forward)
    return found


@cache
def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the FLOP per second of a large matrix product, which is measured in a fraction of a second."""
    side = _SIDES.get(device.type, _SIDE_OF_GPU)
    left = torch.ones(side, side, dtype=dtype, device=device)
    left @ left
    return float(2 * side**3 / mean_seconds(lambda: left @ left, 3, device))


@cache
def _copy_rate() -> float:
    """Return the bytes per second that a CPU reads and writes in a copy, measured in a fraction of a second."""
    source, target = torch.ones(_COPIED), torch.empty(_COPIED)
    target.copy_(source)
    return float(2 * source.nbytes / mean_seconds(lambda: target.copy_(source), 3))
