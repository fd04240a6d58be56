"""Settings of the optimizer: learning rate, clipping, Adam, Muon, the moving average of weights, and outer steps."""

import math
from dataclasses import dataclass, field
from typing import Literal

from helixfold.model.config import Config, require

Clipping = Literal["none", "sample", "global", "adagc"]
Method = Literal["adam", "muon"]
OuterAverage = Literal["penalised", "plain"]


def _is_positive(value: float) -> bool:
    return value > 0


@dataclass(frozen=True, kw_only=True)
class AdaGCConfig(Config):
    """Settings of adaptive clipping of each parameter tensor; the defaults are AdaGC's (arXiv 2502.11034, Alg. 1).

    The norm of a tensor's gradient is limited to `relative_threshold` times the moving average of its earlier norms;
    `decay` is the decay of this average. In the first `warmup_steps` updates the whole gradient is clipped to
    `clip_norm` instead.
    """

    relative_threshold: float = 1.05
    decay: float = 0.98
    warmup_steps: int = 100

    def __post_init__(self) -> None:
        self._require_fraction("decay")
        self._require_positive("warmup_steps")
        require(self, ["relative_threshold"], _is_positive, "be greater than 0")


@dataclass(frozen=True, kw_only=True)
class MuonConfig(Config):
    """Settings of Muon's updates of hidden matrices (Jordan et al. 2024; scaled as in arXiv 2502.16982).

    `rate` is their learning rate as a multiple of Adam's. `rounds` is the number of Newton-Schulz iterations.
    """

    rate: float = 1.0
    momentum: float = 0.95
    rounds: int = 5

    def __post_init__(self) -> None:
        self._require_fraction("momentum")
        self._require_positive("rounds")
        require(self, ["rate"], _is_positive, "be greater than 0")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Config):
    """Settings of the optimizer; the defaults are Adam as in AlphaFold's initial training (Suppl. Sec. 1.11.3).

    The learning rate rises to 1e-3 in 1,000 steps (updates of the weights) and is 5 % lower after 50,000. With `method`
    "muon", hidden matrices of the stacks and of the structure module are updated by Muon, all other parameters by Adam.

    `clipping` limits the norm of each example's gradient ("sample", AlphaFold) or of the mean over examples ("global",
    HelixFold) to `clip_norm`. "adagc" limits the norm of each tensor of the mean (`AdaGCConfig`).
    """

    method: Method = "adam"
    learning_rate: float = 1e-3
    warmup_steps: int = 1000
    decay_after: int | None = 50_000
    decay_factor: float = 0.95
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.0
    clipping: Clipping = "sample"
    clip_norm: float = 0.1
    adagc: AdaGCConfig = field(default_factory=AdaGCConfig)
    muon: MuonConfig = field(default_factory=MuonConfig)
    ema_decay: float = 0.999

    def __post_init__(self) -> None:
        self._require_fraction("beta1", "beta2", "ema_decay")
        require(self, ["learning_rate", "decay_factor", "eps", "clip_norm"], _is_positive, "be greater than 0")
        require(self, ["warmup_steps", "weight_decay", "decay_after"], lambda value: value >= 0, "be at least 0")

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: linear warm-up, plateau and one drop (AlphaFold 2, Suppl. Sec. 1.11.3).

        `step` counts from 0; the last step of the warm-up is the first one at the full rate.
        """
        is_late = self.decay_after is not None and step >= self.decay_after
        warm_up = min(1.0, (step + 1) / max(1, self.warmup_steps))
        return self.learning_rate * warm_up * (self.decay_factor if is_late else 1.0)


@dataclass(frozen=True, kw_only=True)
class PenaltyConfig(Config):
    """Settings for excluding islands with anomalously large updates (after EDiT, arXiv 2412.07210).

    After the first `settle` synchronisations, an island's update of a module is excluded if its norm is more than
    `threshold` standard deviations above the mean. Mean and deviation are moving averages over synchronisations with
    the decay `decay`. `clip_norm` limits the norm of a module's averaged update.
    """

    threshold: float = 3.0
    decay: float = 0.98
    settle: int = 10
    clip_norm: float = 10.0

    def __post_init__(self) -> None:
        self._require_fraction("decay")
        self._require_positive("settle")
        require(self, ["threshold", "clip_norm"], _is_positive, "be greater than 0")


@dataclass(frozen=True, kw_only=True)
class OuterConfig(Config):
    """Settings of islands: groups of ranks that train separately and synchronise after `every` steps.

    One island is ordinary training. A synchronisation moves the parameters by `learning_rate` times the average of the
    islands' updates, with Nesterov momentum. The `average` "penalised" is EDiT's (arXiv 2412.07210) and "plain" is
    DiLoCo's (arXiv 2311.08105), which has a learning rate of 0.7 and a momentum of 0.9.

    The default learning rate is the square root of the number of islands. Each island trains on a part of the batch,
    whose gradient is noisier by this factor. Adam divides by the noise, so its steps are smaller by the same factor.
    """

    islands: int = 1
    every: int = 100
    average: OuterAverage = "penalised"
    learning_rate: float | None = None
    momentum: float = 0.0
    penalty: PenaltyConfig = field(default_factory=PenaltyConfig)

    def __post_init__(self) -> None:
        self._require_positive("islands", "every")
        self._require_fraction("momentum")
        require(self, ["learning_rate"], _is_positive, "be greater than 0")

    @property
    def step_size(self) -> float:
        """Outer learning rate: the factor of the average of the islands' updates."""
        return math.sqrt(self.islands) if self.learning_rate is None else self.learning_rate


def finetuning() -> OptimizerConfig:
    """Return the settings of AlphaFold's fine-tuning: half the learning rate, constant from the first step."""
    return OptimizerConfig(learning_rate=5e-4, warmup_steps=0, decay_after=None)
