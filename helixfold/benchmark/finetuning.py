"""Measure the memory of a fine-tuning step for `helixfold benchmark finetuning`, by what of a model is trained."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from helixfold.annotations import Parameter
from helixfold.benchmark.options import Device, Model
from helixfold.benchmark.timing import held_memory, settle
from helixfold.execution.allocator import keeping_freed_memory
from helixfold.execution.device import pick_device
from helixfold.execution.dtypes import DTYPES
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.execution.stages import peak_memory, reset_peak_memory, synchronize
from helixfold.finetune.adapted import FrozenParameters, HeadsTrained, LowRankTrained
from helixfold.finetune.memory import held_bytes, number_bytes, parameter_bytes, run_memory
from helixfold.finetune.options import Adapter
from helixfold.finetune.settings import FinetuneConfig, finetuning
from helixfold.losses.total import total_loss
from helixfold.ops.card import card_of
from helixfold.optim.trained import AllParameters, Trained
from helixfold.options import Positive
from helixfold.parallel.launch import on_ranks
from helixfold.parallel.mesh import Mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.planning.size import of_blocks
from helixfold.planning.training import KEPT_BLOCKS
from helixfold.predict.options import Dtype
from helixfold.presets import preset
from helixfold.weights.untrained import untrained_model

_MIB = 2**20
_SMALL = "tiny"


@dataclass(frozen=True, kw_only=True)
class Point:
    """A measurement to make: one step on one random example, whose last pass alone has gradients.

    `blocks` is the number of blocks of each stack, or None for all.
    """

    adapter: Adapter
    preset: str
    blocks: int | None
    crop: int
    rows: int
    extra_rows: int
    templates: int
    recompute: Keep
    dtype: Dtype
    device: str

    @property
    def config(self) -> FinetuneConfig:
        """Return the usual settings of such a fine-tuning, with the sizes of this point."""
        chosen = preset(self.preset)
        model = chosen.model if self.blocks is None else of_blocks(chosen.model, self.blocks)
        config = finetuning(replace(chosen, model=model), self.adapter)
        sampling = replace(
            config.run.example.sampling,
            max_msa_clusters=self.rows,
            max_extra_msa=self.extra_rows,
            max_templates=self.templates,
        )
        example = replace(config.run.example, crop_size=self.crop, sampling=sampling, max_passes=1, fixed_shapes=True)
        recompute = RecomputeConfig.everywhere(self.recompute)
        return replace(config, run=replace(config.run, example=example, recompute=recompute, dtype=self.dtype))

    def predicted(self) -> int:
        """Return the forecast of all that a run takes: parameters, what is trained, and a step."""
        found = run_memory(self.config, card_of(pick_device(self.device)))
        shared = 0 if self.adapter == "full" else parameter_bytes(self.config.run.model, DTYPES[self.dtype])
        return shared + found.numbers + found.effective + found.passes

    def share(self) -> float:
        """Return the gradients, moments and averages as a share of those of all parameters."""
        own, everything = (
            number_bytes(replace(self.config, adapter=adapter), DTYPES[self.dtype])[1]
            for adapter in (self.adapter, "full")
        )
        return own / everything


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes of a step: the peak beyond a process without parameters, and what the optimizer holds beyond values."""

    peak: int
    optimizer: int


def measure(point: Point) -> StepMemory:
    """Measure a point in a fresh process."""
    return on_ranks(1, measured_here, point, device=point.device, threads=torch.get_num_threads())


def measured_here(mesh: Mesh, point: Point) -> StepMemory:
    """Measure a point in this process, after a small step in which libraries allocate what they keep."""
    torch.manual_seed(0)
    with keeping_freed_memory(KEPT_BLOCKS):
        _step(mesh, replace(point, preset=_SMALL, blocks=1, crop=8, rows=4, extra_rows=4))
        settle()
        reset_peak_memory(mesh.device)
        start = held_memory(mesh.device)
        optimizer = _step(mesh, point)
        return StepMemory(peak=peak_memory(mesh.device) - start, optimizer=optimizer)


def _step(mesh: Mesh, point: Point) -> int:
    """Load a model, make a step, and return the bytes that the optimizer holds beyond values."""
    config, device, dtype = point.config, mesh.device, DTYPES[point.dtype]
    trained = _trained(config, device)
    optimizer = trained.optimizer(config.run.optimizer, dtype, averages=True)
    run = parallelize(trained.model.train(), mesh, config.run.recompute)
    method = config.run.model.method
    batch = random_batch(point.crop, point.rows, point.extra_rows, point.templates, device, method=method)
    labels = random_labels(batch)
    trained.apply()
    outputs = trained.model(run, [batch], None, dtype)
    losses = total_loss(outputs, batch, labels, config.run.loss)
    del outputs
    optimizer.backward(losses.total.sum())
    optimizer.collect(last=True)
    optimizer.step(1e-3, micro_batches=1)
    synchronize(device)
    return held_bytes(optimizer)


def _trained(config: FinetuneConfig, device: torch.device) -> Trained:
    model = untrained_model(config.run.model, seed=0)
    if config.adapter == "full":
        return AllParameters(model.to(device))
    base = FrozenParameters.of(model.state_dict(), config.run.model, "random", device)
    return HeadsTrained(base) if config.adapter == "heads" else LowRankTrained(base, config.low_rank, seed=0)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FinetuningBenchmarkOptions:
    """Options of `helixfold benchmark finetuning`."""

    adapters: tuple[Adapter, ...] = ("lora", "heads", "full")
    """What is trained: low-rank adapters, the heads, or all parameters."""
    preset: Model = "model_1_ptm"
    """Model."""
    blocks: Annotated[Positive | None, Parameter(show_default="all")] = None
    """Blocks of each stack."""
    crops: Annotated[tuple[Positive, ...], Parameter(metavar="N...")] = (128, 256)
    """Numbers of residues."""
    rows: Positive = 64
    """MSA rows, not counting templates."""
    extra_rows: Positive = 256
    """Extra MSA rows."""
    templates: Positive = 4
    """Number of templates."""
    recompute: Keep = "block"
    """Checkpoint policy: what the backward pass recomputes."""
    dtypes: tuple[Dtype, ...] = ("float32",)
    """Precisions to measure in."""
    device: Device = "cpu"
    """auto, cpu or cuda."""


_USUAL = FinetuningBenchmarkOptions()


def run(options: FinetuningBenchmarkOptions = _USUAL) -> None:
    """Measure and print the memory of a fine-tuning step beside the forecast."""
    blocks = "all blocks" if options.blocks is None else f"{options.blocks} blocks of each stack"
    print(
        f"one step on one example of {options.preset}, {blocks}, {options.rows} rows, {options.extra_rows:,} extra "
        f"rows, {options.templates} templates, recompute {options.recompute}, {torch.get_num_threads()} threads"
    )
    print("MiB; optimizer: gradients, moments and averages, and their share of those of all parameters")
    print(f"{'adapter':8}{'dtype':10}{'crop':>5}{'optimizer':>11}{'share':>9}{'peak':>9}{'predicted':>11}{'/ peak':>8}")
    for dtype in options.dtypes:
        for adapter in options.adapters:
            for crop in options.crops:
                point = Point(
                    adapter=adapter,
                    preset=options.preset,
                    blocks=options.blocks,
                    crop=crop,
                    rows=options.rows,
                    extra_rows=options.extra_rows,
                    templates=options.templates,
                    recompute=options.recompute,
                    dtype=dtype,
                    device=options.device,
                )
                print(_row(point, measure(point)), flush=True)


def _row(point: Point, found: StepMemory) -> str:
    predicted = point.predicted()
    return (
        f"{point.adapter:8}{point.dtype:10}{point.crop:5}{found.optimizer / _MIB:11.1f}{point.share():9.2%}"
        f"{found.peak / _MIB:9,.0f}{predicted / _MIB:11,.0f}{predicted / found.peak:8.2f}"
    )
