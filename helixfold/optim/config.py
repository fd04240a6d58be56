"""Settings of the optimizer: learning rate, clipping, Adam, Muon, the moving average of weights, and outer steps."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from data_pipeline.io.config import ABOVE_ZERO, BELOW_ONE, Config, at_least

# The clipped gradient: none, each example's gradient, their mean, or each tensor of the mean.
Clipping = Literal["none", "sample", "global", "adagc"]
# Optimizer of hidden matrices; Adam updates all other parameters.
Method = Literal["adam", "muon"]
# How the updates of islands are averaged: weighted and without anomalous ones (EDiT), or equally (DiLoCo).
OuterAverage = Literal["penalised", "plain"]


@dataclass(frozen=True, kw_only=True)
class AdaGCConfig(Config):
    """Settings of adaptive clipping of each parameter tensor; the defaults are AdaGC's (arXiv 2502.11034, Alg. 1).

    The norm of a tensor's gradient is limited to `relative_threshold` times the moving average of its earlier norms;
    `decay` is the decay of this average. In the first `warmup_steps` updates the whole gradient is clipped to
    `clip_norm` instead.
    """

    relative_threshold: Annotated[float, ABOVE_ZERO] = 1.05  # max norm, relative to its average
    decay: Annotated[float, BELOW_ONE] = 0.98  # of the average
    warmup_steps: Annotated[int, at_least(1)] = 100  # updates with the whole gradient clipped


@dataclass(frozen=True, kw_only=True)
class MuonConfig(Config):
    """Settings of Muon's updates of hidden matrices (Jordan et al. 2024; scaled as in arXiv 2502.16982).

    `rate` is their learning rate as a multiple of Adam's. `rounds` is the number of Newton-Schulz iterations.
    """

    rate: Annotated[float, ABOVE_ZERO] = 1.0  # relative to Adam's learning rate
    momentum: Annotated[float, BELOW_ONE] = 0.95  # Nesterov momentum
    rounds: Annotated[int, at_least(1)] = 5  # Newton-Schulz iterations


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Config):
    """Settings of the optimizer; the defaults are Adam as in AlphaFold's initial training (Suppl. Sec. 1.11.3).

    The learning rate rises to 1e-3 in 1,000 steps (updates of the weights) and is 5 % lower after 50,000. With `method`
    "muon", hidden matrices of the stacks and of the structure module are updated by Muon, all other parameters by Adam.

    `clipping` limits the norm of each example's gradient ("sample", AlphaFold) or of the mean over examples ("global",
    HelixFold) to `clip_norm`. "adagc" limits the norm of each tensor of the mean (`AdaGCConfig`).

    `decay_after` is the step, from 0, from which the learning rate is multiplied by `decay_factor`; None: never.
    `ema_decay` is the decay of the moving average of the parameters for each step.
    """

    method: Method = "adam"  # optimizer of hidden matrices
    learning_rate: Annotated[float, ABOVE_ZERO] = 1e-3  # after the warm-up
    warmup_steps: Annotated[int, at_least(0)] = 1000  # steps in which the learning rate rises
    decay_after: Annotated[int | None, at_least(0)] = 50_000  # steps until the learning rate drops
    decay_factor: Annotated[float, ABOVE_ZERO] = 0.95  # factor of the learning rate then
    beta1: Annotated[float, BELOW_ONE] = 0.9  # decay of Adam's first moment
    beta2: Annotated[float, BELOW_ONE] = 0.999  # decay of Adam's second moment
    eps: Annotated[float, ABOVE_ZERO] = 1e-6  # Adam's epsilon
    weight_decay: Annotated[float, at_least(0)] = 0.0  # as in AdamW
    clipping: Clipping = "sample"  # what is clipped
    clip_norm: Annotated[float, ABOVE_ZERO] = 0.1  # max norm
    adagc: AdaGCConfig = field(default_factory=AdaGCConfig)
    muon: MuonConfig = field(default_factory=MuonConfig)
    ema_decay: Annotated[float, BELOW_ONE] = 0.999  # decay of the averaged parameters

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

    threshold: Annotated[float, ABOVE_ZERO] = 3.0  # standard deviations
    decay: Annotated[float, BELOW_ONE] = 0.98  # of mean and deviation
    settle: Annotated[int, at_least(1)] = 10  # synchronisations
    clip_norm: Annotated[float, ABOVE_ZERO] = 10.0  # max norm of an averaged update


@dataclass(frozen=True, kw_only=True)
class OuterConfig(Config):
    """Settings of islands: groups of ranks that train separately and synchronise after `every` steps.

    One island is ordinary training. A synchronisation moves the parameters by `learning_rate` times the average of the
    islands' updates, with Nesterov momentum. The `average` "penalised" is EDiT's (arXiv 2412.07210) and "plain" is
    DiLoCo's (arXiv 2311.08105), which has a learning rate of 0.7 and a momentum of 0.9.

    The default learning rate is the square root of the number of islands. Each island trains on a part of the batch,
    whose gradient is noisier by this factor. Adam divides by the noise, so its steps are smaller by the same factor.
    """

    islands: Annotated[int, at_least(1)] = 1  # number of islands
    every: Annotated[int, at_least(1)] = 100  # steps between synchronisations
    average: OuterAverage = "penalised"  # how updates are averaged
    learning_rate: Annotated[float | None, ABOVE_ZERO] = None  # null: the square root of `islands`
    momentum: Annotated[float, BELOW_ONE] = 0.0  # Nesterov momentum
    penalty: PenaltyConfig = field(default_factory=PenaltyConfig)

    @property
    def step_size(self) -> float:
        """Outer learning rate: the factor of the average of the islands' updates."""
        return math.sqrt(self.islands) if self.learning_rate is None else self.learning_rate


def finetuning() -> OptimizerConfig:
    """Return the settings of AlphaFold's fine-tuning: half the default learning rate, constant from the first step."""
    return OptimizerConfig(learning_rate=5e-4, warmup_steps=0, decay_after=None)
