"""Functions and operators that would make the host wait for a GPU, told apart on tensors of any device."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helixfold.execution.nested import tensors

# Functions that read a tensor's values, or make a tensor from values of the host, which are then copied.
FUNCTIONS = {
    *("__bool__", "__float__", "__int__", "__index__", "item", "tolist", "numpy", "cpu", "equal", "allclose"),
    *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"),
    *("tensor", "as_tensor", "new_tensor", "asarray"),
}
# Those of them that operators do not show.
TENSOR_MAKERS = {"tensor", "as_tensor", "new_tensor", "asarray"}
# Operators whose result's size depends on values, and those that read or make single values.
_OPERATORS = {
    *("_local_scalar_dense", "is_nonzero", "equal", "lift_fresh"),
    *("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"),
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_COPIES = {"_to_copy", "copy_", "copy"}


def wait_of_call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return why an operator, by its name without overload, waits whatever it returns, or None."""
    if name in _OPERATORS or (name == "repeat_interleave" and "output_size" not in kwargs):
        return "is called"
    if name in _INDEXING and any(each.dtype == torch.bool for each in tensors(args[1])):
        return "is called with a boolean index"
    return None


def wait_of_copy(name: str, args: Sequence[Any], found: Any) -> str | None:
    """Return why an operator waits to copy its argument to what it returned, or None."""
    if name in _COPIES and isinstance(found, Tensor):
        devices = {each.device.type for each in (*tensors(list(args)), found)}
        return "copies from one device to another" if len(devices) > 1 else None
    return None


def pretended(name: str, args: Sequence[Any]) -> Any:
    """Return what an operator that waits might return for tensors on the meta device, which hold no values.

    Every condition counts as true.
    """
    if name not in _PRETENDED:
        raise NotImplementedError(f"{name} on the meta device, where nothing is known of its result")
    return _PRETENDED[name](*args)


def _value(x: Tensor) -> bool | int | float:
    return True if x.dtype == torch.bool else 1.0 if x.is_floating_point() else 1


def _indexed(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    given = [each for each in indices if each is not None]
    covered = sum(each.ndim if each.dtype == torch.bool else 1 for each in given)
    return x.new_empty((given[0].numel(), *x.shape[covered:]))


_PRETENDED: Mapping[str, Callable[..., Any]] = {
    "_local_scalar_dense": _value,
    **dict.fromkeys(("is_nonzero", "equal"), lambda *_: True),
    "_to_copy": lambda x: torch.ones(x.shape, dtype=x.dtype),
    "nonzero": lambda x: x.new_empty((x.numel(), x.ndim), dtype=torch.long),
    "masked_select": lambda x, _: x.new_empty(x.numel()),
    **dict.fromkeys(("index", "_unsafe_index"), _indexed),
    **dict.fromkeys(("index_put_", "_index_put_impl_"), lambda x, *_: x),
    "index_put": lambda x, *_: torch.empty_like(x),
}
