"""The numbers that a training changes: all parameters of a model, or fewer numbers that its parameters follow from."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from helixfold.model.alphafold import AlphaFold
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer


class Trained(Protocol):
    """Numbers that a training changes, and the model that computes with what follows from them."""

    @property
    def model(self) -> AlphaFold:
        """Return the model, the same at every call."""

    def optimizer(self, config: OptimizerConfig, dtype: torch.dtype, *, averages: bool) -> FlatOptimizer:
        """Return a new optimizer of the numbers, for a model whose trunk computes in `dtype`.

        Without `averages` its steps do not update the moving average.
        """

    def apply(self) -> None:
        """Give the model the parameters that follow from the present numbers; call this before each micro-batch."""

    def release(self) -> None:
        """Free the memory of what `apply` made; another call of `apply` makes it again."""

    def state(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the model's state dict for other values of the numbers, such as `FlatOptimizer.averaged()`."""


class AllParameters:
    """Training of the parameters of a model themselves."""

    def __init__(self, model: AlphaFold) -> None:
        self.model = model

    def optimizer(self, config: OptimizerConfig, dtype: torch.dtype, *, averages: bool) -> FlatOptimizer:
        """Return a new optimizer whose buffers hold all parameters, those of the trunk in `dtype`, too."""
        return FlatOptimizer(self.model, config, working_dtype=dtype, averages=averages)

    def apply(self) -> None:
        """Do nothing: the optimizer changes the parameters in place."""

    def release(self) -> None:
        """Do nothing: there is nothing to free."""

    def state(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the parameters as they are given."""
        return dict(numbers)
