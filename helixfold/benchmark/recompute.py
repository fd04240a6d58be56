"""Measure and predict the memory of training for `helixfold benchmark recompute`, by what is recomputed."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from data_pipeline.transforms import training as examples
from helixfold.annotations import Parameter
from helixfold.benchmark.options import Device, Model
from helixfold.benchmark.timing import peak_beyond, settle
from helixfold.execution.allocator import keeping_freed_memory
from helixfold.execution.counter import Counter
from helixfold.execution.device import pick_device
from helixfold.execution.dtypes import DTYPES
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import Keep, RecomputeConfig, recompute
from helixfold.execution.whole import Whole
from helixfold.losses.config import initial_training
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.evoformer import EvoformerStack
from helixfold.ops.card import Card, card_of, described
from helixfold.ops.dispatch import forced
from helixfold.options import Positive
from helixfold.parallel.launch import on_ranks
from helixfold.parallel.mesh import Mesh
from helixfold.planning.prediction import META
from helixfold.planning.recompute_choice import CHECKPOINT_POLICIES
from helixfold.planning.size import PassSize, dtype_name, of_blocks
from helixfold.planning.training import KEPT_BLOCKS, TrainingNeeds, beside_tensors
from helixfold.predict.options import Dtype
from helixfold.presets import preset

EVOFORMER, EXTRA_MSA, WHOLE = PARTS = ("evoformer", "extra_msa", "whole")
STAGES = {"initial_training": examples.initial_training, "finetuning": examples.finetuning}
# The rows that are printed: whether operators are plain, and the checkpoint policy.
_WAYS: tuple[tuple[bool, Keep], ...] = ((True, "none"), *((False, keep) for keep in CHECKPOINT_POLICIES))


@dataclass(frozen=True, kw_only=True)
class Point:
    """A measurement to make: forward and backward of `blocks` of a stack, or of a whole network with its losses.

    A stack also has the rows of templates in its MSA. `keep` is the checkpoint policy; `plain` uses the reference of
    every operator.
    """

    part: str
    preset: str
    size: PassSize
    device: str
    blocks: int = 1
    keep: Keep = "none"
    plain: bool = False

    @property
    def card(self) -> Card:
        """Card of the device that runs the point."""
        return card_of(pick_device(self.device))

    def predicted(self) -> int:
        """Return the forecast of peak memory in bytes, counted by running the point on meta tensors."""
        with described(self.card), META, forced("reference") if self.plain else nullcontext(), Counter() as counter:
            run = prepared(self, META)
            counter.begin("run")
            start = counter.live
            run(self)
        return counter.peak - start + beside_tensors(self.card, preset(self.preset).model, self.size)


def measure(point: Point) -> int:
    """Return the peak memory in bytes beyond parameters and their gradients, measured in a fresh process."""
    return on_ranks(1, _measure, point, device=point.device, threads=torch.get_num_threads())


def _measure(mesh: Mesh, point: Point) -> int:
    torch.manual_seed(0)
    with keeping_freed_memory(KEPT_BLOCKS), forced("reference") if point.plain else nullcontext():
        run = prepared(point, mesh.device)
        settle()
        return peak_beyond(lambda: run(point), mesh.device)


def prepared(point: Point, device: torch.device) -> Callable[[Point], None]:
    """Return a function that runs a point.

    It has been run once, so that gradients, and what libraries allocate once, exist before memory is measured.
    """
    run = _network(point, device) if point.part == WHOLE else _stack(point, device)
    run(replace(point, size=replace(point.size, residues=8, msa_rows=4, extra_rows=4)))
    return run


def _stack(point: Point, device: torch.device) -> Callable[[Point], None]:
    """Return a function that runs blocks on random streams; the extra-MSA stack passes on only the pair."""
    config, is_extra = preset(point.preset).model, point.part == EXTRA_MSA
    # `recompute` looks for blocks in a network, of which only this stack has real parameters.
    with torch.device("meta"):
        network = AlphaFold(of_blocks(config, 1))
    stack_config = replace(config.extra_msa if is_extra else config.evoformer, blocks=point.blocks)
    with device:
        stack = EvoformerStack(stack_config, config.c_z, global_columns=is_extra).train()
    name = "extra_msa_stack" if is_extra else "evoformer"
    setattr(network, name, stack)
    recompute(network, RecomputeConfig.everywhere(point.keep))

    def run(point: Point) -> None:
        size, residues = point.size, point.size.residues
        rows = size.extra_rows if is_extra else size.msa_rows + size.templates

        def stream(count: int, channels: int) -> Tensor:
            return torch.randn(1, count, residues, channels, dtype=size.dtype, device=device, requires_grad=True)

        masks = [torch.ones(1, count, residues, device=device) for count in (rows, residues)]
        # By way of the network, which must live as long: its parameters are counted, and if it were garbage the peak
        # would depend on when that is collected.
        found = getattr(network, name)(Whole(), stream(rows, stack_config.c_m), stream(residues, config.c_z), *masks)
        left = found[is_extra:]
        del found
        torch.autograd.backward(left, [torch.ones_like(each) for each in left])

    return run


def _network(point: Point, device: torch.device) -> Callable[[Point], None]:
    """Return a function that runs the last pass of a training step, after recycling, on one sample."""
    network = AlphaFold(preset(point.preset).model).to(device).train()
    recompute(network, RecomputeConfig.everywhere(point.keep))

    def run(point: Point) -> None:
        size = point.size
        batch = random_batch(
            size.residues, size.msa_rows, size.extra_rows, size.templates, device, method=network.config.method
        )
        labels = random_labels(batch)
        outputs = network(Whole(), [batch], None, size.dtype)
        losses = total_loss(outputs, batch, labels, initial_training(network.config.method))
        del outputs
        losses.total.sum().backward()

    return run


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RecomputeOptions:
    """Options of `helixfold benchmark recompute`."""

    parts: Annotated[tuple[str, ...], Parameter(choices=tuple(PARTS))] = tuple(PARTS)
    """Parts to measure: single blocks, or a whole network."""
    preset: Model = "model_1"
    """Model of the blocks."""
    network: Model = "tiny"
    """Model that is measured whole."""
    stages: Annotated[tuple[str, ...], Parameter(choices=tuple(STAGES))] = tuple(STAGES)
    """Stages of training."""
    crop: Annotated[Positive | None, Parameter(show_default="the stage's")] = None
    """Number of residues."""
    rows: Annotated[Positive | None, Parameter(show_default="the stage's")] = None
    """Rows of the MSA, templates among them."""
    extra_rows: Annotated[Positive | None, Parameter(show_default="the stage's")] = None
    """Extra MSA rows."""
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16")
    """Precisions to measure in."""
    device: Device = "cpu"
    """auto, cpu or cuda."""
    no_plain: bool = False
    """Leave out plain operators, which take most of the memory and time."""


_USUAL = RecomputeOptions()


def run(options: RecomputeOptions = _USUAL) -> None:
    """Measure and print the memory of training by what is recomputed."""
    print(f"forward and backward with dropout, one sample, {torch.get_num_threads()} threads; MiB beyond parameters")
    for stage in options.stages:
        example = STAGES[stage]()
        sampling = example.sampling
        rows = options.rows or sampling.max_msa_clusters + sampling.max_templates
        sizes = [
            PassSize(
                residues=options.crop or example.crop_size,
                msa_rows=max(1, rows - sampling.max_templates),
                extra_rows=options.extra_rows or sampling.max_extra_msa,
                templates=sampling.max_templates,
                dtype=DTYPES[dtype],
            )
            for dtype in options.dtypes
        ]
        print(f"\n{stage}: {sizes[0].residues} residues, {rows} rows, {sizes[0].extra_rows:,} extra rows")
        columns = f"{'measured':>9} {'predicted':>9} {'ratio':>6}"
        print(f"{'':28} {'at the peak':^26}   {'kept by each further block':^26}")
        print(f"{'':10} {'dtype':9} {'recompute':12} {columns}   {columns}")
        for part in options.parts:
            name = options.network if part == WHOLE else options.preset
            for size in sizes:
                for plain, keep in _WAYS[options.no_plain :]:
                    point = Point(part=part, preset=name, size=size, device=options.device, keep=keep, plain=plain)
                    print(_row(point), flush=True)
        for size in sizes:
            _print_whole(options.preset, size, card_of(pick_device(options.device)))


def _row(point: Point) -> str:
    """Return the line of a point: one block and what a second one adds, or a whole network."""
    peak = measure(point)
    cells = _cells(peak, point.predicted())
    if point.part != WHOLE:
        two = replace(point, blocks=2)
        cells += "   " + _cells(measure(two) - peak, two.predicted() - point.predicted())
    name = point.preset if point.part == WHOLE else point.part
    return f"{name:10} {dtype_name(point.size.dtype):9} {'plain, ' * point.plain + point.keep:12} {cells}"


def _cells(measured: int, predicted: int) -> str:
    return f"{measured / 2**20:9.0f} {predicted / 2**20:9.0f} {predicted / max(measured, 1):6.2f}"


def _print_whole(name: str, size: PassSize, card: Card) -> None:
    """Print the forecast of memory by stage for the whole network of a preset, with all its blocks."""
    needs = TrainingNeeds(model=preset(name).model, size=size, card=card)
    estimates = {keep: needs.forecast(RecomputeConfig.everywhere(keep)) for keep in CHECKPOINT_POLICIES}
    stages = estimates["none"].stages
    title = f"all of {name}, {dtype_name(size.dtype)}: GiB predicted"
    print(f"{title:44}{''.join(f'{stage:>12}' for stage in stages)}{'peak':>8}")
    for keep, estimate in estimates.items():
        cells = "".join(f"{estimate.stages[stage] / 2**30:12.2f}" for stage in stages)
        print(f"{keep:44}{cells}{estimate.peak / 2**30:8.2f}")
