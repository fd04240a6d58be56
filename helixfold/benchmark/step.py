"""Measure one training step on one example for `helixfold benchmark step`, from features to updated parameters."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch

from data_pipeline.transforms import training as examples
from data_pipeline.transforms.sample import SamplingConfig
from data_pipeline.transforms.training import ExampleConfig
from helixfold.annotations import Parameter
from helixfold.benchmark.machine import BenchmarkDevice
from helixfold.benchmark.options import CommonOptions
from helixfold.benchmark.table import Readings, show
from helixfold.benchmark.timing import PLAIN, WHOLE, Cost, measure_parts
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import Keep, RecomputeConfig, recompute
from helixfold.execution.whole import Whole
from helixfold.losses.config import initial_training
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.ops.dispatch import forced
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.options import Positive
from helixfold.presets import preset

Size = Literal["tiny", "initial_training", "finetuning"]
# Preset of the network, its examples and its checkpoint policy: AlphaFold's two stages, or the tiny network on short
# crops.
SIZES: dict[Size, tuple[str, ExampleConfig, RecomputeConfig]] = {
    "tiny": (
        "tiny",
        ExampleConfig(crop_size=64, sampling=SamplingConfig(max_msa_clusters=8, max_extra_msa=16, max_templates=4)),
        RecomputeConfig.everywhere("none"),
    ),
    "initial_training": ("model_1", examples.initial_training(), RecomputeConfig()),
    "finetuning": ("model_1_ptm", examples.finetuning(), RecomputeConfig()),
}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of `helixfold benchmark step`."""

    size: Annotated[Size | None, Parameter(show_default="initial_training on a GPU, else tiny")] = None
    """Network and examples."""
    residues: Annotated[Positive | None, Parameter(show_default="the stage's")] = None
    """Residues of the crop."""
    rows: Annotated[Positive | None, Parameter(show_default="the stage's")] = None
    """Rows of the MSA."""
    keep: Annotated[Keep | None, Parameter(show_default="the stage's")] = None
    """Checkpoint policy: the part that the backward pass computes again."""


_USUAL, _COMMON = StepOptions(), CommonOptions()


def run(options: StepOptions = _USUAL, common: CommonOptions = _COMMON) -> None:
    """Measure a training step and print the readings."""
    show(partial(readings, options, common), common)


def readings(options: StepOptions, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of forward, backward and optimizer, and of all together, plain and ours, in every dtype."""
    name = options.size or ("initial_training" if machine.device.type == "cuda" else "tiny")
    network, example, usual = SIZES[name]
    keep = usual if options.keep is None else RecomputeConfig.everywhere(options.keep)
    crop, rows = options.residues or example.crop_size, options.rows or example.sampling.max_msa_clusters
    sizes = crop, rows, example.sampling.max_extra_msa, example.sampling.max_templates
    repeats = common.repeats or 3
    policy = "" if options.keep is None else f", recompute {options.keep}"
    for dtype in common.dtypes:
        kind = getattr(torch, dtype)
        found = {
            way: _measure(
                network,
                keep,
                sizes,
                kind,
                device=machine.device,
                repeats=repeats,
                plain=way == PLAIN,
            )
            for way in (PLAIN, "ours")
        }
        for part in next(iter(found.values())):
            rates = [f"{way} {1 / costs[part].seconds:.2f} examples/s" for way, costs in found.items()]
            yield Readings(
                part="step",
                name=f"training step, {name}, {crop} residues, {rows} rows, one example, no recycling{policy}",
                dtype=kind,
                passes=part,
                costs={way: costs[part] for way, costs in found.items()},
                notes=(", ".join(rates),) if part == WHOLE else (),
            )


def _measure(
    network: str,
    keep: RecomputeConfig,
    sizes: tuple[int, int, int, int],
    dtype: torch.dtype,
    *,
    device: torch.device,
    repeats: int,
    plain: bool,
) -> dict[str, Cost]:
    parts = training_parts(network, keep, sizes, dtype, device)
    with forced("reference") if plain else nullcontext():
        for part in parts.values():
            part()
        return measure_parts(parts, device, repeats)


def training_parts(
    network: str, keep: RecomputeConfig, sizes: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
) -> dict[str, Callable[[], None]]:
    """Return the parts of a training step on a random example, to be called in their order.

    `network` is a preset, and `sizes` are the numbers of residues, MSA rows, extra rows and templates.
    """
    torch.manual_seed(0)
    model = AlphaFold(preset(network).model).to(device).train()
    recompute(model, keep)
    optimizer = FlatOptimizer(model, OptimizerConfig(), working_dtype=dtype, keep_float32=("structure_module", "heads"))
    batch = random_batch(*sizes, device, method=model.config.method)
    labels, losses = random_labels(batch), initial_training()
    total: list[torch.Tensor] = []

    def forward() -> None:
        total[:] = [total_loss(model(Whole(), [batch], None, dtype), batch, labels, losses).total.sum()]

    def backward() -> None:
        optimizer.backward(total[0])

    def update() -> None:
        optimizer.collect()
        optimizer.step(1e-3, micro_batches=1)

    return {"forward": forward, "backward": backward, "optimizer": update}
