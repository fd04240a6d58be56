"""Which layout a run gets: seconds and memory of all there are, predicted before it begins.

AlphaFold's published training runs divide samples alone; which of the other axes pay depends on the crop, the devices
and what is between them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

from helixfold.config import ConfigError
from helixfold.execution.policy import gib
from helixfold.execution.recompute import Choice, Keep, RecomputeConfig
from helixfold.execution.recompute_policy import TrainingNeeds
from helixfold.parallel.footprint import shared
from helixfold.parallel.gradients import ELEMENTS
from helixfold.parallel.layout import Layout, layouts
from helixfold.parallel.links import measured_machine
from helixfold.parallel.machine import Machine
from helixfold.parallel.mesh import Mesh
from helixfold.parallel.traffic import axial_seconds, gathered_rest, spread_seconds, swap_seconds
from helixfold.parallel.work import Half, Stack, stacks

_KEEPS: tuple[Keep, ...] = ("none", "inputs", "block")
# Of the time of a forward and backward pass, what is backward.
_BACKWARD = 2 / 3


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A step of a training run: its batch is cut into `parts` of `needs.samples`, each with so many `passes` before
    the one that learns (on average). `recompute` may be "auto": then what costs the least time of all that fits.
    """

    needs: TrainingNeeds
    recompute: RecomputeConfig
    parts: int
    passes: float
    parameters: int
    gradient_itemsize: int = 4  # bytes of each number on its way between ranks
    clips_samples: bool = False  # gradients of ranks that share a sample are averaged before each clipping

    @property
    def batch_size(self) -> int:
        return self.parts * self.needs.samples

    @property
    def has_parallel_blocks(self) -> bool:
        model = self.needs.model
        return model.evoformer.outer_product == model.extra_msa.outer_product == "end"


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Where a step's time goes; it is their sum."""

    updates: float = 0.0  # of blocks, which ranks that share a sample divide
    rest: float = 0.0  # of a pass, of which each of them does most
    messages: float = 0.0  # between them
    gradients: float = 0.0  # summed over all ranks, where nothing is left to compute meanwhile
    optimizer: float = 0.0

    @property
    def total(self) -> float:
        return sum(getattr(self, each.name) for each in fields(self))

    def plus(self, other: "Seconds", times: float = 1.0) -> "Seconds":
        return Seconds(
            **{each.name: getattr(self, each.name) + times * getattr(other, each.name) for each in fields(self)}
        )

    @property
    def most(self) -> str:
        return max(fields(self), key=lambda each: getattr(self, each.name)).name


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a step takes with a layout: seconds, and bytes at the peak of each rank."""

    layout: Layout
    recompute: RecomputeConfig
    seconds: Seconds
    memory: int
    fits: bool
    batch_size: int
    idle: int = field(default=0)  # ranks without a sample

    @property
    def samples_per_second(self) -> float:
        return self.batch_size / self.seconds.total

    @property
    def rank_seconds(self) -> float:
        """Of all ranks, for each sample."""
        return self.layout.ranks / self.samples_per_second


def predict(work: Workload, layout: Layout, machine: Machine) -> Prediction:
    """A step with this layout; what is recomputed is what costs the least time of all that fits."""
    found = [_predict(work, keep, layout, machine) for keep in _settlements(work.recompute)]
    fitting = [each for each in found if each.fits]
    return min(fitting, key=lambda each: each.seconds.total) if fitting else min(found, key=lambda each: each.memory)


def predictions(work: Workload, ranks: int, machine: Machine) -> list[Prediction]:
    """A step with every layout of so many ranks; with branches only where the model's blocks have them."""
    return [predict(work, layout, machine) for layout in layouts(ranks, branches=work.has_parallel_blocks)]


def best(found: Sequence[Prediction]) -> Prediction:
    """The fastest that fits; raises `ConfigError` if none does. Of equals, the one that shares least."""
    if not found:
        raise ConfigError("there are more ranks than a batch can be shared among; set a larger batch_size")
    fitting = [each for each in found if each.fits]
    if not fitting:
        least = min(found, key=lambda each: each.memory)
        raise ConfigError(
            f"no layout of {least.layout.ranks} ranks has room: {least.layout} takes least, {gib(least.memory)} on "
            "each rank; take more ranks, a shorter example.crop_size, or dtype=bfloat16"
        )
    return min(fitting, key=lambda each: (each.seconds.total, each.layout.sharing))


def chosen_layout(work: Workload, mesh: Mesh, memory: int) -> Layout:
    """The best layout of all ranks that have met, by short readings of their devices and links.

    All ranks must ask together and get the same answer; `memory` is what each may take, in bytes. Raises `ConfigError`
    if no layout has room, or if the batch has too few parts for so many ranks.
    """
    if mesh.size == 1:
        return Layout()
    needs = work.needs
    machine = measured_machine(needs.model, needs.size, work.recompute, mesh, memory)
    layout, problem = "", ""
    # Ranks that read something else must not choose something else, nor wait for one that has ended.
    if mesh.is_first:
        try:
            layout = str(best([each for each in predictions(work, mesh.size, machine) if not each.idle]).layout)
        except ConfigError as error:
            problem = str(error)
    layout, problem = mesh.broadcast([layout, problem])
    if problem:
        raise ConfigError(problem)
    return Layout.parse(layout, mesh.size)


def table(found: Sequence[Prediction], chosen: Layout | None) -> Iterator[str]:
    """Lines for the screen: a layout each, and a mark at what is chosen."""
    yield (
        f"{'':2}{'layout':22}{'recompute':>10}{'s a step':>10}{'samples/s':>11}{'rank-s a sample':>17}"
        f"{'GiB a rank':>12}{'fits':>6}{'idle':>7}  most of it"
    )
    for each in found:
        seconds = each.seconds
        share = getattr(seconds, seconds.most) / seconds.total
        yield (
            f"{'> ' if each.layout == chosen else '  '}{each.layout!s:22}{each.recompute.evoformer:>10}"
            f"{seconds.total:10.3f}{each.samples_per_second:11.2f}{each.rank_seconds:17.2f}{each.memory / 2**30:12.1f}"
            f"{'yes' if each.fits else 'no':>6}{each.idle:7}  {seconds.most} {share:.0%}"
        )


def where_axial_stops(found: Sequence[Prediction]) -> str:
    """One sentence: up to which degree more axial parallelism makes the steps of these layouts shorter."""
    by_degree: dict[int, Prediction] = {}
    for each in found:
        if each.layout.dap not in by_degree or each.seconds.total < by_degree[each.layout.dap].seconds.total:
            by_degree[each.layout.dap] = each
    degrees = sorted(by_degree)
    most = min(degrees, key=lambda degree: by_degree[degree].seconds.total)
    ranks = found[0].layout.ranks
    fastest = by_degree[most]
    here = f"{fastest.seconds.total:.3f} s a step, {fastest.rank_seconds:.2f} rank-seconds a sample"
    here += f", {fastest.idle:,} ranks idle" * (fastest.idle > 0)
    if most == 1:
        text = f"{ranks:,} ranks: axial parallelism does not pay ({here} without it"
    else:
        text = f"{ranks:,} ranks: axial parallelism pays up to degree {most} ({here}"
    if most != degrees[-1]:
        further = degrees[degrees.index(most) + 1]
        text += f"; {by_degree[further].seconds.total:.3f} s at degree {further}"
    return text + ")"


def _settlements(asked: RecomputeConfig) -> Iterator[RecomputeConfig]:
    """`asked` with each "auto" replaced, of all parts alike."""
    if asked.is_settled:
        yield asked
        return
    for keep in _KEEPS:
        settled: dict[str, Choice] = {each.name: keep for each in fields(asked) if getattr(asked, each.name) == "auto"}
        yield replace(asked, **settled)


def _predict(work: Workload, keep: RecomputeConfig, layout: Layout, machine: Machine) -> Prediction:
    needs, dp = work.needs, layout.dp
    # Per part: the passes that do not learn, then the one that does.
    samples = needs.samples
    forward = again = learning = Seconds()
    for name, stack in stacks(needs.model, needs.size).items():
        once = _stack_seconds(name, stack, layout, machine, samples, learns=False)
        forward = forward.plus(once)
        again = again.plus(once, float(getattr(keep, name) != "none"))
        learning = learning.plus(_stack_seconds(name, stack, layout, machine, samples, learns=True))
    forward = forward.plus(_rest_seconds(work, layout, machine, learns=False))
    learning = learning.plus(_rest_seconds(work, layout, machine, learns=True))
    gradient = work.parameters * work.gradient_itemsize
    if work.clips_samples and layout.sharing > 1:
        reduce = machine.links(layout.sharing).reduce
        again = again.plus(Seconds(gradients=reduce.at(_reduced(gradient, layout.sharing))))
    backward = _BACKWARD * (learning.updates + learning.rest)
    part = learning.plus(again).plus(forward, work.passes)
    seconds = Seconds(
        gradients=_left_of_reduction(gradient, ELEMENTS * work.gradient_itemsize, layout.ranks, backward, machine),
        optimizer=machine.speeds.optimizer(work.parameters),
    ).plus(part, math.ceil(work.parts / dp))
    memory = shared(needs, layout).needed(keep)
    return Prediction(
        layout=layout,
        recompute=keep,
        seconds=seconds,
        memory=memory,
        fits=memory <= machine.memory,
        batch_size=work.batch_size,
        idle=max(0, dp - work.parts) * layout.sharing,
    )


def _stack_seconds(name: str, stack: Stack, layout: Layout, machine: Machine, samples: int, *, learns: bool) -> Seconds:
    """All blocks of a stack: forward, or forward and backward."""
    # Parts are padded to the same length.
    share = samples * math.ceil(stack.residues / layout.dap) / stack.residues
    links, sharing_links = machine.links(layout.dap), machine.links(layout.sharing)
    # What goes back is as much as what went forth.
    directions = samples * (2 if learns else 1)

    def half_of(half: Half) -> Seconds:
        computing = (
            machine.speeds.update(name, update, each, share, learns=learns)
            for update, each in stack.block.items()
            if each.half == half
        )
        messages = samples * axial_seconds(stack, half, layout.dap, links, learns=learns)
        return Seconds(updates=sum(computing), messages=messages)

    msa, pair = half_of("msa"), half_of("pair")
    if layout.bp > 1 and stack.msa:
        slower = max(msa, pair, key=lambda half: half.total)
        block = slower.plus(Seconds(messages=directions * swap_seconds(stack, layout, sharing_links)))
    else:
        # Where a block has no branches (a template's), ranks for both carry it out.
        block = msa.plus(pair)
    # The extra MSA ends with its stack.
    last = spread_seconds(stack, layout, sharing_links) if name == "evoformer" else 0.0
    return Seconds(messages=directions * last).plus(block, stack.blocks)


def _rest_seconds(work: Workload, layout: Layout, machine: Machine, *, learns: bool) -> Seconds:
    """All that is in no stack: forward, or forward and backward."""
    needs, dap = work.needs, layout.dap
    seconds = machine.speeds.rest(needs.samples / dap, learns=learns)
    if dap == 1:
        return Seconds(rest=seconds)
    links = machine.links(dap)
    sent = [needs.samples * size * (dap - 1) / dap for size in gathered_rest(needs.model, needs.size, learns=learns)]
    messages = sum(map(links.gather.at, sent)) + sum(map(links.scatter.at, sent)) * learns
    return Seconds(rest=seconds, messages=messages)


def _reduced(size: int, ranks: int) -> float:
    """Bytes that a rank sends so that all have the sum."""
    return 2 * size * (ranks - 1) / ranks


def _left_of_reduction(gradient: int, bucket: int, ranks: int, backward: float, machine: Machine) -> float:
    """Seconds of summing gradients that no backward pass hides."""
    if ranks == 1:
        return 0.0
    reduce = machine.links(ranks).reduce
    whole = reduce.at(_reduced(gradient, ranks))
    if not machine.overlaps:
        return whole
    # The last bucket has nothing left to hide behind.
    return max(whole - backward, reduce.at(_reduced(min(gradient, bucket), ranks)))
