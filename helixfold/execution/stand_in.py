"""Methods of single modules replaced from outside, and put back: how recompute, branches and graphs reach a model."""

from collections.abc import Callable
from typing import Any

from torch import nn


class StandIn:
    """Something that is called in the place of a method, which it knows as `method`."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method


def replace_method(module: nn.Module, name: str, make: Callable[[Callable[..., Any]], StandIn]) -> None:
    """Have what `make` returns for a method of this one module be called in its place."""
    # Python finds an attribute of the module before its class's.
    setattr(module, name, make(getattr(module, name)))


def put_back(model: nn.Module, *kinds: type[StandIn]) -> None:
    """Take away all stand-ins of these kinds in a model that no other kind of stand-in covers."""
    for module in model.modules():
        for name in [name for name, value in vars(module).items() if isinstance(value, kinds)]:
            method = getattr(module, name)
            while isinstance(method, kinds):
                method = method.method
            delattr(module, name)
            if isinstance(method, StandIn):
                setattr(module, name, method)
