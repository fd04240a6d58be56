"""Flat optimizer buffers and the hyperparameters of one Adam update."""

from dataclasses import dataclass

import torch
from jaxtyping import BFloat16, Float32
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class AdamBuffers:
    """Flat buffers that an Adam update changes in place.

    `master` are the float32 parameters, and `average` is their exponential moving average. `working` is an optional
    bfloat16 copy of the first `w` master parameters.
    """

    master: Float32[Tensor, " n"]
    first_moment: Float32[Tensor, " n"]
    second_moment: Float32[Tensor, " n"]
    average: Float32[Tensor, " n"]
    working: BFloat16[Tensor, " w"] | None

    @property
    def device(self) -> torch.device:
        """The device of the buffers."""
        return self.master.device

    def part(self, start: int, stop: int) -> "AdamBuffers":
        """Return views of elements `start` to `stop` (exclusive) of every buffer.

        `working` may be shorter, and is None if it ends before `start`.
        """
        own, working = slice(start, stop), self.working
        return AdamBuffers(
            master=self.master[own],
            first_moment=self.first_moment[own],
            second_moment=self.second_moment[own],
            average=self.average[own],
            working=None if working is None or start >= len(working) else working[own],
        )


@dataclass(frozen=True, kw_only=True)
class AdamStep:
    """Hyperparameters of one Adam update.

    `count` is the number of updates including this one. `weight_decay` is decoupled from the gradient (AdamW).
    `ema_decay` is the weight of the earlier moving average of the parameters.
    """

    count: int
    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    ema_decay: float

    @property
    def correction1(self) -> float:
        """The divisor that corrects the bias of the first moment, 1 - beta1**count."""
        return 1 - self.beta1**self.count

    @property
    def correction2(self) -> float:
        """The divisor that corrects the bias of the second moment, 1 - beta2**count."""
        return 1 - self.beta2**self.count
