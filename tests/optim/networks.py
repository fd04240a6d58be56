"""A small model with every kind of parameter that the optimiser meets, and gradients for it."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from helixfold.optim.flat import FlatOptimizer


class Small(nn.Module):
    """Odd sizes, a tied, a frozen and an unused parameter, and a part that stays float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 33)
        self.second = nn.Linear(33, 7)
        self.heads = nn.ModuleDict({"one": nn.Linear(7, 3)})
        self.tied = nn.Linear(7, 33)
        self.tied.weight = self.first.weight
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(11, 3))

    def forward(self, x: Tensor) -> Tensor:
        dtype = self.first.weight.dtype
        hidden = (self.first(x.to(dtype)) + self.tied(x.to(dtype))).relu()
        return self.heads["one"](self.second(hidden).float()) + self.frozen.sum()


def float32_parameters(optimizer: FlatOptimizer) -> dict[str, Tensor]:
    """The float32 parameters by their names in the state dict, as views that the next step changes."""
    return optimizer._by_name(optimizer.tensors()["master"])


def losses(model: nn.Module, step: int, parts: int) -> Sequence[Tensor]:
    """The loss of each part of a step, made one by one so that each has its own graph; sizes vary a lot."""
    generator = torch.Generator().manual_seed(step)
    found = []
    for _ in range(parts):
        x, y = torch.randn(2, 7, generator=generator), torch.randn(2, 3, generator=generator)
        size = 10 ** float(torch.rand((), generator=generator) * 4 - 3)
        found.append(size * (model(x) - y).square().mean())
    return found
