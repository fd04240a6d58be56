"""Which layout a run gets: seconds and memory of all there are, predicted before it begins.

AlphaFold's published training runs divide samples alone; which of the other axes pay depends on the crop, the devices
and what is between them. What a rank computes, sends and holds is counted or measured by running its share of a pass;
nothing here knows what a pass consists of.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from helixfold.config import ConfigError
from helixfold.execution.allocator import freed_memory_kept
from helixfold.execution.available import available_memory
from helixfold.execution.recompute import RecomputeConfig
from helixfold.parallel.collectives import BETWEEN_BRANCHES
from helixfold.parallel.gradients import BUCKET_ELEMENTS
from helixfold.parallel.layout import Layout, layouts
from helixfold.parallel.mesh import Mesh
from helixfold.planning.links import reduced
from helixfold.planning.machines import Machine, measured_machine
from helixfold.planning.recompute_choice import KEEPS
from helixfold.planning.size import gib
from helixfold.planning.training import KEPT_BLOCKS, PARTS, TrainingNeeds

# Of the time of a forward and backward pass, what is backward.
_BACKWARD = 2 / 3


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A step of a training run.

    Its batch is cut into `parts` of `needs.samples`, each with so many `passes` before the one that learns, on average.
    `recompute` may be "auto", for what costs the least time of all that fits.
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
        """Return the samples of a step."""
        return self.parts * self.needs.samples

    @property
    def keeps(self) -> list[RecomputeConfig]:
        """Return what may be recomputed: `recompute` with each "auto" replaced, in all parts alike."""
        asked = self.recompute
        automatic = [each.name for each in fields(asked) if getattr(asked, each.name) == "auto"]
        return [replace(asked, **dict.fromkeys(automatic, keep)) for keep in (KEEPS if automatic else KEEPS[:1])]

    def sharings(self, ranks: Sequence[int]) -> list[Layout]:
        """Return the ways in which so many ranks can share a sample, each once."""
        return list(dict.fromkeys(replace(each, dp=1) for count in ranks for each in self.layouts(count)))

    def layouts(self, ranks: int) -> list[Layout]:
        """Return all layouts of so many ranks; the two branches of blocks are divided only where they can be."""
        model = self.needs.model
        return layouts(ranks, branches=model.evoformer.outer_product == model.extra_msa.outer_product == "end")


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Seconds of a step by where they go; its time is their sum."""

    passes: float = 0.0  # of what a rank computes
    messages: float = 0.0  # between ranks that share a sample
    gradients: float = 0.0  # summed over all ranks, where nothing is left to compute meanwhile
    optimizer: float = 0.0

    @property
    def total(self) -> float:
        """Return the seconds of the step."""
        return sum(getattr(self, each.name) for each in fields(self))

    def plus(self, other: "Seconds", times: float = 1.0) -> "Seconds":
        """Return these and others so many times."""
        return Seconds(
            **{each.name: getattr(self, each.name) + times * getattr(other, each.name) for each in fields(self)}
        )

    @property
    def most(self) -> str:
        """Return the name of the largest of them."""
        return max(fields(self), key=lambda each: getattr(self, each.name)).name


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a step takes with a layout: seconds, and bytes at the peak of the rank that takes most."""

    layout: Layout
    recompute: RecomputeConfig
    seconds: Seconds
    memory: int
    fits: bool
    batch_size: int
    idle: int = 0  # ranks without a sample

    @property
    def samples_per_second(self) -> float:
        """Samples that all ranks learn from in a second."""
        return self.batch_size / self.seconds.total

    @property
    def rank_seconds(self) -> float:
        """Seconds of all ranks together for each sample."""
        return self.layout.ranks / self.samples_per_second


def predict(work: Workload, layout: Layout, machine: Machine) -> Prediction:
    """Predict a step with this layout; what is recomputed is what costs the least time of all that fits."""
    found = [_predict(work, keep, layout, machine) for keep in work.keeps]
    fitting = [each for each in found if each.fits]
    return min(fitting, key=lambda each: each.seconds.total) if fitting else min(found, key=lambda each: each.memory)


def predictions(work: Workload, ranks: int, machine: Machine) -> list[Prediction]:
    """Predict a step with every layout of so many ranks."""
    return [predict(work, layout, machine) for layout in work.layouts(ranks)]


def best(found: Sequence[Prediction]) -> Prediction:
    """Return the fastest that fits, and of equals the one that shares least; raises `ConfigError` if none does."""
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
    """Return the best layout of all ranks that have met, by short readings of their devices and links.

    All ranks must ask together and get the same answer; `memory` is what each may take, in bytes. Raises `ConfigError`
    if no layout has room, or if the batch has too few parts for so many ranks.
    """
    if mesh.size == 1:
        return Layout()
    machine = measured_machine(work.needs, work.keeps, work.sharings([mesh.size]), mesh, memory)
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
    """Return lines for the screen: a layout each, and a mark at what is chosen."""
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
    """Say in one sentence up to which degree more axial parallelism makes the steps of these layouts shorter."""
    fastest = min(found, key=lambda each: (each.seconds.total, each.layout.dap))
    ranks, most = fastest.layout.ranks, fastest.layout.dap
    further = min((each.layout.dap for each in found if each.layout.dap > most), default=None)
    here = f"{fastest.seconds.total:.3f} s a step, {fastest.rank_seconds:.2f} rank-seconds a sample"
    here += f", {fastest.idle:,} ranks idle" * (fastest.idle > 0)
    if most == 1:
        text = f"{ranks:,} ranks: axial parallelism does not pay ({here} without it"
    else:
        text = f"{ranks:,} ranks: axial parallelism pays up to degree {most} ({here}"
    if further is not None:
        seconds = min(each.seconds.total for each in found if each.layout.dap == further)
        text += f"; {seconds:.3f} s at degree {further}"
    return text + ")"


def _predict(work: Workload, keep: RecomputeConfig, layout: Layout, machine: Machine) -> Prediction:
    # What a rank does with a sample does not depend on the other samples' ranks.
    needs = replace(work.needs, card=machine.card, layout=replace(layout, dp=1))
    forward, part = _pass(needs, None, machine), _pass(needs, keep, machine)
    backward = _BACKWARD * part.passes
    gradient = work.parameters * work.gradient_itemsize
    part = part.plus(forward, work.passes)
    if work.clips_samples and layout.sharing > 1:
        sent = reduced(gradient, layout.sharing)
        part = part.plus(Seconds(gradients=machine.links(layout.sharing).at("all_reduce", sent)))
    seconds = Seconds(
        gradients=_left_of_reduction(
            gradient, BUCKET_ELEMENTS * work.gradient_itemsize, layout.ranks, backward, machine
        ),
        optimizer=machine.speeds.optimizer(work.parameters),
    ).plus(part, math.ceil(work.parts / layout.dp))
    memory = needs.needed(keep)
    return Prediction(
        layout=layout,
        recompute=keep,
        seconds=seconds,
        memory=memory,
        fits=memory <= machine.memory,
        batch_size=work.batch_size,
        idle=max(0, layout.dp - work.parts) * layout.sharing,
    )


def _pass(needs: TrainingNeeds, keep: RecomputeConfig | None, machine: Machine) -> Seconds:
    """Predict a pass, forward and backward, or without `keep` forward without gradients.

    Ranks of two branches wait for each other in each part, so the slower one counts.
    """
    total, layout = Seconds(), needs.layout
    for part in PARTS:
        found = []
        for rank in range(layout.bp):
            cost = needs.cost(keep, part, rank)
            messages = sum(
                machine.links(layout.sharing if kind in BETWEEN_BRANCHES else layout.dap).at(kind, needs.samples * size)
                for kind, size in (*cost.forward.messages, *cost.backward.messages)
            )
            found.append(Seconds(passes=machine.speeds.seconds(needs, rank, keep, part), messages=messages))
        total = total.plus(max(found, key=lambda each: each.total))
    return total


def _left_of_reduction(gradient: int, bucket: int, ranks: int, backward: float, machine: Machine) -> float:
    """Return the seconds of summing gradients that no backward pass hides."""
    if ranks == 1:
        return 0.0
    links = machine.links(ranks)
    whole = links.at("all_reduce", reduced(gradient, ranks))
    if not machine.overlaps:
        return whole
    # The last bucket has nothing left to hide behind.
    return max(whole - backward, links.at("all_reduce", reduced(min(gradient, bucket), ranks)))


def machine_of_ranks(mesh: Mesh, work: Workload, sharings: list[Layout]) -> Machine:
    """Return the machine that these ranks run on, by short readings; all of them call this."""
    memory = available_memory(mesh.device) // (1 if mesh.device.type == "cuda" else mesh.size)
    with freed_memory_kept(KEPT_BLOCKS):
        return measured_machine(work.needs, work.keeps, sharings, mesh, memory)
