"""Training in bfloat16: the two streams stay narrow from the embedders to the heads, and gradients reach everything."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from helixfold.execution.whole import Whole
from helixfold.losses.config import LossConfig, finetuning, initial_training
from helixfold.model.alphafold import AlphaFold
from helixfold.model.layers import LayerNorm, Linear
from helixfold.model.presets import tiny
from helixfold.model.update import ContextInput, Update
from helixfold.training import presets
from helixfold.training.step import forward_losses
from tests.losses.test_total import training_batch
from tests.support.networks import random_batch, tiny_model

EMBEDDERS = ("input_embedder", "recycling_embedder", "template_embedder", "extra_msa_embedder")
TRUNK = (*EMBEDDERS, "extra_msa_stack", "evoformer", "single")


class Watching(Whole):
    """`Whole`, keeping note of the dtypes that streams, their contexts' inputs, and their gradients have."""

    def __init__(self) -> None:
        self.streams: set[torch.dtype] = set()
        self.gradients: set[torch.dtype] = set()
        self.calls = 0

    def __call__(
        self, update: Update, stream: Tensor, mask: Tensor, context_from: ContextInput | None = None
    ) -> Tensor:
        changed = super().__call__(update, stream, mask, context_from)
        self.streams |= {each.dtype for each in (stream, changed, *(context_from or ())[:1])}
        changed.register_hook(lambda gradient: self.gradients.add(gradient.dtype))
        self.calls += 1
        return changed


def linears_and_norms(model: AlphaFold) -> Iterator[tuple[str, nn.Module]]:
    """Those that compute themselves; an update's are parameters of its operators."""
    updates = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, Update))
    for name, module in model.named_modules():
        if isinstance(module, Linear | LayerNorm) and not name.startswith(updates):
            yield name, module


@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16])
def test_streams_and_what_is_computed_of_them_stay_narrow(parameters: torch.dtype) -> None:
    model, run, found = tiny_model().train(), Watching(), dict[str, set[torch.dtype]]()
    for name, module in model.named_children():
        if name.startswith(TRUNK):
            module.to(parameters)
    for name, module in linears_and_norms(model):
        module.register_forward_hook(
            lambda _module, given, output, name=name: found.setdefault(name, set()).update(
                (given[0].dtype, output.dtype)
            )
        )
    with torch.no_grad():
        previous = model(Whole(), [random_batch()], None, torch.bfloat16).recycled()
    outputs = model(run, [random_batch()], previous, torch.bfloat16)
    (outputs.logits.distogram.sum() + outputs.logits.masked_msa.sum() + outputs.structure.positions.sum()).backward()
    # Nine updates in each of three blocks, five for each of two templates.
    assert run.calls == 9 * 3 + 5 * 2
    assert run.streams == run.gradients == {torch.bfloat16}
    for name, dtypes in found.items():
        assert dtypes == {torch.bfloat16 if name.startswith(TRUNK) else torch.float32}, name
    # What is looked up, and parameters of operators.
    assert {name for name, _ in linears_and_norms(model)} - found.keys() == {
        "input_embedder.relative_position",
        "template_embedder.pair.norm",
        "template_embedder.attention.key",
        "template_embedder.attention.value",
        "structure_module.norm_pair",
        *(f"structure_module.attention.{name}" for name in ("query", "key_value", "query_points", "key_value_points")),
        "structure_module.attention.pair_bias",
    }


def gradients(model: AlphaFold, loss: LossConfig) -> dict[str, Tensor | None]:
    """Of one part of a step in bfloat16."""
    model.zero_grad()
    config = replace(presets.tiny(), dtype="bfloat16", loss=loss)
    forward_losses(model, training_batch(), config, Whole()).total.mean().backward()
    return {name: each.grad for name, each in model.named_parameters()}


def test_after_a_few_steps_gradients_reach_every_parameter() -> None:
    model, still = AlphaFold(tiny().model).train(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(4):
        found = gradients(model, finetuning())
        assert all(each.isfinite().all() for each in found.values())
        still.append({name for name, each in found.items() if not each.any()})
        optimizer.step()
    # What ends in a map that starts at zero waits until that map has moved, and what is behind it one step longer.
    assert len(still[0]) > len(still[1]) > len(still[2])
    assert not still[3]


def test_heads_whose_loss_has_no_weight_yet_get_no_gradient() -> None:
    found = gradients(tiny_model().train(), initial_training())
    heads = ("experimentally_resolved", "aligned_error")
    unused = {f"heads.{head}.linear.{leaf}" for head in heads for leaf in ("weight", "bias")}
    assert {name for name, each in found.items() if each is None} == unused
