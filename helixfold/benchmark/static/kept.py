"""The memory that a forward pass keeps for the backward pass."""

from typing import Any, Self

import torch
from torch import Tensor, nn


class KeptMemory:
    """Context that notes the memory of all tensors that autograd keeps, each piece once and without parameters."""

    def __init__(self, module: nn.Module | None) -> None:
        self._parameters = set() if module is None else {_identity(each) for each in module.parameters()}
        self._kept: dict[int, Any] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    @property
    def bytes(self) -> int:
        """The bytes of memory that were kept."""
        return sum(storage.nbytes() for storage in self._kept.values())

    def _keep(self, tensor: Tensor) -> Tensor:
        if _identity(tensor) not in self._parameters:
            self._kept[_identity(tensor)] = tensor.untyped_storage()
        return tensor


def _identity(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
