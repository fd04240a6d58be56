"""Results that are kept, since to count a pass takes half a second."""

from collections.abc import Callable
from functools import cache, wraps
from inspect import signature
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def counted_once(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return the function with its results kept by its arguments, which are hashable.

    Unlike with `functools.cache`, a call that names the default of an argument is the same as one that leaves it out.
    """
    kept, known = cache(function), signature(function)

    @wraps(function)
    def counted(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        given = known.bind(*args, **kwargs)
        given.apply_defaults()
        return kept(*given.args, **given.kwargs)

    counted.cache_clear = kept.cache_clear  # type: ignore[attr-defined]
    return counted
