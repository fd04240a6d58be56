"""Combine the steps of islands that train apart when they meet: one step of an outer optimiser for all.

DiLoCo (arXiv 2311.08105, Alg. 1) moves an anchor by Nesterov's momentum along the mean of what the islands moved;
EDiT (arXiv 2412.07210) first weakens or leaves out the islands that moved oddly far.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from helixfold.ops.constants import LINE
from helixfold.optim import clip
from helixfold.optim.config import OuterConfig, PenaltyConfig
from helixfold.optim.flat import FlatOptimizer

# A norm enters the moving statistics as at most so many standard deviations above their mean: one that is broken cannot
# blind them, and a lasting change of level is accepted after a few more.
_FARTHEST = 10.0
# The least that a standard deviation counts for, as a part of the mean: norms that never change are no reason to call
# the first that does an anomaly.
_LEAST_DEVIATION = 0.01


@dataclass(frozen=True, kw_only=True)
class NormStatistics:
    """Moving mean and variance of the norms of each island's modules, and how many norms they were made of."""

    mean: Float64[Tensor, "k m"]
    variance: Float64[Tensor, "k m"]
    seen: Float64[Tensor, "k m"]

    @classmethod
    def none(cls, islands: int, modules: int, device: torch.device) -> "NormStatistics":
        mean, variance, seen = (torch.zeros(islands, modules, dtype=torch.float64, device=device) for _ in range(3))
        return cls(mean=mean, variance=variance, seen=seen)

    def deviation(self) -> Float64[Tensor, "k m"]:
        return torch.maximum(self.variance.sqrt(), _LEAST_DEVIATION * self.mean)

    def anomalous(self, norms: Float64[Tensor, "k m"], config: PenaltyConfig) -> Bool[Tensor, "k m"]:
        """Norms that are not finite, or too far above their mean (a z-score) once that has settled."""
        far = (norms - self.mean) > config.threshold * self.deviation()
        return ~norms.isfinite() | (far & (self.seen >= config.settle))

    def add_(self, norms: Float64[Tensor, "k m"], config: PenaltyConfig) -> None:
        """Take in what was seen; a plain mean at first, until its weights fall to those of the moving one."""
        finite = norms.isfinite()
        limit = torch.where(self.seen >= config.settle, self.mean + _FARTHEST * self.deviation(), torch.inf)
        change = torch.minimum(torch.where(finite, norms, self.mean), limit) - self.mean
        rate = (1 / (self.seen + 1)).clamp(min=1 - config.decay) * finite
        self.variance.copy_((1 - rate) * (self.variance + rate * change.square()))
        self.mean.add_(rate * change)
        self.seen.add_(finite)


@dataclass(frozen=True, kw_only=True)
class OuterReport:
    """Outcome of a meeting: how many pairs of island and module were left out, and modules without any island."""

    left_out: int
    rolled_back: int


class OuterOptimizer:
    """Moves what the islands agree on, the anchor, by what each moved on its own; then each begins from there anew.

    All ranks make one and call `step` together. A module is a block or another part of the network, as a parameter's
    name says it. With "penalised" averages, what an island moved in a module counts by the softmax of its negative norm
    and not at all where that is anomalous; a module that no island is left for goes back to the anchor. The mean is
    clipped, module by module. "plain" averages are DiLoCo's.

    The moving average of the weights (`OptimizerConfig.ema_decay`) is one of anchors: it moves when islands meet, at
    once by what `every` steps come to, and is the same on all of them at all times.
    """

    def __init__(self, optimizer: FlatOptimizer, config: OuterConfig, island: int) -> None:
        self._optimizer, self._config, self._island = optimizer, config, island
        state = optimizer.tensors()
        self._master, self._average = state["master"], state["average"]
        self._anchor = self._master.clone()
        self._momentum = torch.zeros_like(self._master)
        device, lines = self._master.device, _lines_of_modules(optimizer)
        self._lines = torch.tensor(lines, device=device)
        self._module_of_line = torch.repeat_interleave(torch.arange(len(lines), device=device), self._lines)
        self._statistics = NormStatistics.none(config.islands, len(lines), device)

    @torch.no_grad()
    def step(self, total: Callable[[Tensor], None]) -> OuterReport:
        """Hold one meeting; `total` replaces a tensor by its sum over the islands, the same to the bit on all ranks."""
        config = self._config
        moved = self._anchor - self._master
        norms = torch.zeros_like(self._statistics.mean)
        norms[self._island] = clip.tensor_norms(moved, self._lines)
        total(norms)
        weights = self._weights(norms)
        own = self._of_lines(weights[self._island].float())
        moved.view(-1, LINE).mul_(own).masked_fill_(own == 0, 0)
        total(moved)
        is_moving = weights.sum(0) > 0
        scale = torch.ones_like(is_moving, dtype=torch.float32)
        if config.average == "penalised":
            scale = clip.factor(clip.tensor_norms(moved, self._lines), config.penalty.clip_norm)
        moved.view(-1, LINE).mul_(self._of_lines(scale))
        self._move(moved, self._of_lines(is_moving))
        return OuterReport(left_out=int((weights == 0).sum()), rolled_back=int((~is_moving).sum()))

    def _weights(self, norms: Float64[Tensor, "k m"]) -> Float64[Tensor, "k m"]:
        """Return how much each island counts in each module; 0 for all where none is fit."""
        if self._config.average == "plain":
            return torch.full_like(norms, 1 / len(norms))
        penalty = self._config.penalty
        is_out = self._statistics.anomalous(norms, penalty)
        self._statistics.add_(norms, penalty)
        return torch.softmax(torch.where(is_out, -torch.inf, -norms), dim=0).nan_to_num(0.0)

    def _move(self, gradient: Tensor, is_moving: Tensor) -> None:
        """Take Nesterov's step where something moves; everyone's parameters are the anchor afterwards."""
        config, rows = self._config, gradient.view(-1, LINE)
        momentum = self._momentum.view(-1, LINE)
        momentum.copy_(torch.where(is_moving, config.momentum * momentum + rows, momentum))
        self._anchor.view(-1, LINE).sub_(
            torch.where(is_moving, rows + config.momentum * momentum, 0.0), alpha=config.step_size
        )
        self._master.copy_(self._anchor)
        self._average.lerp_(self._anchor, 1 - self._optimizer.config.ema_decay**config.every)
        self._optimizer.restored()

    def _of_lines(self, of_modules: Tensor) -> Tensor:
        return of_modules[self._module_of_line, None]

    def tensors(self) -> dict[str, Tensor]:
        """Return what to keep beside the inner optimiser's state, of any island after a meeting; then `restored()`."""
        statistics = self._statistics
        return {
            "outer_momentum": self._momentum,
            "outer_mean": statistics.mean,
            "outer_variance": statistics.variance,
            "outer_seen": statistics.seen,
        }

    def restored(self) -> None:
        """Begin where the inner optimiser's parameters are, after `tensors()` and those were filled."""
        self._anchor.copy_(self._master)


def _lines_of_modules(optimizer: FlatOptimizer) -> list[int]:
    """The lengths of the stretches of flat buffers that belong to one module each."""
    end = len(optimizer.tensors()["master"])
    starts = [next(places)[2] for _, places in groupby(optimizer.layout, lambda place: module_of(place[0]))]
    return [(stop - start) // LINE for start, stop in zip(starts, [*starts[1:], end], strict=True)]


def module_of(name: str) -> str:
    """Return "evoformer.blocks.3", say, for all parameters of that block, and "structure_module" for all of its."""
    parts = name.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdecimal()), 0)
    return ".".join(parts[: number + 1])
