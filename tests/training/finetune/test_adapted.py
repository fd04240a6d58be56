"""Low-rank changes are made outside of the model: what it computes, and its gradients, are those of W + B A."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from data_pipeline.io.errors import InputError
from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.optim.config import OptimizerConfig
from helixfold.parallel.mesh import Mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.training.finetune.adapted import FrozenParameters, HeadsTrained, LowRankTrained
from helixfold.weights.low_rank import LORA_B, LowRankConfig, effective_weight, row_lengths
from tests.support.networks import random_batch, relative_error, tiny_model
from tests.training.finetune.adapted_ranks import (
    LOW_RANK,
    adapted,
    by_the_chain_rule,
    gradients,
    learn,
    learn_on_ranks,
    learnt,
    train_on_ranks,
    worst,
)
from tests.training.ranks import Ranks

pytestmark = pytest.mark.usefixtures("operators_on_small_tensors")

CPU = torch.device("cpu")
VARIANTS = {
    "plain": LOW_RANK,
    "rsLoRA": replace(LOW_RANK, rank_stabilised=True),
    "DoRA": replace(LOW_RANK, decomposed=True),
}


def frozen(model: AlphaFold) -> FrozenParameters:
    return FrozenParameters.of(model.state_dict(), model.config, "base", CPU)


@torch.no_grad()
def outputs(model: AlphaFold) -> list[Tensor]:
    found = model.eval()(Whole(), [random_batch()])
    return [found.structure.positions, found.logits.distogram, found.logits.lddt, found.representations.pair]


@pytest.mark.parametrize("variant", VARIANTS)
def test_before_the_first_step_no_bit_of_an_output_changes(variant: str) -> None:
    trained = LowRankTrained(frozen(tiny_model()), VARIANTS[variant], seed=0)
    trained.apply()
    for found, expected in zip(outputs(trained.model), outputs(tiny_model()), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_merged_parameters_compute_what_the_adapted_model_does(variant: str) -> None:
    trained = adapted(VARIANTS[variant], torch.float32)
    trained.apply()
    merged = AlphaFold(trained.base.config)
    merged.load_state_dict(trained.state(dict(trained.matrices.named_parameters())))
    changed = [relative_error(one, two) for one, two in zip(outputs(merged), outputs(tiny_model()), strict=True)]
    assert min(changed) > 1e-3
    for found, expected in zip(outputs(merged), outputs(trained.model), strict=True):
        assert relative_error(found, expected) < 1e-6


@pytest.mark.parametrize(
    ("keep", "dtype", "variant"),
    [
        *((keep, torch.float64, "plain") for keep in ("none", "inputs", "block")),
        ("none", torch.float32, "plain"),
        ("block", torch.float64, "DoRA"),
    ],
)
def test_gradients_are_those_that_the_chain_rule_gives(keep: Keep, dtype: torch.dtype, variant: str) -> None:
    trained = adapted(VARIANTS[variant], dtype)
    expected = by_the_chain_rule(trained, [0], dtype)
    learnt(trained, Mesh.alone(), keep, [0], dtype)
    assert worst(gradients(trained), expected) < (1e-9 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize(
    ("layout", "ranks", "keeps"),
    [
        ("dp=1,bp=1,dap=2", 2, ("inputs",)),
        pytest.param("dp=1,bp=2,dap=1", 2, ("block",), marks=pytest.mark.long),
        pytest.param("dp=1,bp=2,dap=2", 4, ("block",), marks=pytest.mark.long),
    ],
)
def test_so_they_are_on_several_ranks(layout: str, ranks: int, keeps: tuple[Keep, ...], tmp_path: Path) -> None:
    with Ranks(ranks, tmp_path / "out.txt", learn_on_ranks, layout, keeps) as processes:
        assert processes.finish() == [0] * ranks, processes.printed()


def test_a_run_on_two_ranks_trains_what_one_process_trains(tmp_path: Path) -> None:
    with Ranks(2, tmp_path / "out.txt", train_on_ranks, "dp=2", tmp_path) as processes:
        assert processes.finish() == [0] * 2, processes.printed()


def test_only_the_numbers_have_gradients_moments_and_averages() -> None:
    trained = adapted(LOW_RANK, torch.float32)
    optimizer = trained.optimizer(OptimizerConfig(), torch.float32, averages=True)
    run = parallelize(trained.model.train(), Mesh.alone(), RecomputeConfig.everywhere("none"))
    before = {name: parameter.clone() for name, parameter in trained.matrices.named_parameters()}
    trained.apply()
    optimizer.backward(learn(trained.model, run, [0], torch.float32))
    optimizer.collect()
    optimizer.step(1e-3, micro_batches=1)
    trained.release()
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in trained.model.parameters())
    count = sum(parameter.numel() for parameter in trained.matrices.parameters())
    padded = len(optimizer.tensors()["master"])
    assert count <= padded < 1.5 * count
    assert all(len(tensor) <= padded for tensor in optimizer.tensors().values() if tensor.ndim)
    now = dict(trained.matrices.named_parameters())
    assert sum(not torch.equal(now[name], tensor) for name, tensor in before.items()) > 0.9 * len(before)
    base = tiny_model().state_dict()
    assert all(torch.equal(tensor, base[name]) for name, tensor in trained.model.state_dict().items())


def test_models_share_the_frozen_parameters_in_memory() -> None:
    base = frozen(tiny_model())
    one, two = (LowRankTrained(base, LOW_RANK, seed=seed) for seed in (0, 1))
    for trained in (one, two):
        trained.optimizer(OptimizerConfig(), torch.bfloat16, averages=True)
    names = {name for name, _ in one.model.named_parameters()}
    for name in names:
        assert one.model.get_parameter(name).data_ptr() == two.model.get_parameter(name).data_ptr(), name
    one.apply()
    two_before = two.model.get_parameter("single.weight")
    assert one.model.single.weight.data_ptr() != two_before.data_ptr()
    assert one.model.single.weight.dtype == torch.bfloat16
    assert all(tensor.dtype == torch.bfloat16 for tensor in one.model.input_embedder.state_dict().values())
    assert one.model.structure_module.transition.linear_1.weight.dtype == torch.float32
    assert not torch.equal(*(next(trained.matrices.parameters()) for trained in (one, two)))


def test_heads_are_trained_alone() -> None:
    trained = HeadsTrained(frozen(tiny_model()))
    optimizer = trained.optimizer(OptimizerConfig(), torch.float32, averages=True)
    run = parallelize(trained.model.train(), Mesh.alone(), RecomputeConfig.everywhere("block"))
    trained.apply()
    optimizer.backward(learn(trained.model, run, [0], torch.float32))
    optimizer.collect()
    optimizer.step(1e-3, micro_batches=1)
    base, now = tiny_model().state_dict(), trained.model.state_dict()
    changed = {name for name in now if not torch.equal(now[name], base[name])}
    assert changed
    assert all(name.startswith("heads.") for name in changed)
    merged = trained.state(dict(trained.model.named_parameters()))
    assert all(torch.equal(merged[name], now[name]) for name in now)


def test_a_begins_as_pytorchs_linear_maps_do_and_b_is_zero() -> None:
    base = frozen(tiny_model())
    numbers = dict(LowRankTrained(base, replace(LOW_RANK, rank=64), seed=0).matrices.named_parameters())
    for name, tensor in numbers.items():
        if name.endswith(LORA_B):
            assert not tensor.any()
        else:
            widest = nn.Linear(tensor.shape[1], 64).weight.abs().max()  # 1 / sqrt(inputs), or nearly
            assert 0.9 * widest < tensor.abs().max() < 1.1 * widest


def test_a_pattern_without_a_map_is_refused() -> None:
    with pytest.raises(InputError, match=r"no linear map has a name like 'evofermer\.\*'"):
        LowRankTrained(frozen(tiny_model()), LowRankConfig(targets="evoformer.*,evofermer.*"), seed=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_plain_layers_give_the_numbers_of_peft(variant: str) -> None:
    peft = pytest.importorskip("peft", reason="peft is compared where it is installed")
    config = replace(VARIANTS[variant], alpha=5.0)
    layers = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 5)).double()
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=["0", "2"],
        use_rslora=config.rank_stabilised,
        use_dora=config.decomposed,
    )
    weights = [layers[place].weight.detach().clone() for place in (0, 2)]
    biases = [layers[place].bias.detach().clone() for place in (0, 2)]
    theirs = peft.get_peft_model(layers, settings)
    parameters = dict(theirs.named_parameters())
    x, loss, own = torch.randn(4, 7, dtype=torch.float64), torch.zeros(()), []
    for place, weight in zip((0, 2), weights, strict=True):
        stem = f"base_model.model.{place}"
        a, b = (parameters[f"{stem}.lora_{letter}.default.weight"] for letter in "AB")
        b.data.normal_(0, 0.3)
        tensors = [a.detach().clone().double().requires_grad_(), b.detach().clone().double().requires_grad_()]
        if config.decomposed:
            tensors.append(row_lengths(weight).requires_grad_())
        own.append((weight, tensors))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.data = parameter.data.double()
    theirs(x).square().sum().backward()
    hidden = x
    for number, ((weight, (a, b, *magnitude)), bias) in enumerate(zip(own, biases, strict=True)):
        hidden = hidden @ effective_weight(weight, a, b, config.scale, *magnitude).T + bias
        hidden = hidden.relu() if number == 0 else hidden
    loss = hidden.square().sum()
    loss.backward()
    assert relative_error(hidden, theirs(x)) < 1e-6
    for place, (_, (a, b, *_)) in zip((0, 2), own, strict=True):
        for letter, tensor in (("A", a), ("B", b)):
            gradient = parameters[f"base_model.model.{place}.lora_{letter}.default.weight"].grad
            assert tensor.grad is not None
            assert relative_error(tensor.grad, gradient) < 1e-6


def test_the_scale_is_alpha_over_the_rank_or_its_root() -> None:
    assert LowRankConfig(rank=4, alpha=8).scale == 2
    assert LowRankConfig(rank=4, alpha=8, rank_stabilised=True).scale == 4
    assert math.isclose(LowRankConfig(rank=2, alpha=1, rank_stabilised=True).scale, 2**-0.5)
