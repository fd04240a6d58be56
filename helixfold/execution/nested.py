"""Iterate over or replace the tensors inside nested tuples, lists, dicts and dataclasses."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield all tensors inside nested tuples, lists, dicts and dataclasses, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))


def with_tensors_changed(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return a copy of a nested value in which every tensor is replaced by `change(tensor)`."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        parts = [with_tensors_changed(change, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)  # named tuples take each part
    if isinstance(value, dict):
        return {name: with_tensors_changed(change, part) for name, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        parts_by_name = {each.name: with_tensors_changed(change, getattr(value, each.name)) for each in fields(value)}
        return replace(value, **parts_by_name)
    return value
