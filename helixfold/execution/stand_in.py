"""Replacement of methods of single modules from outside, by which recomputation, branches and graphs are applied."""

from collections.abc import Callable
from typing import Any

from torch import nn


class StandIn:
    """Base of objects that are called in place of a module's method, which they hold as `method`."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method


def replace_method(module: nn.Module, name: str, make: Callable[[Callable[..., Any]], StandIn]) -> None:
    """Replace a method of this module, and of no other of its class, by the stand-in that `make(method)` returns."""
    # Python finds an attribute of the module before its class's.
    setattr(module, name, make(getattr(module, name)))


def put_back(model: nn.Module, *kinds: type[StandIn]) -> None:
    """Restore the methods that stand-ins of these kinds replaced, in all modules of a model.

    A stand-in that is itself replaced by one of another kind stays.
    """
    for module in model.modules():
        for name in [name for name, value in vars(module).items() if isinstance(value, kinds)]:
            method = getattr(module, name)
            while isinstance(method, kinds):
                method = method.method
            delattr(module, name)
            if isinstance(method, StandIn):
                setattr(module, name, method)
