"""The parts of the network on meta tensors, each with the tensors whose gradients it is asked for."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from helixfold.batch import Batch
from helixfold.benchmark.static.operator_log import META, OperatorLog
from helixfold.config import StackConfig
from helixfold.execution.nested import tensors, with_tensors_changed
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.whole import Whole
from helixfold.losses.config import LossConfig, finetuning, initial_training
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import IN_FLOAT32, AlphaFold
from helixfold.model.evoformer import EvoformerStack, outer_mask
from helixfold.model.outputs import Outputs
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.presets import preset

# Submodules whose parameters are float32 in training.


@dataclass(frozen=True, kw_only=True)
class Part:
    """Code to run, and the tensors whose gradients are computed after it; a prediction has none.

    `module` has the parameters, if there are some. If `accumulates`, gradients are added to what the parameters hold.
    """

    name: str
    run: Callable[[], Any]
    module: nn.Module | None = None
    leaves: list[Tensor] = field(default_factory=list)
    accumulates: bool = False


@dataclass(frozen=True, kw_only=True)
class PassSizes:
    """Sizes of a pass: a preset's name, residues, rows of both MSAs and templates, and the dtype of the trunk."""

    preset: str
    residues: int
    rows: int
    extra_rows: int
    templates: int = 4
    dtype: torch.dtype = torch.bfloat16


def parts(sizes: PassSizes) -> Iterator[Part]:
    """Yield the parts of the network in the order in which `helixfold benchmark launches` shows them."""
    model = preset(sizes.preset).model
    evoformer = partial(_block, sizes, model.evoformer, sizes.rows)
    low = sizes.dtype
    yield evoformer(low, name="Evoformer block")
    yield evoformer(torch.float32, name="Evoformer block, float32 parameters")
    yield evoformer(low, name="Evoformer block, prediction", learns=False)
    yield evoformer(torch.float32, name="Evoformer block, prediction, float32 parameters", learns=False)
    yield _block(sizes, model.extra_msa, sizes.extra_rows, low, name="extra-MSA block", global_columns=True)
    with META:
        network = AlphaFold(model).train()
    for name, child in network.named_children():
        child.to(torch.float32 if name in IN_FLOAT32 else low)
    batch = random_batch(sizes.residues, sizes.rows, sizes.extra_rows, sizes.templates, META, method=model.method)
    yield from _network_parts(network, batch, sizes)
    with META:
        network = AlphaFold(model)
    yield _update(network, low)


def _network_parts(network: AlphaFold, batch: Batch, sizes: PassSizes) -> Iterator[Part]:
    run, residues = Whole(), sizes.residues
    pair = _leaf(1, residues, residues, network.config.c_z, dtype=sizes.dtype)
    single = _leaf(1, residues, network.config.c_s, dtype=sizes.dtype)
    templates = network.template_embedder
    if templates is not None:
        yield Part(
            name="template embedding",
            run=lambda: templates(run, batch, pair, outer_mask(batch.seq_mask)),
            module=templates,
            leaves=[pair, *templates.parameters()],
        )
    structure = network.structure_module
    yield Part(
        name="structure module",
        run=lambda: structure(run, single, pair, batch.aatype, batch.seq_mask),
        module=structure,
        leaves=[single, pair, *structure.parameters()],
    )
    labels, method = random_labels(batch), network.config.method
    with torch.no_grad(), OperatorLog():
        outputs = network(run, [batch], None, sizes.dtype)
    outputs = with_tensors_changed(lambda each: each.detach().requires_grad_(each.is_floating_point()), outputs)

    def losses(given: Outputs | None, config: LossConfig) -> Tensor:
        computed = network(run, [batch], None, sizes.dtype) if given is None else given
        return total_loss(computed, batch, labels, config).total.sum()

    for stage, config in (("initial training", initial_training(method)), ("fine-tuning", finetuning(method))):
        yield Part(name=f"losses of {stage}", run=partial(losses, outputs, config), leaves=list(tensors(outputs)))
    yield Part(name="prediction pass", run=partial(network.fold, run, [batch], None, sizes.dtype), module=network)
    yield Part(
        name="training step, without recycling and update",
        run=partial(losses, None, initial_training(method)),
        module=network,
        leaves=list(network.parameters()),
        accumulates=True,
    )


def _update(network: AlphaFold, dtype: torch.dtype) -> Part:
    """Return the update of the parameters after a step of one micro-batch."""
    optimizer = FlatOptimizer(network, OptimizerConfig(), working_dtype=dtype, keep_float32=IN_FLOAT32)

    def run() -> None:
        optimizer.collect(last=True)
        optimizer.step(1e-3, micro_batches=1)

    return Part(name="update of the parameters", run=run, module=network)


def _block(
    sizes: PassSizes,
    config: StackConfig,
    rows: int,
    parameters: torch.dtype,
    *,
    name: str,
    learns: bool = True,
    global_columns: bool = False,
) -> Part:
    """Return a block as a part; `parameters` is the dtype of its parameters."""
    residues, c_z = sizes.residues, preset(sizes.preset).model.c_z
    with META:
        stack = EvoformerStack(replace(config, blocks=1), c_z, global_columns=global_columns).to(parameters)
        masks = torch.empty(1, rows, residues), torch.empty(1, residues, residues)
    stack.train(learns).requires_grad_(learns)
    streams = [
        _leaf(1, count, residues, channels, dtype=sizes.dtype).requires_grad_(learns)
        for count, channels in ((rows, config.c_m), (residues, c_z))
    ]
    leaves = [*streams, *stack.parameters()] if learns else []
    return Part(name=name, run=lambda: stack(Whole(), *streams, *masks), module=stack, leaves=leaves)


def _leaf(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META, requires_grad=True)
