"""Forecast of the memory of a prediction, from a pass that is run on meta tensors with the given executor and card."""

import itertools
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from data_pipeline.io.errors import choice_problem
from helixfold.execution.counter import Counter
from helixfold.execution.random_inputs import random_batch
from helixfold.execution.slabs import LEAST_ELEMENTS, Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.whole import Whole
from helixfold.model import confidence
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch, sampled_fields
from helixfold.model.config import ModelConfig, of_blocks
from helixfold.model.geometry.frames import BackboneFrames
from helixfold.model.outputs import nothing_recycled
from helixfold.model.structure_module import StructureModule
from helixfold.model.update import Executor
from helixfold.ops.card import Card, described
from helixfold.ops.cpu import loops
from helixfold.parallel.mesh import Layout, Mesh
from helixfold.parallel.parallelize import mesh_executor
from helixfold.planning.counted import counted_once
from helixfold.planning.size import Forecast, PassSize, streams

EXECUTORS = ("whole", "slabs", "spilled")
META = torch.device("meta")
# Bytes that a CPU's libraries take for each thread, for buffers in which matrix products are packed. Measured.
_LIBRARIES = 6 * 2**20
# Unused memory in a CPU's heap, between blocks that are still needed. With the executor "whole" it is a share of all
# tensors, which is larger where compiled loops compute. With slabs it is a multiple of the bytes that temporaries may
# take, but at most a share of all tensors. All were measured; measurements of the same case differ by up to a seventh,
# with where the heap's holes happen to be.
_IDLE_OF_WHOLE, _IDLE_OF_SLABS, _MOST_IDLE = 0.65, 3.5, 0.5
_IDLE_OF_WHOLE_IN_LOOPS = 1.0
# Networks and cards whose tables have been made.
_with_tables: set[tuple[ModelConfig, Card]] = set()


@counted_once
def forecast_prediction(
    config: ModelConfig, size: PassSize, executor: str, card: Card, slab_budget: int | None = None
) -> Forecast:
    """Return the forecast for a recycling iteration after the first, with the computation of confidences.

    `slab_budget` is that of the executors with slabs (see `Slabs`). Raise ValueError if there is no executor of that
    name.
    """
    if executor not in EXECUTORS:
        raise ValueError(f"executor {choice_problem(executor, EXECUTORS)}")
    # Two blocks are enough: without gradients further ones leave nothing more in memory than the second.
    config = of_blocks(config, 2)
    with described(card), torch.no_grad():
        model = _model(config)
        _make_tables(model, card)
        _skip_middle_iterations(model.structure_module)
        within: Whole | Slabs = Whole()
        if executor == "slabs":
            within = Slabs(slab_budget)
        elif executor == "spilled":
            within = Spilled("/", slab_budget, device=META)
        run = mesh_executor(Mesh.simulated(Layout(dap=size.ranks)), within)
        counter = _counted_pass(model, run, size)
    stages = {name: peak for name, peak in counter.peaks.items() if name}
    if card.kind == "cpu":
        of_loops = loops.bytes_taken(*streams(config, size))
        beside = _LIBRARIES * torch.get_num_threads() + of_loops
        stages = {
            name: peak + _idle(executor, peak, size, in_loops=of_loops > 0) + beside for name, peak in stages.items()
        }
    return Forecast(stages=stages, spilled=counter.peak_offloaded)


def _make_tables(model: AlphaFold, card: Card) -> None:
    """Make the tables that stay in memory for all passes on a card, which its first forecast would count.

    They belong to embedders, structure module and heads: the blocks of the stacks, which take most of a pass, are left
    out.
    """
    kind = replace(of_blocks(model.config, 1), structure=replace(model.config.structure, layers=1)), card
    if kind in _with_tables:
        return
    stacks = (model.extra_msa_stack, model.evoformer)
    blocks = [stack.blocks for stack in stacks]
    for stack in stacks:
        stack.blocks = nn.ModuleList()
    one = PassSize(residues=1, msa_rows=1, extra_rows=1, templates=1, dtype=torch.float32)
    _counted_pass(model, Whole(), one)
    for stack, own in zip(stacks, blocks, strict=True):
        stack.blocks = own
    _with_tables.add(kind)


def _skip_middle_iterations(module: StructureModule) -> None:
    """Let only the first and the last iteration run: those between them take as much, and add what they return."""
    compute, numbers = module.iteration, itertools.count()

    def iteration(
        run: Executor, state: torch.Tensor, frames: BackboneFrames, *inputs: Any, **named: Any
    ) -> tuple[torch.Tensor, BackboneFrames]:
        if 0 < next(numbers) % module.layers < module.layers - 1:
            made = {field.name: torch.empty_like(getattr(frames, field.name)) for field in fields(frames)}
            return torch.empty_like(state), BackboneFrames(**made)
        return compute(run, state, frames, *inputs, **named)

    module.iteration = iteration  # type: ignore[method-assign]


def _model(config: ModelConfig) -> AlphaFold:
    with META, Counter():  # with a counter this is faster, since it does not run operators on meta tensors
        return AlphaFold(config).eval()


def _counted_pass(model: AlphaFold, run: Executor, size: PassSize) -> Counter:
    """Return a counter of a recycling iteration after the first, with confidences; its stages are parts of the pass."""
    with Counter("embedding") as counter, ExitStack() as hooks:
        for stage, module in (
            ("templates", model.template_embedder if size.templates else None),
            ("extra MSA", model.extra_msa_stack),
            ("Evoformer", model.evoformer),
            ("structure", model.structure_module),
        ):
            if module is not None:
                begun = module.register_forward_pre_hook(lambda *_, stage=stage: counter.begin(stage))
                hooks.callback(begun.remove)
        with META:
            draws = [
                random_batch(
                    size.residues, size.msa_rows, size.extra_rows, size.templates, META, method=model.config.method
                )
                for _ in range(size.ensemble)
            ]
        # Two templates are enough: a third takes as much as the second.
        fed = [with_templates(draw, 2) for draw in draws]
        folded = model.fold(run, fed, nothing_recycled(run, model.config, draws[0].seq_mask, size.dtype), size.dtype)
        counter.begin("confidence")
        pair = folded.representations.pair
        if (head := model.heads.aligned_error) is not None:
            confidence.aligned_error(run, head, pair, draws[0].seq_mask)
        confidence.expected_distances(run, model.heads.distogram, pair)
        counter.begin("")
    return counter


def _idle(executor: str, peak: int, size: PassSize, *, in_loops: bool) -> int:
    """Return the bytes of unused memory in a CPU's heap for a pass whose tensors take `peak` bytes."""
    if executor == "whole":
        return int((_IDLE_OF_WHOLE_IN_LOOPS if in_loops else _IDLE_OF_WHOLE) * peak)
    temporaries = LEAST_ELEMENTS // size.ranks * size.dtype.itemsize
    return int(min(_MOST_IDLE * peak, _IDLE_OF_SLABS * temporaries))


def with_templates(batch: Batch, most: int) -> Batch:
    """Return the batch with only its first `most` templates, as views of the same memory."""
    names = [name for name in sampled_fields(type(batch)) if "template" in name]
    templates = {name: getattr(batch, name)[:, :most] for name in names}
    return replace(batch, **templates)
