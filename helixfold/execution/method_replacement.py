"""Replacement of methods of single modules from outside, by which recomputation and branches are applied."""

from collections.abc import Callable
from typing import Any

from torch import nn


class MethodReplacement:
    """Base of objects that are called in place of a module's method, which they hold as `method`."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method


def replace_method(module: nn.Module, name: str, make: Callable[[Callable[..., Any]], MethodReplacement]) -> None:
    """Replace a method of this module, and of no other of its class, by what `make(method)` returns."""
    # Python finds an attribute of the module before its class's.
    setattr(module, name, make(getattr(module, name)))


def restore_methods(model: nn.Module) -> None:
    """Undo all replacements of methods in the modules of a model."""
    for module in model.modules():
        for name in [name for name, value in vars(module).items() if isinstance(value, MethodReplacement)]:
            delattr(module, name)
