"""Choose the parallel layout of a training run from estimates of the time and memory of all layouts.

AlphaFold's published training runs use data parallelism only. Whether branch and axial parallelism are faster depends
on the crop, the devices and the links between them. The work, messages and memory of a rank are counted or measured by
running its share of a pass, so this module has no formulas for parts of the network.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from helixfold.execution.allocator import keeping_freed_memory
from helixfold.execution.available import available_memory
from helixfold.model.config import ConfigError
from helixfold.parallel.mesh import Layout, Mesh
from helixfold.planning.estimate import Training, TrainingEstimate, estimate
from helixfold.planning.machines import Machine, measured_machine
from helixfold.planning.passes import KEPT_BLOCKS
from helixfold.planning.size import gib


def predict(work: Training, layout: Layout, machine: Machine) -> TrainingEstimate:
    """Estimate a training step with this layout and the fastest recompute policy that fits into memory.

    Only the policies of `work` are tried (`Training.policies`). If none fits, the one that needs the least memory is
    used.
    """
    # Policies are ordered from the fastest to the one that needs the least memory.
    estimates = [estimate(replace(work, layout=layout, recompute=policy), machine) for policy in work.policies]
    return next((each for each in estimates if each.fits), None) or min(estimates, key=lambda each: each.needed)


def predictions(work: Training, ranks: int, machine: Machine) -> list[TrainingEstimate]:
    """Estimate a training step with every possible layout of `ranks` ranks, each with its best policy (`predict`)."""
    return [predict(work, layout, machine) for layout in work.layouts(ranks)]


def best(estimates: Sequence[TrainingEstimate]) -> TrainingEstimate:
    """Return the fastest estimate that fits; among equally fast ones, the one with the fewest ranks per sample.

    Raise `ConfigError` if none fits or `estimates` is empty.
    """
    if not estimates:
        raise ConfigError("more ranks than samples in a batch can use; set a larger batch_size")
    fitting = [each for each in estimates if each.fits]
    if not fitting:
        smallest = min(estimates, key=lambda each: each.needed)
        raise ConfigError(
            f"no layout of {smallest.work.layout.ranks} ranks fits into memory: {smallest.work.layout} needs the "
            f"least, {gib(smallest.needed)} on each rank; use more ranks, a shorter example.crop_size or dtype=bfloat16"
        )
    return min(fitting, key=lambda each: (each.seconds.total, each.work.layout.sharing))


def choose_layout(work: Training, mesh: Mesh, memory: int) -> Layout:
    """Return the fastest layout of the mesh's ranks, based on short measurements of their devices and links.

    All ranks must call this together, and all get the same layout. `memory` is the bytes that each rank may use.
    Layouts that leave ranks idle are left out. A single rank measures nothing. Raise `ConfigError` if no layout fits
    into memory, or if the batch has too few micro-batches for this number of ranks.
    """
    if mesh.size == 1:
        return Layout()
    machine = measured_machine(work, mesh.size, mesh, memory)
    layout, problem = "", ""
    # The first rank chooses for all, because measurements differ between ranks. Its error is sent to the others, which
    # would wait for it otherwise.
    if mesh.is_first:
        try:
            layout = str(best([each for each in predictions(work, mesh.size, machine) if not each.idle]).work.layout)
        except ConfigError as error:
            problem = str(error)
    layout, problem = mesh.broadcast([layout, problem])
    if problem:
        raise ConfigError(problem)
    return Layout.parse(layout, mesh.size)


def table(estimates: Sequence[TrainingEstimate], chosen: Layout | None) -> Iterator[str]:
    """Yield the header and the rows of a table with one layout per row; the row of `chosen` is marked with ">".

    The rows have the recompute policy of the Evoformer, times, memory of a rank, idle ranks, and what takes the most
    time.
    """
    yield (
        f"{'':2}{'layout':22}{'recompute':>10}{'s a step':>10}{'samples/s':>11}{'rank-s a sample':>17}"
        f"{'GiB a rank':>12}{'fits':>6}{'idle':>7}  most of it"
    )
    for each in estimates:
        seconds = each.seconds
        share = getattr(seconds, seconds.most) / seconds.total
        yield (
            f"{'> ' if each.work.layout == chosen else '  '}{each.work.layout!s:22}{each.policy.evoformer:>10}"
            f"{seconds.total:10.3f}{each.samples_per_second:11.2f}{each.rank_seconds:17.2f}{each.needed / 2**30:12.1f}"
            f"{'yes' if each.fits else 'no':>6}{each.idle:7}  {seconds.most} {share:.0%}"
        )


def axial_summary(estimates: Sequence[TrainingEstimate]) -> str:
    """Return a sentence with the degree of axial parallelism of the fastest layout, and the time at the next degree.

    The sentence states that axial parallelism does not pay if that degree is 1.
    """
    fastest = min(estimates, key=lambda each: (each.seconds.total, each.work.layout.dap))
    ranks, degree = fastest.work.layout.ranks, fastest.work.layout.dap
    next_degree = min((each.work.layout.dap for each in estimates if each.work.layout.dap > degree), default=None)
    here = f"{fastest.seconds.total:.3f} s a step, {fastest.rank_seconds:.2f} rank-seconds a sample"
    here += f", {fastest.idle:,} ranks idle" * (fastest.idle > 0)
    if degree == 1:
        text = f"{ranks:,} ranks: axial parallelism does not pay ({here} without it"
    else:
        text = f"{ranks:,} ranks: axial parallelism pays up to degree {degree} ({here}"
    if next_degree is not None:
        seconds = min(each.seconds.total for each in estimates if each.work.layout.dap == next_degree)
        text += f"; {seconds:.3f} s at degree {next_degree}"
    return text + ")"


def measure_machine(mesh: Mesh, work: Training, ranks: int) -> Machine:
    """Measure the devices and links of the machine that the mesh's ranks run on, for a step on `ranks` ranks.

    Each rank may use the free memory of its GPU, or an equal share of the free memory of a CPU. All ranks must call
    this together.
    """
    memory = available_memory(mesh.device) // (1 if mesh.device.type == "cuda" else mesh.size)
    with keeping_freed_memory(KEPT_BLOCKS):
        return measured_machine(work, ranks, mesh, memory)
