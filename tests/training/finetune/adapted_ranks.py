"""Gradients of low-rank changes, on one process and on the ranks of a layout, beside what the chain rule gives."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.execution.whole import Whole
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import OuterProductPosition
from helixfold.model.update import Executor
from helixfold.parallel.mesh import Mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.training.finetune.adapted import FrozenParameters, LowRankTrained
from helixfold.training.stopping import StopRequest
from helixfold.weights.low_rank import LORA_A, LORA_B, MAGNITUDE, LowRankConfig, row_lengths
from tests.parallel.hybrid import LOSS, joined, order_on, sample
from tests.support.networks import tiny_model
from tests.training.runs import small_config, small_run

# Maps of every part of the network, also such as are used several times in a pass.
LOW_RANK = LowRankConfig(
    rank=3, alpha=5.0, targets="evoformer.*, structure_module.*, extra_msa_stack.*attention*, single"
)


def adapted(config: LowRankConfig, dtype: torch.dtype, order: OuterProductPosition = "middle") -> LowRankTrained:
    """A tiny network with changes of random size."""
    base = tiny_model(order).to(dtype)
    frozen = FrozenParameters.of(base.state_dict(), base.config, "base", torch.device("cpu"))
    trained = LowRankTrained(frozen, config, seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in trained.matrices.named_parameters():
        if name.endswith(LORA_B):
            parameter.data.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
        if name.endswith(MAGNITUDE):
            parameter.data.mul_(1.05)
    return trained


def learn(model: AlphaFold, run: Executor, parts: Iterable[int], dtype: torch.dtype) -> Tensor:
    """The summed losses of some parts, each after a recycling pass, with dropout."""
    total = torch.zeros((), dtype=dtype)
    for part in parts:
        batch, labels = sample(part, dtype)
        torch.manual_seed(100 + part)
        with torch.no_grad():
            previous = model.fold(run, [batch], None, dtype).recycled()
        total = total + total_loss(model(run, [batch], previous, dtype), batch, labels, LOSS).total.sum()
    return total


def by_the_chain_rule(trained: LowRankTrained, parts: Sequence[int], dtype: torch.dtype) -> dict[str, Tensor]:
    """Gradients of A, B and lengths from those of W + scale B A, which are the parameters of an ordinary model."""
    numbers = {name: parameter.detach() for name, parameter in trained.matrices.named_parameters()}
    model = AlphaFold(trained.base.config).to(dtype).train()
    model.load_state_dict(trained.state(numbers))
    learn(model, Whole(), parts, dtype).backward()
    scale, found = trained.config.scale, {}
    for name in trained.config.matching_maps({name: tuple(each.shape) for name, each in trained.base.state.items()}):
        gradient = model.get_parameter(f"{name}.weight").grad
        a, b = numbers[f"{name}.{LORA_A}"], numbers[f"{name}.{LORA_B}"]
        gradient = torch.zeros(len(b), a.shape[1], dtype=dtype) if gradient is None else gradient
        if (magnitude := numbers.get(f"{name}.{MAGNITUDE}")) is not None:
            changed = trained.base.state[f"{name}.weight"] + scale * (b @ a)
            lengths = row_lengths(changed).clamp(min=torch.finfo(dtype).tiny)
            found[f"{name}.{MAGNITUDE}"] = (gradient * changed).sum(1) / lengths
            gradient = gradient * (magnitude / lengths)[:, None]
        found |= {f"{name}.{LORA_A}": scale * b.T @ gradient, f"{name}.{LORA_B}": scale * gradient @ a.T}
    return found


def worst(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Largest deviation, in units of the largest gradient of a tensor, or of a hundredth of that of all."""
    assert found.keys() == expected.keys()
    largest = max(float(each.abs().max()) for each in expected.values())
    return max(
        float((found[name] - each).abs().max() / each.abs().max().clamp(min=0.01 * largest))
        for name, each in expected.items()
    )


def gradients(trained: LowRankTrained) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in trained.matrices.named_parameters()
    }


def learnt(trained: LowRankTrained, mesh: Mesh, keep: Keep, parts: Iterable[int], dtype: torch.dtype) -> None:
    """Add the gradients of some parts to those of the numbers."""
    run = parallelize(trained.model.train(), mesh, RecomputeConfig.everywhere(keep))
    for part in parts:
        trained.apply()
        learn(trained.model, run, [part], dtype).backward()
    trained.release()


def learn_on_ranks(layout: str, keeps: Sequence[Keep]) -> None:
    """Gradients on ranks are those that the chain rule gives for a process alone, whatever is recomputed."""
    with joined(layout) as mesh:
        parts = range(mesh.layout.dp)
        for keep in keeps:
            trained = adapted(LOW_RANK, torch.float64, order_on(mesh.layout, "middle"))
            expected = by_the_chain_rule(trained, parts, torch.float64)
            learnt(trained, mesh, keep, mesh.micro_batches(len(parts)), torch.float64)
            found = gradients(trained)
            for gradient in found.values():
                dist.all_reduce(gradient)
                gradient.div_(mesh.layout.sharing)
            assert worst(found, expected) < 1e-9, keep


def train_on_ranks(layout: str, directory: Path) -> None:
    """A run's numbers are the same on all ranks, and those of a process alone but for rounding."""
    config = small_config(steps=4, save_every=2)
    with joined(layout) as mesh:
        model = small_run(directory / f"base_{mesh.rank}", config).model
        frozen = FrozenParameters.of(model.state_dict(), config.model, "base", mesh.device)
        settings = LowRankConfig(rank=2, targets="evoformer.*")
        found = small_run(directory / "together", config, mesh=mesh, trained=LowRankTrained(frozen, settings, seed=0))
        assert found.run(StopRequest())
        own = found.optimizer.tensors()["master"]
        everyone = [torch.empty_like(own) for _ in range(mesh.size)]
        dist.all_gather(everyone, own)
        assert all((each == own).all() for each in everyone)
        if mesh.is_first:
            alone = small_run(directory / "alone", config, trained=LowRankTrained(frozen, settings, seed=0))
            assert alone.run(StopRequest())
            difference = float((own - alone.optimizer.tensors()["master"]).abs().max())
            assert difference < 1e-5, difference
