"""When islands meet, everyone goes on from the same parameters, and one that moved oddly far counts for nothing."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier
from typing import Literal

import pytest
import torch
from torch import Tensor

from data_pipeline.io.config import ConfigError
from helixfold.optim.config import OptimizerConfig, OuterConfig, PenaltyConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.optim.outer import NormStatistics, OuterOptimizer, OuterReport, module_of
from tests.optim.networks import Small, float32_parameters

ISLANDS = 3
MODULES = ("first", "second", "tied", "unused", "heads")


class Sea:
    """Islands in one process, one thread each."""

    def __init__(self, config: OuterConfig) -> None:
        self.optimizers = []
        for _ in range(ISLANDS):
            torch.manual_seed(0)
            inner = OptimizerConfig(ema_decay=0.9)
            self.optimizers.append(FlatOptimizer(Small(), inner, keep_float32=["heads"], averages=False))
        self.outers = [OuterOptimizer(each, config, index) for index, each in enumerate(self.optimizers)]
        self._barrier, self._given = Barrier(ISLANDS), [torch.empty(0)] * ISLANDS

    def _sum(self, index: int, tensor: Tensor) -> None:
        self._given[index] = tensor.clone()
        self._barrier.wait()
        tensor.copy_(self._given[0] + self._given[1] + self._given[2])
        self._barrier.wait()

    def meet(self) -> list[OuterReport]:
        def step(index: int) -> OuterReport:
            return self.outers[index].step(lambda tensor: self._sum(index, tensor))

        with ThreadPoolExecutor(ISLANDS) as pool:
            return list(pool.map(step, range(ISLANDS)))

    def move(self, seed: int, far: tuple[int, ...] = ()) -> None:
        """Each island moves all its parameters, those named a thousand times as far in one module."""
        generator = torch.Generator().manual_seed(seed)
        for index, optimizer in enumerate(self.optimizers):
            for name, parameter in float32_parameters(optimizer).items():
                if name != "frozen":
                    size = 1000 if index in far and name.startswith("second") else 1
                    parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1 * size)


def modules(optimizer: FlatOptimizer) -> dict[str, dict[str, Tensor]]:
    """A copy of the parameters, by modules and names."""
    found: dict[str, dict[str, Tensor]] = {module: {} for module in MODULES}
    for name, parameter in float32_parameters(optimizer).items():
        if name not in ("frozen", "tied.weight"):
            found[module_of(name)][name] = parameter.double()
    return found


def norm_of(tensors: dict[str, Tensor]) -> float:
    return sum(float(tensor.square().sum()) for tensor in tensors.values()) ** 0.5


@pytest.mark.parametrize("average", ["penalised", "plain"])
def test_a_meeting_is_what_a_plain_loop_makes(average: Literal["penalised", "plain"]) -> None:
    config = OuterConfig(
        islands=ISLANDS,
        every=4,
        average=average,
        learning_rate=0.8,
        momentum=0.85,
        penalty=PenaltyConfig(clip_norm=1.0),
    )
    sea = Sea(config)
    anchor = modules(sea.optimizers[0])
    averages = {module: {name: value.clone() for name, value in part.items()} for module, part in anchor.items()}
    momentum = {
        module: {name: torch.zeros_like(value) for name, value in part.items()} for module, part in anchor.items()
    }
    for meeting in range(3):
        sea.move(meeting)
        own = [modules(optimizer) for optimizer in sea.optimizers]
        for module, tensors in anchor.items():
            moved = [{name: value - each[module][name] for name, value in tensors.items()} for each in own]
            weights = torch.full((ISLANDS,), 1 / ISLANDS, dtype=torch.float64)
            if average == "penalised":
                weights = torch.tensor([-norm_of(each) for each in moved], dtype=torch.float64).softmax(0)
            mean = {name: sum(weights[i] * moved[i][name] for i in range(ISLANDS)) for name in tensors}
            factor = min(1.0, 1.0 / norm_of(mean)) if average == "penalised" else 1.0
            for name, value in tensors.items():
                gradient = factor * mean[name]
                momentum[module][name] = 0.85 * momentum[module][name] + gradient
                value.sub_(0.8 * (gradient + 0.85 * momentum[module][name]))
                averages[module][name].lerp_(value, 1 - 0.9**4)
        assert sea.meet() == [OuterReport(left_out=0, rolled_back=0)] * ISLANDS
        for optimizer in sea.optimizers:
            found, smooth = float32_parameters(optimizer), optimizer.averaged()
            for module, tensors in anchor.items():
                for name, value in tensors.items():
                    torch.testing.assert_close(found[name].double(), value, rtol=0, atol=1e-6)
                    torch.testing.assert_close(smooth[name].double(), averages[module][name], rtol=0, atol=1e-6)
    for one, other in pairwise(sea.optimizers):
        assert torch.equal(one.tensors()["master"], other.tensors()["master"])


def test_who_moved_oddly_far_is_left_out_and_where_all_did_nothing_moves() -> None:
    sea = Sea(OuterConfig(islands=ISLANDS, momentum=0.0, learning_rate=1.0))
    for meeting in range(12):
        sea.move(meeting)
        sea.meet()
    before = float32_parameters(sea.optimizers[0])["second.weight"].clone()
    sea.move(12, far=(1,))
    first, last = (float32_parameters(sea.optimizers[i])["second.weight"].clone() for i in (0, 2))
    assert sea.meet() == [OuterReport(left_out=1, rolled_back=0)] * ISLANDS
    after = float32_parameters(sea.optimizers[1])["second.weight"].clone()
    # Between what the two others moved, and not where the one that is left out went.
    share = ((after - before) * (first - last)).sum() - ((last - before) * (first - last)).sum()
    assert 0 < share < (first - last).square().sum()
    assert (after - before).abs().max() < 1

    sea.move(13, far=(0, 1, 2))
    assert sea.meet() == [OuterReport(left_out=ISLANDS, rolled_back=1)] * ISLANDS
    for optimizer in sea.optimizers:
        assert torch.equal(float32_parameters(optimizer)["second.weight"], after)


def test_a_norm_that_is_not_finite_never_counts_and_a_new_level_is_soon_accepted() -> None:
    config = PenaltyConfig(settle=2)
    statistics = NormStatistics.none(1, 2, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        norms = 1 + 0.1 * torch.rand(1, 2, generator=generator, dtype=torch.float64)
        statistics.add_(norms, config)
    assert statistics.anomalous(torch.tensor([[torch.nan, 1.05]], dtype=torch.float64), config).tolist() == [
        [True, False]
    ]
    statistics.add_(torch.tensor([[torch.inf, 1e30]], dtype=torch.float64), config)
    assert bool(statistics.mean.isfinite().all())
    level, meetings = torch.full((1, 2), 10.0, dtype=torch.float64), 0
    assert bool(statistics.anomalous(level, config).all())
    while bool(statistics.anomalous(level, config).any()):
        statistics.add_(level, config)
        meetings += 1
    assert 3 <= meetings <= 15


def test_islands_that_agree_move_as_far_as_one_that_sees_the_whole_batch() -> None:
    assert OuterConfig(islands=4).step_size == 2.0
    assert OuterConfig(islands=4, learning_rate=0.7).step_size == 0.7
    sea = Sea(OuterConfig(islands=ISLANDS, average="plain"))
    before = float32_parameters(sea.optimizers[0])["second.weight"].clone()
    for optimizer in sea.optimizers:
        float32_parameters(optimizer)["second.weight"].add_(0.1)
    sea.meet()
    torch.testing.assert_close(float32_parameters(sea.optimizers[0])["second.weight"], before + 0.1 * ISLANDS**0.5)


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"islands": 0}, {"every": 0}, {"momentum": 1.0}, {"learning_rate": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            OuterConfig(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="threshold"):
        PenaltyConfig(threshold=0.0)
    assert module_of("evoformer.blocks.3.row_attention.query") == "evoformer.blocks.3"
