"""Outer optimizer: combines the updates of islands (groups of ranks that train separately) into one step.

DiLoCo (arXiv 2311.08105, Alg. 1) moves the common parameters, called the anchor, along the mean of the islands' updates
with Nesterov momentum. EDiT (arXiv 2412.07210) first reduces the weight of large updates and excludes anomalous ones.
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

# Norms enter the moving statistics with at most this many standard deviations above the mean. A single outlier then has
# little effect, and a permanent change of level is accepted after a few synchronisations.
_MAX_DEVIATIONS = 10.0
# Minimum standard deviation relative to the mean: otherwise the first small change of constant norms is an anomaly.
_MIN_DEVIATION = 0.01


@dataclass(frozen=True, kw_only=True)
class NormStatistics:
    """Moving mean and variance of update norms, for each island and module.

    Shapes have `k` islands and `m` modules. `seen` is the number of finite norms so far.
    """

    mean: Float64[Tensor, "k m"]
    variance: Float64[Tensor, "k m"]
    seen: Float64[Tensor, "k m"]

    @classmethod
    def none(cls, islands: int, modules: int, device: torch.device) -> "NormStatistics":
        """Return the statistics before the first synchronisation."""
        mean, variance, seen = (torch.zeros(islands, modules, dtype=torch.float64, device=device) for _ in range(3))
        return cls(mean=mean, variance=variance, seen=seen)

    def deviation(self) -> Float64[Tensor, "k m"]:
        """Return the standard deviations, at least 1 % of the means."""
        return torch.maximum(self.variance.sqrt(), _MIN_DEVIATION * self.mean)

    def anomalous(self, norms: Float64[Tensor, "k m"], config: PenaltyConfig) -> Bool[Tensor, "k m"]:
        """Return whether each norm is not finite, or is too far above the mean after `config.settle` norms."""
        far = (norms - self.mean) > config.threshold * self.deviation()
        return ~norms.isfinite() | (far & (self.seen >= config.settle))

    def add_(self, norms: Float64[Tensor, "k m"], config: PenaltyConfig) -> None:
        """Update mean and variance with new norms, in place; norms that are not finite are ignored.

        After `config.settle` norms, a norm counts as at most 10 standard deviations above the mean. The mean is a plain
        mean until the weight of a new norm would be less than in the moving average.
        """
        finite = norms.isfinite()
        limit = torch.where(self.seen >= config.settle, self.mean + _MAX_DEVIATIONS * self.deviation(), torch.inf)
        change = torch.minimum(torch.where(finite, norms, self.mean), limit) - self.mean
        rate = (1 / (self.seen + 1)).clamp(min=1 - config.decay) * finite
        self.variance.copy_((1 - rate) * (self.variance + rate * change.square()))
        self.mean.add_(rate * change)
        self.seen.add_(finite)


@dataclass(frozen=True, kw_only=True)
class OuterReport:
    """Outcome of a synchronisation.

    `left_out` is the number of excluded updates of a module by an island. `rolled_back` is the number of modules that
    stay at the anchor because the updates of all islands were excluded.
    """

    left_out: int
    rolled_back: int


class OuterOptimizer:
    """Optimizer that moves the anchor by the islands' updates and sets the parameters of all islands to it.

    The anchor is the parameters after the last synchronisation, equal on all islands. All ranks must create this object
    and call `step` together. A module is a block or another part of the network (`module_of`). With "penalised"
    averages, an island's update of a module is weighted by the softmax of its negative norm, and excluded if the norm
    is anomalous. If all updates are excluded, the module returns to the anchor. The mean is clipped for each module.
    "plain" averages are DiLoCo's.

    The moving average of the weights (`OptimizerConfig.ema_decay`) is an average of anchors, equal on all islands. It
    is updated at each synchronisation with the decay of `every` steps.
    """

    def __init__(self, optimizer: FlatOptimizer, config: OuterConfig, island: int) -> None:
        """Start at the anchor of the inner optimizer's parameters; `island` is this rank's island, from 0."""
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
        """Synchronise the islands; `total` must replace a tensor by its sum over islands, in place.

        The sum must be equal on all ranks bit for bit, because each rank updates its own copy of the anchor.
        """
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
        """Return the weight of each island for each module; 0 for all islands if all updates are anomalous."""
        if self._config.average == "plain":
            return torch.full_like(norms, 1 / len(norms))
        penalty = self._config.penalty
        is_excluded = self._statistics.anomalous(norms, penalty)
        self._statistics.add_(norms, penalty)
        return torch.softmax(torch.where(is_excluded, -torch.inf, -norms), dim=0).nan_to_num(0.0)

    def _move(self, gradient: Tensor, is_moving: Tensor) -> None:
        """Move the anchor by a Nesterov step in the lines where `is_moving`, and set the parameters to the anchor."""
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
        """Return the value of its module for each line of the flat buffers, as a column."""
        return of_modules[self._module_of_line, None]

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by name, to be saved with the inner optimizer's state after a synchronisation.

        It is equal on all islands. To restore it, fill the tensors in place and call `restored()`.
        """
        statistics = self._statistics
        return {
            "outer_momentum": self._momentum,
            "outer_mean": statistics.mean,
            "outer_variance": statistics.variance,
            "outer_seen": statistics.seen,
        }

    def restored(self) -> None:
        """Set the anchor to the inner optimizer's master parameters, after the states of both have been overwritten."""
        self._anchor.copy_(self._master)


def _lines_of_modules(optimizer: FlatOptimizer) -> list[int]:
    """Return the number of lines of each module in the flat buffers."""
    end = len(optimizer.tensors()["master"])
    starts = [next(places)[2] for _, places in groupby(optimizer.layout, lambda place: module_of(place[0]))]
    return [(stop - start) // LINE for start, stop in zip(starts, [*starts[1:], end], strict=True)]


def module_of(name: str) -> str:
    """Return the module of a parameter name: its block, such as "evoformer.blocks.3", or the name's first part."""
    parts = name.split(".")
    last = next((index for index, part in enumerate(parts) if part.isdecimal()), 0)
    return ".".join(parts[: last + 1])
