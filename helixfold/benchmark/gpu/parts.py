"""The parts of the measurement of one GPU, and the sizes at which they are measured."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from helixfold.benchmark import block, model, ops, step
from helixfold.benchmark.gpu import tiles
from helixfold.benchmark.machine import BenchmarkDevice
from helixfold.benchmark.memory_points import PREDICTION, Point, measured_here
from helixfold.benchmark.op_cases import INCOMING, OUTGOING, TRIANGLE_CORE
from helixfold.benchmark.options import CommonOptions
from helixfold.benchmark.step import Size, StepOptions
from helixfold.benchmark.table import Readings
from helixfold.benchmark.timing import WHOLE, Cost, settle
from helixfold.config import ConfigError
from helixfold.execution.available import available_memory
from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.ops.card import card_of
from helixfold.parallel.layout import Layout
from helixfold.parallel.mesh import Mesh
from helixfold.planning.prediction import EXECUTORS
from helixfold.planning.size import gib
from helixfold.training import presets
from helixfold.training.config import TrainingConfig
from helixfold.training.forecast import recompute_message, with_settled_recompute

_LINE_LENGTH = 200
_STAGES: dict[Size, Callable[[], TrainingConfig]] = {
    "tiny": presets.tiny,
    "initial_training": presets.initial_training,
    "finetuning": presets.finetuning,
}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Presets, and numbers of residues and of alignment rows, at which a GPU is measured."""

    preset: str = "model_1"
    operators: tuple[int, ...] = (256, 384, 1024)
    blocks: tuple[tuple[int, int], ...] = ((256, 128), (384, 512))  # residues and rows
    models: tuple[int, ...] = (256, 512, 1024, 2048)
    plain_models: tuple[int, ...] = (256,)  # those that plain PyTorch computes, too
    rows: int = 512
    extra_rows: int = 1024
    stages: tuple[Size, ...] = ("initial_training", "finetuning")
    step: StepOptions = field(default_factory=lambda: StepOptions(recycles=1))
    policies: tuple[Keep, ...] = ("none", "inputs", "block")
    chains: tuple[int, ...] = (2048, 4096, 10_000)
    peers: tuple[int, ...] = (256, 512, 1024)


# With these, the command is tried on a CPU.
TINY = Sizes(
    preset="tiny",
    operators=(8,),
    blocks=((8, 4),),
    models=(16,),
    plain_models=(16,),
    rows=4,
    extra_rows=4,
    stages=("tiny",),
    step=StepOptions(residues=16, rows=4, recycles=1),
    policies=("none", "block"),
    chains=(16,),
    peers=(16,),
)


def operators(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of every operator; results are compared with the reference's in the same run."""
    options = ops.OpsOptions(preset=sizes.preset, residues=sizes.operators)
    if sizes is TINY:
        options = replace(options, rows=sizes.rows, extra_rows=sizes.extra_rows)
    yield from ops.readings(options, common, machine)


def blocks(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of one Evoformer block."""
    for residues, rows in sizes.blocks:
        yield from block.readings(
            block.BlockOptions(preset=sizes.preset, residues=residues, rows=rows), common, machine
        )


def models(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of one pass of the whole network."""
    for residues in sizes.models:
        ways: tuple[model.Way, ...] = ("plain", "whole", "slabs") if residues in sizes.plain_models else ("whole",)
        yield from model.readings(_model(sizes, residues, ways), common, machine)


def steps(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of a training step of each stage with each checkpoint policy; a note says which `auto` chooses."""
    for stage in sizes.stages:
        note = _chosen_policy(stage, machine.device)
        for keep in sizes.policies:
            readings = step.readings(replace(sizes.step, size=stage, keep=keep), common, machine)
            for reading in _or_failure(readings, f"training step, {stage}, recompute {keep}", "step", common):
                yield replace(reading, notes=(*reading.notes, note)) if reading.passes == WHOLE else reading


def _chosen_policy(stage: Size, device: torch.device) -> str:
    """Return a sentence on what a run of this stage with recompute "auto" would recompute in the free memory."""
    config = replace(_STAGES[stage](), recompute=RecomputeConfig.everywhere("auto"))
    card, memory = card_of(device), available_memory(device)
    try:
        settled = with_settled_recompute(config, memory, card)
    except ConfigError as error:
        return f"auto: {error}"
    return f"auto {recompute_message(settled, memory, card, Layout())}"


def long_chains(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield seconds and peak memory of two recycling iterations of long chains, by executor, with one block a stack.

    Memory does not depend on the number of blocks. An executor that needs more memory than is free is not tried.
    """
    for dtype in common.dtypes:
        for residues in sizes.chains:
            costs, notes = {}, []
            for executor in EXECUTORS:
                point = Point(
                    part=PREDICTION,
                    preset=sizes.preset,
                    blocks=1,
                    residues=residues,
                    rows=sizes.rows,
                    extra_rows=sizes.extra_rows,
                    templates=0,
                    ensemble=1,
                    passes=2,
                    dtype=dtype,
                    executor=executor,
                    device=str(machine.device),
                )
                costs[executor] = _chain(point, machine.device)
                notes.append(f"forecast for {executor}: {gib(point.needs())}")
            yield Readings(
                part="long",
                name=f"{sizes.preset} with one block a stack, {residues} residues, {sizes.rows} rows",
                dtype=getattr(torch, dtype),
                passes="forward",
                costs=costs,
                notes=tuple(notes),
            )


def _chain(point: Point, device: torch.device) -> Cost:
    settle()
    needed, free = point.needs(), available_memory(device)
    if needed > free:
        return Cost(failure=f"needs {gib(needed)}, and {gib(free)} are free")
    with TemporaryDirectory() as spill:
        found = measured_here(Mesh.alone(device), point, Path(spill), limit=None)
    if found.failure is not None:
        return Cost(failure=found.failure)
    return Cost(seconds=found.seconds, memory=found.peak)


def peers(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of what other packages compute, beside ours: triangle operators, and DeepMind's program."""
    shape = ops.OpsOptions(preset=sizes.preset, residues=sizes.operators)
    if sizes is TINY:
        shape = replace(shape, rows=sizes.rows, extra_rows=sizes.extra_rows)
    for name in (TRIANGLE_CORE, OUTGOING, INCOMING):
        yield from ops.readings(replace(shape, only=name), common, machine)
    for residues in sizes.peers:
        options = replace(_model(sizes, residues, ("whole",)), peer=("jax", "colabfold"), jax_subbatch=0)
        yield from model.readings(options, common, machine)


def _model(sizes: Sizes, residues: int, ways: tuple[model.Way, ...]) -> model.ModelOptions:
    return model.ModelOptions(
        preset=sizes.preset, residues=residues, rows=sizes.rows, extra_rows=sizes.extra_rows, ways=ways
    )


def _or_failure(readings: Iterator[Readings], name: str, part: str, common: CommonOptions) -> Iterator[Readings]:
    """Yield readings, and after an error, such as memory that runs out, one that says so."""
    try:
        yield from readings
    except Exception as error:
        failure = Cost(failure=f"{type(error).__name__}: {str(error).strip()[:_LINE_LENGTH]}")
        dtype = getattr(torch, common.dtypes[0])
        yield Readings(part=part, name=name, dtype=dtype, passes="-", costs={"ours": failure})
    settle()


def other_tiles(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of a block's kernels with other tiles, in bfloat16."""
    yield from tiles.readings(sizes.preset, sizes.blocks[0], common, machine)


Part = Callable[[Sizes, CommonOptions, BenchmarkDevice], Iterator[Readings]]
PARTS: dict[str, Part] = {
    "ops": operators,
    "block": blocks,
    "model": models,
    "step": steps,
    "long": long_chains,
    "peers": peers,
    "tiles": other_tiles,
}


def measured(names: list[str], sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield the readings of these parts; a part that fails says so, and the next one is measured."""
    for name in names:
        yield from _or_failure(PARTS[name](sizes, common, machine), f"the part {name}", name, common)
