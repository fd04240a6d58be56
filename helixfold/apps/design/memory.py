"""Forecast the memory of a design step: the step itself is counted on tensors that hold no numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

import torch

from data_pipeline.io.errors import InputError, printable
from helixfold.apps.design.options import DesignOptions
from helixfold.apps.design.soft_sequence import AMINO_ACIDS, fold_sequence, with_exact_gradients, with_sequence
from helixfold.apps.design.task import DesignTask
from helixfold.execution.available import available_memory
from helixfold.execution.counter import Counter
from helixfold.execution.device import dtype_on
from helixfold.execution.random_inputs import random_batch
from helixfold.execution.recompute import RecomputeConfig, recompute
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.confidence import plddt, predicted_aligned_error
from helixfold.model.config import ModelConfig
from helixfold.model.presets import Preset
from helixfold.ops.card import Card, card_of, described
from helixfold.planning.executors import RESERVE
from helixfold.planning.size import PassSize, gib
from helixfold.planning.training import beside_tensors, prepared_products

if TYPE_CHECKING:
    from helixfold.weights.find import ReadyModel

_META = torch.device("meta")


@dataclass(frozen=True, kw_only=True)
class StepNeeds:
    """Everything on which the memory of a design step depends: network, size of its input, recycling and recompute."""

    model: ModelConfig
    size: PassSize
    num_recycles: int = 0
    through_recycling: bool = True
    recomputed: RecomputeConfig = field(default_factory=RecomputeConfig)

    def forecast(self, card: Card) -> int:
        """Return the most bytes that a step takes on a card, beyond the loaded network.

        A network with stacks of two blocks is counted; what the first of them keeps for the backward pass stands for
        each further block.
        """
        peak, by_block = _counted(self, card)
        further = {"evoformer": self.model.evoformer.blocks - 2, "extra_msa": self.model.extra_msa.blocks - 2}
        kept = sum(max(0, count) * by_block[stack] for stack, count in further.items())
        return peak + kept + beside_tensors(card, self.model, self.size) + prepared_products(card)


def check_memory(
    task: DesignTask,
    models: Sequence["ReadyModel"],
    options: DesignOptions,
    device: torch.device,
    memory: int | None,
) -> int:
    """Return the forecast of the memory of a design's steps; raise `InputError` if it is more than there is."""
    card = card_of(device)
    needed = max(step_needs(task, model.preset, options, card).forecast(card) for model in models)
    available = available_memory(device) if memory is None else memory
    if RESERVE * needed > available:
        raise InputError(
            f"{printable(task.name)}: a step is forecast to take {gib(needed)} of the {gib(available)} that there are; "
            f"take fewer --num-recycles, --gradients-through last, or fewer residues"
        )
    return needed


def step_needs(task: DesignTask, preset: Preset, options: DesignOptions, card: Card) -> StepNeeds:
    """Return what determines the memory of the steps of a design with one model."""
    slots = 0
    if preset.model.template is not None:
        is_shown = any(chain.is_shown for chain in task.chains)
        slots = preset.sampling.max_templates if preset.model.method == "multimer" else int(is_shown)
    size = PassSize(
        residues=sum(len(chain.aatype) for chain in task.chains),
        msa_rows=1,
        extra_rows=1,
        templates=slots,
        dtype=dtype_on(options.dtype, card),
    )
    return StepNeeds(
        model=preset.model,
        size=size,
        num_recycles=options.num_recycles,
        through_recycling=options.gradients_through == "all",
    )


@cache
def _counted(needs: StepNeeds, card: Card, blocks: int = 2) -> tuple[int, dict[str, int]]:
    """Return the memory of a step of a network with at most so many blocks in a stack, without its parameters.

    It is the bytes of tensors, the most at any time, and by stack those that a block keeps for all passes together.
    """
    model, size = needs.model, needs.size
    small = replace(
        model,
        evoformer=replace(model.evoformer, blocks=min(blocks, model.evoformer.blocks)),
        extra_msa=replace(model.extra_msa, blocks=min(blocks, model.extra_msa.blocks)),
    )
    with described(card), Counter(), _META:
        network = AlphaFold(small).train().requires_grad_(False)
    with_exact_gradients(network)
    recompute(network, needs.recomputed)
    stacks = {"evoformer": network.evoformer, "extra_msa": network.extra_msa_stack}
    starts: dict[str, list[list[int]]] = {name: [[] for _ in stack.blocks] for name, stack in stacks.items()}
    with described(card), Counter() as counter, _META:
        for name, stack in stacks.items():
            for block, live in zip(stack.blocks, starts[name], strict=True):
                block.register_forward_pre_hook(lambda *_, live=live: live.append(counter.live))
        batch = random_batch(size.residues, size.msa_rows, size.extra_rows, size.templates, _META, method=model.method)
        sequence = torch.rand(1, size.residues, AMINO_ACIDS).requires_grad_()
        outputs = fold_sequence(
            network,
            Whole(),
            with_sequence(batch, sequence),
            num_recycles=needs.num_recycles,
            dtype=size.dtype,
            through_recycling=needs.through_recycling,
        )
        # A loss of each head that losses read; what others add is a few tensors of pairs of residues.
        logits = outputs.logits
        losses = [plddt(logits.lddt).sum(), logits.distogram.log_softmax(-1).square().sum()]
        if logits.aligned_error is not None:
            losses.append(predicted_aligned_error(logits.aligned_error)[0].sum())
        del outputs, logits
        torch.stack(losses).sum().backward()
    # Tables that all passes share are made in the first block that reads them, so that differences are never negative.
    # Passes without gradients keep nothing.
    passes = slice(None) if needs.through_recycling else slice(-1, None)
    kept = {
        name: max(0, sum(live[1][passes]) - sum(live[0][passes])) if len(live) > 1 else 0
        for name, live in starts.items()
    }
    return counter.peak, kept
