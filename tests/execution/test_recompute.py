"""Recompute changes what is kept, and neither the loss nor any gradient by a single bit."""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from helixfold.execution import recompute as subject
from helixfold.execution.recompute import RecomputeConfig, ReusedDropoutMask, recompute
from helixfold.execution.whole import Whole
from helixfold.losses.config import finetuning
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import ConfigError
from helixfold.model.outputs import Outputs
from helixfold.model.update import Update
from helixfold.ops.dispatch import forced
from helixfold.parallel.mesh import Mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.training.presets import tiny
from helixfold.training.step import forward_losses
from tests.losses.test_total import training_batch
from tests.support.networks import random_batch, tiny_model

NONE = RecomputeConfig.everywhere("none")
PARTS = [field.name for field in fields(RecomputeConfig)]
VARIANTS = {
    **{f"{keep} of {part}": replace(NONE, **{part: keep}) for part in PARTS for keep in ("inputs", "block")},
    "operators": RecomputeConfig.everywhere("operators"),
    "inputs": RecomputeConfig.everywhere("inputs"),
    "block": RecomputeConfig.everywhere("block"),
    "default": RecomputeConfig(),
}
STEPS = 2


def loss_of(outputs: Outputs) -> Tensor:
    """A number that depends on everything the network computes."""
    values = [getattr(part, field.name) for part in vars(outputs).values() for field in fields(part)]
    return torch.stack([value.float().square().mean() for value in values if value.requires_grad]).sum()


def one_pass(model: AlphaFold) -> Outputs:
    return model(Whole(), [random_batch()])


def train(model: AlphaFold, dtype: str) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Losses of a few steps with dropout, each after recycling passes without gradient, and the last gradients."""
    config, batch, losses = replace(tiny(), dtype=dtype, loss=finetuning()), training_batch(), []
    assert len(batch.recycling_inputs) > 1
    for step in range(STEPS):
        loss = forward_losses(model, replace(batch, step=step), config, Whole()).total.mean()
        model.zero_grad()
        loss.backward()
        losses.append(loss.detach())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(1e-3 * parameter.grad.sign())
    return losses, {name: each.grad.clone() for name, each in model.named_parameters()}


@cache
def plain(dtype: str) -> tuple[list[Tensor], dict[str, Tensor]]:
    return train(tiny_model().train(), dtype)


def differing(found: tuple[list[Tensor], dict[str, Tensor]], dtype: str) -> list[str]:
    """What is not the same, bit for bit, as without recompute."""
    losses, gradients = plain(dtype)
    steps = [f"loss {step}" for step, loss in enumerate(losses) if not torch.equal(found[0][step], loss)]
    return steps + [name for name, gradient in gradients.items() if not torch.equal(found[1][name], gradient)]


@pytest.mark.parametrize(
    ("variant", "dtype"),
    [
        ("operators", "bfloat16"),
        ("inputs", "float32"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ("operators", "float32"),
                ("inputs", "bfloat16"),
                ("block", "float32"),
                ("block", "bfloat16"),
                ("default", "float32"),
                ("default", "bfloat16"),
            )
        ),
    ],
)
def test_losses_and_gradients_are_those_without_recompute_bit_for_bit(variant: str, dtype: str) -> None:
    model = tiny_model().train()
    recompute(model, VARIANTS[variant])
    assert not differing(train(model, dtype), dtype)


@pytest.mark.parametrize("variant", ["inputs of template", pytest.param("default", marks=pytest.mark.long)])
def test_another_dropout_in_the_second_run_would_be_noticed(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReusedDropoutMask, "__call__", lambda drawn, *given, **named: drawn.method(*given, **named))
    model = tiny_model().train()
    recompute(model, VARIANTS[variant])
    assert differing(train(model, "float32"), "float32")


@pytest.mark.parametrize("variant", ["inputs", "block"])
def test_a_backward_pass_draws_no_random_numbers(variant: str) -> None:
    """So that it can be recorded as a CUDA graph, in which the state of a random stream cannot be restored."""
    model = tiny_model().train()
    recompute(model, VARIANTS[variant])
    with torch.random.fork_rng():
        loss = loss_of(one_pass(model))
        before = torch.get_rng_state()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "set_rng_state", lambda _: pytest.fail("a random state was restored"))
            patch.setattr(torch.Tensor, "bernoulli_", lambda *_: pytest.fail("random numbers were drawn"))
            loss.backward()
        assert torch.equal(torch.get_rng_state(), before)


def runs(model: AlphaFold, keep_gradient: bool = True) -> Counter[str]:
    """How often each module is run by a forward and a backward pass."""
    counts: Counter[str] = Counter()

    def count(name: str) -> Callable[..., None]:
        return lambda *_: counts.update([name])

    handles = [module.register_forward_pre_hook(count(name)) for name, module in model.named_modules()]
    with torch.set_grad_enabled(keep_gradient):
        outputs = one_pass(model)
    if keep_gradient:
        loss_of(outputs).backward()
    for handle in handles:
        handle.remove()
    return counts


@cache
def runs_without_recompute() -> Counter[str]:
    return runs(tiny_model().train())


def parts_run_twice(model: AlphaFold, keep_gradient: bool = True) -> set[str]:
    """Which parts have updates or modules that a pass runs twice as often as it needs to."""
    expected, found = runs_without_recompute(), runs(model, keep_gradient)
    places = {
        "evoformer": "evoformer.blocks.",
        "extra_msa": "extra_msa_stack.blocks.",
        "template": "template_embedder.pair.blocks.",
        "structure": "structure_module.attention.",
    }
    modules = dict(model.named_modules())
    twice = set()
    for part, place in places.items():
        # What the pair stream adds to all iterations alike is computed before them.
        outside = {place.removesuffix("."), "structure_module.attention.pair_bias"}
        inside = [name for name in found if name.startswith(place) and name not in outside]
        inside = [name for name in inside if part == "structure" or isinstance(modules[name], Update)]
        ratios = {found[name] / expected[name] for name in inside}
        assert len(ratios) == 1, ratios
        if ratios != {1.0}:
            assert ratios == {2.0}, ratios
            twice.add(part)
    return twice


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_parts_asked_for_are_run_a_second_time_and_no_others(variant: str) -> None:
    model = tiny_model().train()
    recompute(model, VARIANTS[variant])
    chosen = VARIANTS[variant]
    assert parts_run_twice(model) == {part for part in PARTS if getattr(chosen, part) in ("inputs", "block")}


@pytest.mark.parametrize(
    ("keep", "stretches"), [("none", 0), ("inputs", 9 * 3 + 5 * 2 + 2 * 4 + 1), ("block", 3 + 2 + 4 + 1)]
)
def test_a_stretch_is_an_update_or_a_block(keep: str, stretches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three blocks of nine updates, one of five for each of two templates, four iterations, and all angles at once."""
    calls = []
    monkeypatch.setattr(
        subject, "checkpoint", lambda *given, **options: calls.append(1) or checkpoint(*given, **options)
    )
    model = tiny_model().train()
    recompute(model, RecomputeConfig.everywhere(keep))
    one_pass(model)
    assert len(calls) == stretches


def kept(model: AlphaFold) -> int:
    """Bytes of activations, streams apart, that a pass keeps outside of what it recomputes."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = one_pass(model)
    assert outputs.representations.pair.requires_grad
    return sum(storages.values())


def test_little_is_kept_of_what_is_recomputed() -> None:
    model = tiny_model().train()
    # Fused operators keep little of themselves.
    with forced("reference"):
        everything = kept(model)
    for keep in ("inputs", "block"):
        model = tiny_model().train()
        recompute(model, RecomputeConfig.everywhere(keep))
        assert kept(model) < 0.25 * everything


def test_passes_without_gradient_run_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "checkpoint", lambda *_, **__: pytest.fail("nothing is to be kept"))
    for keep in ("inputs", "block"):
        model = tiny_model().eval()
        recompute(model, RecomputeConfig.everywhere(keep))
        assert parts_run_twice(model, keep_gradient=False) == set()


def test_a_second_choice_replaces_the_first() -> None:
    model = tiny_model().train()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    for keep in ("block", "inputs"):
        parallelize(model, Mesh.alone(), RecomputeConfig.everywhere(keep))
    assert parts_run_twice(model) == set(PARTS)
    parallelize(model, Mesh.alone())
    assert parts_run_twice(model) == set()
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before


def test_names_and_parameters_stay_as_they_are() -> None:
    for keep in ("inputs", "block"):
        model = tiny_model()
        before = {name: each.data_ptr() for name, each in model.state_dict().items()}
        recompute(model, RecomputeConfig.everywhere(keep))
        assert {name: each.data_ptr() for name, each in model.state_dict().items()} == before


@pytest.mark.parametrize("keep", ["inputs", "block"])
def test_a_copy_of_the_model_recomputes_with_its_own_parameters(keep: str) -> None:
    model = tiny_model().eval()
    recompute(model, RecomputeConfig.everywhere(keep))
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    expected = loss_of(one_pass(model))
    loss_of(one_pass(other)).backward()
    assert all(each.grad is None for each in model.parameters())
    assert torch.equal(loss_of(one_pass(model)), expected)
    assert not torch.equal(loss_of(one_pass(other)), expected)


def test_a_model_without_templates_has_the_other_parts_recomputed() -> None:
    model = AlphaFold(replace(tiny_model().config, template=None)).train()
    recompute(model, RecomputeConfig())
    loss_of(one_pass(model)).backward()


def test_unknown_choices_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"RecomputeConfig.template must be .*, got 'layer'"):
        RecomputeConfig.from_dict({**RecomputeConfig().to_dict(), "template": "layer"})
    # Tests check the types of arguments; a program does not, so the class itself must.
    config = RecomputeConfig()
    object.__setattr__(config, "template", "layer")
    with pytest.raises(ConfigError, match=r"template must be one of auto, none, operators, inputs, block, got 'layer'"):
        config.__post_init__()
    assert RecomputeConfig.from_dict(RecomputeConfig().to_dict()) == RecomputeConfig()


def test_a_choice_that_is_not_settled_is_not_applied() -> None:
    config = RecomputeConfig(extra_msa="auto")
    assert not config.is_settled
    assert RecomputeConfig().is_settled
    with pytest.raises(ConfigError, match="with auto cannot be applied: got evoformer block, extra_msa auto,"):
        recompute(tiny_model(), config)
