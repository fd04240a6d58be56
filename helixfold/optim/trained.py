"""Trainable values: all parameters of a model, or fewer values from which its parameters are computed."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from helixfold.model.alphafold import AlphaFold
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer


class Trained(Protocol):
    """Interface of trainable values and the model whose parameters are computed from them."""

    @property
    def model(self) -> AlphaFold:
        """The model; always the same object."""

    def optimizer(self, config: OptimizerConfig, dtype: torch.dtype, *, averages: bool) -> FlatOptimizer:
        """Return a new optimizer of the trainable values, for a model whose trunk computes in `dtype`.

        Without `averages`, steps do not update the moving average.
        """

    def apply(self) -> None:
        """Set the model's parameters from the current values; call this before each micro-batch."""

    def release(self) -> None:
        """Free the memory of parameters that `apply` computed; the next call of `apply` computes them again."""

    def state(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the model's state dict for other trainable values by name, such as `FlatOptimizer.averaged()`."""


class AllParameters:
    """Training of all parameters of a model."""

    def __init__(self, model: AlphaFold) -> None:
        self.model = model

    def optimizer(self, config: OptimizerConfig, dtype: torch.dtype, *, averages: bool) -> FlatOptimizer:
        """Return a new optimizer of all parameters, with a working copy of the trunk's parameters in `dtype`."""
        return FlatOptimizer(self.model, config, working_dtype=dtype, averages=averages)

    def apply(self) -> None:
        """Do nothing: the optimizer changes the parameters in place."""

    def release(self) -> None:
        """Do nothing: `apply` allocates no memory."""

    def state(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the parameters `numbers` unchanged, in a new dict."""
        return dict(numbers)
