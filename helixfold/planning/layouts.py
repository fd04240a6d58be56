"""Choice of the parallel layout of a training run from forecasts of the time and memory of all layouts.

AlphaFold's published training runs use data parallelism only. Whether branch and axial parallelism pay depends on the
crop, the devices and the links between them. The work, messages and memory of a rank are counted or measured by running
its share of a pass, so this module has no formulas for parts of the network.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from helixfold.execution.allocator import keeping_freed_memory
from helixfold.execution.available import available_memory
from helixfold.execution.recompute import RecomputeConfig
from helixfold.model.config import ConfigError
from helixfold.parallel.collectives import BETWEEN_BRANCHES
from helixfold.parallel.gradients import BUCKET_ELEMENTS
from helixfold.parallel.mesh import Layout, Mesh, layouts
from helixfold.planning.links import reduced
from helixfold.planning.machines import Machine, measured_machine
from helixfold.planning.recompute_choice import CHECKPOINT_POLICIES
from helixfold.planning.size import gib
from helixfold.planning.training import KEPT_BLOCKS, PARTS, TrainingNeeds

# Share of the backward pass in the time of forward and backward pass.
_BACKWARD = 2 / 3


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Work of one step of a training run.

    Each of the batch's `micro_batches` has `needs.samples` samples, with on average `recycling_iterations` without
    gradients before the last one, which has gradients. `parameters` counts the network's parameters. An "auto" in
    `recompute` stands for the fastest policy that fits into memory.
    """

    needs: TrainingNeeds
    recompute: RecomputeConfig
    micro_batches: int
    recycling_iterations: float
    parameters: int
    gradient_itemsize: int = 4  # bytes of each gradient element in messages between ranks
    clips_samples: bool = False  # gradients of ranks that share a sample are averaged before each clipping

    @property
    def batch_size(self) -> int:
        """Return the number of samples of a step, on all ranks together."""
        return self.micro_batches * self.needs.samples

    @property
    def policies(self) -> list[RecomputeConfig]:
        """Return the recompute policies to choose from: `recompute` with every "auto" replaced by the same value."""
        asked = self.recompute
        automatic = [each.name for each in fields(asked) if getattr(asked, each.name) == "auto"]
        return [
            replace(asked, **dict.fromkeys(automatic, keep))
            for keep in (CHECKPOINT_POLICIES if automatic else CHECKPOINT_POLICIES[:1])
        ]

    def sharings(self, ranks: Sequence[int]) -> list[Layout]:
        """Return the layouts (with dp=1) by which ranks can share a sample in runs with these numbers of ranks."""
        return list(dict.fromkeys(replace(each, dp=1) for count in ranks for each in self.layouts(count)))

    def layouts(self, ranks: int) -> list[Layout]:
        """Return all layouts of a number of ranks.

        Branch parallelism is among them only if the outer product is at the end of blocks.
        """
        model = self.needs.model
        return layouts(ranks, branches=model.evoformer.outer_product == model.extra_msa.outer_product == "end")


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
        return sum(getattr(self, each.name) for each in fields(self))

    def plus(self, other: "Seconds", times: float = 1.0) -> "Seconds":
        """Return the sum of these times and `times` times the others."""
        return Seconds(
            **{each.name: getattr(self, each.name) + times * getattr(other, each.name) for each in fields(self)}
        )

    @property
    def most(self) -> str:
        """Return the name of the field with the most seconds."""
        return max(fields(self), key=lambda each: getattr(self, each.name)).name


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted time and memory of a step with a layout.

    `memory` is the peak in bytes of the rank that takes most, and `fits` says whether it is available.
    """

    layout: Layout
    recompute: RecomputeConfig
    seconds: Seconds
    memory: int
    fits: bool
    batch_size: int
    idle: int = 0  # ranks without a sample

    @property
    def samples_per_second(self) -> float:
        """Return the number of samples per second, on all ranks together."""
        return self.batch_size / self.seconds.total

    @property
    def rank_seconds(self) -> float:
        """Return the rank-seconds per sample: the number of ranks times the seconds per sample."""
        return self.layout.ranks / self.samples_per_second


def predict(work: Workload, layout: Layout, machine: Machine) -> Prediction:
    """Predict a step with this layout and the fastest recompute policy that fits, or the smallest if none fits."""
    found = []
    for keep in work.policies:  # from the fastest to the one that needs the least memory
        found.append(_predict(work, keep, layout, machine))
        if found[-1].fits:
            return found[-1]
    return min(found, key=lambda each: each.memory)


def predictions(work: Workload, ranks: int, machine: Machine) -> list[Prediction]:
    """Predict a step with every layout of a number of ranks."""
    return [predict(work, layout, machine) for layout in work.layouts(ranks)]


def best(found: Sequence[Prediction]) -> Prediction:
    """Return the fastest prediction that fits; of equals, the one with the fewest ranks for a sample.

    Raise `ConfigError` if none fits or there is none.
    """
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
    """Return the fastest layout of the mesh's ranks, from short measurements of their devices and links.

    All ranks must call this together, and get the same layout; `memory` is the bytes that each may use. Raise
    `ConfigError` if no layout fits into memory, or if the batch has too few micro-batches for this number of ranks.
    """
    if mesh.size == 1:
        return Layout()
    machine = measured_machine(work.needs, work.policies, work.sharings([mesh.size]), mesh, memory)
    layout, problem = "", ""
    # The first rank chooses for all: ranks with other measurements must neither choose another layout, nor wait for a
    # rank that failed.
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
    """Yield the lines of a table with one layout in each row; the chosen one is marked."""
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
    """Return a sentence that says up to which degree axial parallelism shortens a step, among these predictions."""
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
    # The work of a rank on a sample does not depend on the ranks of other samples.
    needs = replace(work.needs, card=machine.card, layout=replace(layout, dp=1))
    forward, part = _pass(needs, None, machine), _pass(needs, keep, machine)
    backward = _BACKWARD * part.passes
    gradient = work.parameters * work.gradient_itemsize
    part = part.plus(forward, work.recycling_iterations)
    if work.clips_samples and layout.sharing > 1:
        sent = reduced(gradient, layout.sharing)
        part = part.plus(Seconds(gradients=machine.links(layout.sharing).at("all_reduce", sent)))
    seconds = Seconds(
        gradients=_left_of_reduction(
            gradient, BUCKET_ELEMENTS * work.gradient_itemsize, layout.ranks, backward, machine
        ),
        optimizer=machine.speeds.optimizer(work.parameters),
    ).plus(part, math.ceil(work.micro_batches / layout.dp))
    memory = needs.needed(keep)
    return Prediction(
        layout=layout,
        recompute=keep,
        seconds=seconds,
        memory=memory,
        fits=memory <= machine.memory,
        batch_size=work.batch_size,
        idle=max(0, layout.dp - work.micro_batches) * layout.sharing,
    )


def _pass(needs: TrainingNeeds, keep: RecomputeConfig | None, machine: Machine) -> Seconds:
    """Predict a pass forward and backward with the recompute policy `keep`, or if it is None forward without gradients.

    Ranks of the two branches wait for each other in each part of the network, so the slower one counts.
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
    """Return the seconds of summing gradients over ranks that do not overlap with the backward pass.

    `gradient` and `bucket` are the bytes of all gradients and of a message, `backward` the seconds of a backward pass.
    """
    if ranks == 1:
        return 0.0
    links = machine.links(ranks)
    whole = links.at("all_reduce", reduced(gradient, ranks))
    if not machine.overlaps:
        return whole
    # The last bucket is sent when the backward pass is over.
    return max(whole - backward, links.at("all_reduce", reduced(min(gradient, bucket), ranks)))


def machine_of_ranks(mesh: Mesh, work: Workload, sharings: list[Layout]) -> Machine:
    """Return the machine on which these ranks run, from short measurements; all ranks must call this together."""
    memory = available_memory(mesh.device) // (1 if mesh.device.type == "cuda" else mesh.size)
    with keeping_freed_memory(KEPT_BLOCKS):
        return measured_machine(work.needs, work.policies, sharings, mesh, memory)
