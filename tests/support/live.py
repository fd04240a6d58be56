"""Memory of live tensors during a computation."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Live(TorchDispatchMode):
    """Count the bytes of all storages that are created in this context, until they are freed: `now` and `peak`.

    The temporary memory of libraries inside an operation, and freed memory that they cache, is not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.now = 0
        self._counted: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        for each in tree_iter(results):
            if isinstance(each, Tensor):
                self._count(each.untyped_storage())
        return results

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._counted or size == 0:
            return
        self._counted.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._counted.discard(key)
        self.now -= size
