"""Results that are kept, since to count a pass takes half a second."""

from collections.abc import Callable, Hashable
from functools import update_wrapper
from inspect import signature
from typing import Any, Generic, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class counted_once(Generic[Parameters, Result]):  # noqa: N801  a decorator
    """Decorator that keeps the results of a function of hashable arguments.

    Unlike with `functools.cache`, a call that names the default of an argument is the same as one that leaves it out.
    """

    __wrapped__: Callable[Parameters, Result]

    def __init__(self, function: Callable[Parameters, Result]) -> None:
        update_wrapper(self, function)
        self._signature, self._results = signature(function), dict[Hashable, Any]()

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        given = self._signature.bind(*args, **kwargs)
        given.apply_defaults()
        key = tuple(given.arguments.values())
        if key not in self._results:
            self._results[key] = self.__wrapped__(*args, **kwargs)
        return self._results[key]

    def cache_clear(self) -> None:
        """Forget all results."""
        self._results.clear()
