"""What tensors hold, as a pass goes: what a process would take if nothing but they needed memory."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Live(TorchDispatchMode):
    """Counts the bytes of all storages that are made while it is on, for as long as they live.

    What libraries take inside an operation, and what they keep of freed memory, is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.now = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        for each in tree_iter(results):
            if isinstance(each, Tensor):
                self._made(each.untyped_storage())
        return results

    def _made(self, storage: torch.UntypedStorage) -> None:
        number, size = storage._cdata, storage.nbytes()
        if number in self._known or size == 0:
            return
        self._known.add(number)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, number, size)

    def _gone(self, number: int, size: int) -> None:
        self._known.discard(number)
        self.now -= size
