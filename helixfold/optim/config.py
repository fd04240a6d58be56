"""Settings of the optimiser: learning rate, clipping, Adam and the moving average of the weights."""

import math
from dataclasses import dataclass, field
from typing import Literal

from helixfold.config import Config, ConfigError, require

Clipping = Literal["none", "sample", "global", "adagc"]
Method = Literal["adam", "muon"]
OuterAverage = Literal["penalised", "plain"]


def _is_positive(value: float) -> bool:
    return value > 0


@dataclass(frozen=True, kw_only=True)
class AdaGCConfig(Config):
    """Adaptive thresholds for each parameter tensor (AdaGC, arXiv 2502.11034, Alg. 1; its defaults).

    A gradient may be `relative_threshold` times the moving average, of the given `decay`, of its own earlier norms.
    In the first `warmup_steps` updates the whole gradient is clipped at `clip_norm` instead.
    """

    relative_threshold: float = 1.05
    decay: float = 0.98
    warmup_steps: int = 100

    def __post_init__(self) -> None:
        self._require_fraction("decay")
        self._require_positive("warmup_steps")
        if not self.relative_threshold > 0:
            raise ConfigError(
                f"AdaGCConfig.relative_threshold must be greater than 0, got {self.relative_threshold}; 1.05 is usual"
            )


@dataclass(frozen=True, kw_only=True)
class MuonConfig(Config):
    """Settings of how hidden matrices move with `method` "muon" (Jordan et al. 2024; scaled as in arXiv 2502.16982).

    `rate` is their learning rate, as a multiple of Adam's; `rounds` are those of the Newton-Schulz iteration.
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
    """Adam as AlphaFold was trained with (AlphaFold 2, Suppl. Sec. 1.11.3); steps are updates of the weights.

    The defaults are those of its first stage: up to 1e-3 in 1,000 steps, a little lower after 50,000.

    With `method` "muon", hidden matrices of the stacks and the structure module move by Muon instead, all else by Adam.

    `clipping` limits a norm to `clip_norm`: of each example's gradient ("sample", AlphaFold), of their mean
    ("global", HelixFold), or of each tensor's part in the mean ("adagc").
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
        """The learning rate of a step: a linear warm-up, a plateau and one drop (AlphaFold 2, Suppl. Sec. 1.11.3).

        `step` counts from 0; the last step of the warm-up is the first one at the full rate.
        """
        is_late = self.decay_after is not None and step >= self.decay_after
        warm_up = min(1.0, (step + 1) / max(1, self.warmup_steps))
        return self.learning_rate * warm_up * (self.decay_factor if is_late else 1.0)


@dataclass(frozen=True, kw_only=True)
class PenaltyConfig(Config):
    """Settings of what islands count for that moved oddly far (after EDiT, arXiv 2412.07210).

    After `settle` meetings, an island is left out of a module where the norm of what it moved is more than `threshold`
    standard deviations above the mean, both moving averages of the given `decay` over meetings. `clip_norm` limits what
    a module moves.
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
    """Islands of ranks that train apart and meet after `every` steps (EDiT; "plain" averages are DiLoCo's).

    One island is ordinary training. When islands meet, parameters move along the average of what the islands moved,
    `learning_rate` times, with Nesterov's momentum; DiLoCo's numbers are 0.7 and 0.9 (arXiv 2311.08105). Without a
    learning rate it is the square root of the islands: each sees its part of a batch, whose gradient is noisier by that
    factor, and Adam, which divides by the noise, moves that much less per step than it would with the whole batch.
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
        """Multiple of the average of what the islands moved by which the parameters move."""
        return math.sqrt(self.islands) if self.learning_rate is None else self.learning_rate


def finetuning() -> OptimizerConfig:
    """AlphaFold's second stage: half the learning rate from the first step on."""
    return OptimizerConfig(learning_rate=5e-4, warmup_steps=0, decay_after=None)
