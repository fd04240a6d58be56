"""All operators of the package, found in its modules."""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import helixfold.ops
from helixfold.ops.dispatch import Op


def all_operators() -> dict[str, Op]:
    """The operators by name; backends' modules are not looked into, since some need Triton."""
    values = [value for module in _modules(helixfold.ops) for value in vars(module).values()]
    return {value.name: value for value in values if isinstance(value, Op)}


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not found.name.endswith((".triton", ".cpu")):
            module = importlib.import_module(found.name)
            yield module
            if found.ispkg:
                yield from _modules(module)
