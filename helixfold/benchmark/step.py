"""Measure a training step on one example for `helixfold benchmark step`, from features to updated parameters.

`STAGES` has the training settings for each value of the option --size. `REPLAYED` is the way with CUDA graphs.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch

from helixfold.benchmark.measurement import (
    PLAIN,
    WHOLE,
    BenchmarkDevice,
    Cost,
    Readings,
    measure_parts,
    settle,
    show,
)
from helixfold.benchmark.options import CommonOptions, Size, StepOptions
from helixfold.execution.graphs import GraphCache, GraphCapturer
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import RecomputeConfig, recompute
from helixfold.execution.whole import Whole
from helixfold.losses.config import initial_training
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Recycled
from helixfold.ops.device_properties import properties_of
from helixfold.ops.dispatch import forced
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel.gradients import GradientReducer
from helixfold.parallel.mesh import Mesh
from helixfold.training import presets
from helixfold.training.config import TrainingConfig
from helixfold.training.step import CapturedGradients

# AlphaFold's two stages, or the tiny network on short crops.
STAGES: dict[Size, Callable[[], TrainingConfig]] = {
    "tiny": presets.tiny,
    "initial_training": presets.initial_training,
    "finetuning": presets.finetuning,
}
# Name of the way with CUDA graphs.
REPLAYED = "ours, replayed"


def run(options: StepOptions, common: CommonOptions) -> None:
    """Measure a training step, print the readings, and write them to the file of `common.json`, if it is set."""
    show(partial(readings, options, common), common)


def readings(options: StepOptions, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of recycling, forward, backward and optimizer, and of the whole step, in every dtype.

    Each is measured with plain PyTorch and with our operators. On an NVIDIA GPU, the whole step is also measured with
    CUDA graphs. If plain PyTorch runs out of memory, only its times are missing.
    """
    name = options.size or ("initial_training" if machine.device.type == "cuda" else "tiny")
    config = at_sizes(STAGES[name](), options)
    crop, rows = config.example.crop_size, config.example.sampling.max_msa_clusters
    repeats = common.repeats or 3
    policy = "" if options.checkpoint_policy is None else f", recompute {options.checkpoint_policy}"
    recycling = f"{options.num_recycles or 'no'} recycling iteration{'' if options.num_recycles == 1 else 's'}"
    ways = (PLAIN, "ours", REPLAYED) if properties_of(machine.device).kind == "cuda" else (PLAIN, "ours")
    for dtype in common.dtypes:
        kind = getattr(torch, dtype)
        messages: list[str] = []
        costs_by_way: dict[str, dict[str, Cost]] = {}
        for way in ways:
            graphs = GraphCache(GraphCapturer(machine.device), say=messages.append) if way == REPLAYED else None
            parts = training_parts(config, kind, machine.device, recycles=options.num_recycles, graphs=graphs)
            try:
                costs = _measure(parts, machine.device, repeats, plain=way == PLAIN)
                costs_by_way[way] = costs if graphs is None else {WHOLE: costs[WHOLE]}
            except torch.OutOfMemoryError:
                # Plain PyTorch needs several times more memory, so only its failure is expected.
                if way != PLAIN:
                    raise
                messages.append(f"{way}: out of memory")
            del parts, graphs
            settle()
        for part in costs_by_way["ours"]:
            costs = {way: each[part] for way, each in costs_by_way.items() if part in each}
            rates = [f"{way} {1 / cost.seconds:.2f} examples/s" for way, cost in costs.items()]
            yield Readings(
                part="step",
                name=f"training step, {name}, {crop} residues, {rows} rows, one example, {recycling}{policy}",
                dtype=kind,
                passes=part,
                costs=costs,
                notes=(", ".join(rates), *messages) if part == WHOLE else (),
            )


def at_sizes(config: TrainingConfig, options: StepOptions) -> TrainingConfig:
    """Return the settings of a stage with the options' residues, rows and checkpoint policy, where they are set."""
    sampling = config.example.sampling
    sampling = replace(sampling, max_msa_clusters=options.rows or sampling.max_msa_clusters)
    example = replace(config.example, crop_size=options.residues or config.example.crop_size, sampling=sampling)
    policy = (
        config.recompute if options.checkpoint_policy is None else RecomputeConfig.everywhere(options.checkpoint_policy)
    )
    return replace(config, example=example, recompute=policy)


def _measure(
    parts: dict[str, Callable[[], None]], device: torch.device, repeats: int, *, plain: bool
) -> dict[str, Cost]:
    with forced("reference") if plain else nullcontext():
        # The first step compiles kernels, and the second one is captured as CUDA graphs.
        for _ in range(2):
            for part in parts.values():
                part()
        return measure_parts(parts, device, repeats)


def training_parts(
    config: TrainingConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    recycles: int = 0,
    graphs: GraphCache | None = None,
) -> dict[str, Callable[[], None]]:
    """Return functions that run the parts of a training step on a random example, by name; call them in this order.

    The parts are "recycling", unless `recycles` is 0, then "forward", "backward" and "optimizer". With `graphs`, CUDA
    graphs of the first three are one part, "passes". `config` sets the network, sizes and checkpoint policy; losses are
    AlphaFold's for initial training. `recycles` is the number of recycling iterations before the last one.
    """
    torch.manual_seed(0)
    model = AlphaFold(config.model).to(device).train()
    recompute(model, config.recompute)
    optimizer = FlatOptimizer(model, OptimizerConfig(), working_dtype=dtype, keep_float32=("structure_module", "heads"))
    crop, sampling = config.example.crop_size, config.example.sampling
    rows = sampling.max_msa_clusters, sampling.max_extra_msa, sampling.max_templates
    batch = random_batch(crop, *rows, device, method=model.config.method)
    labels, losses = random_labels(batch), initial_training(model.config.method)
    total: list[torch.Tensor] = []
    recycled: list[Recycled | None] = [None]

    def recycle() -> None:
        recycled[:] = [None]
        recycled[:] = [model.recycle(Whole(), [[batch]] * recycles, dtype)]

    def forward() -> None:
        outputs = model(Whole(), [batch], recycled[0], dtype)
        total[:] = [total_loss(outputs, batch, labels, losses).total.sum()]

    def backward() -> None:
        optimizer.backward(total[0])

    def update() -> None:
        optimizer.collect(last=True)
        optimizer.step(1e-3, micro_batches=1)

    if graphs is not None:
        reducer = GradientReducer(optimizer, Mesh.alone(device))
        step = CapturedGradients(model, Whole(), reducer, losses, graphs)

        def forward_backward() -> None:
            step([batch] * (recycles + 1), labels, dtype)

        return {"passes": forward_backward, "optimizer": update}
    first: dict[str, Callable[[], None]] = {"recycling": recycle} if recycles else {}
    return {**first, "forward": forward, "backward": backward, "optimizer": update}
