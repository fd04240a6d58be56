"""Triton's language with stand-ins where Triton is not installed, and kernels that can be launched on meta tensors.

A launch on meta tensors computes nothing but calls one PyTorch operator on the tensors, so that code that counts
operators counts the launch.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, no_type_check

import torch
from torch import Tensor

from helixfold.ops.triton.refusal import triton_is_there

__all__ = ["Kernel", "cdiv", "jit", "kernel", "next_power_of_2", "tl", "watched"]

_LIBRARY = torch.library.Library("helixfold", "DEF")
_LIBRARY.define("launch(str name, Tensor[] tensors) -> ()")
_LIBRARY.impl("launch", lambda name, tensors: None, "Meta")
_RECORDED = torch.ops.helixfold.launch.default


def cdiv(dividend: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-dividend // divisor)


def next_power_of_2(size: int) -> int:
    """Return the smallest power of two that is not less than `size`."""
    return 1 << max(size - 1, 0).bit_length()


if triton_is_there():
    # Multiplications and additions of kernels are fused, in releases of Triton too that do so only on request.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    from triton import jit
    from triton import language as tl
else:

    def jit(function: Callable[..., None]) -> Callable[..., None]:
        """Return the kernel as it is, since it cannot be compiled without Triton."""
        return function

    class tl:  # type: ignore[no-redef]  # noqa: N801 (the name of triton's module)
        """Stand-in for what kernels' definitions need of Triton's language."""

        @no_type_check
        class constexpr:  # noqa: N801
            def __init__(self, value):
                self.value = value


class Kernel:
    """A kernel that is launched by `kernel[grid](...)`; its first argument is a tensor or a tuple that begins with one.

    Functions that kernels call are decorated with `jit` instead.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.name, self.__doc__ = function.__name__, function.__doc__
        self.jitted: Any = jit(function)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *args: Any, **kwargs: Any) -> None:
        if _watch is not None:
            _watch(self, grid, args, kwargs)
        if next(_tensors(args)).is_meta:
            self.record(*args)
        else:
            self.jitted[grid](*args, **kwargs)

    def record(self, *args: Any) -> None:
        """Call the operator that represents a launch on meta tensors."""
        # Each tensor counts once: absent arguments are often replaced by another argument.
        _RECORDED(self.name, list({id(tensor): tensor for tensor in _tensors(args)}.values()))


kernel = Kernel

_Watch = Callable[[Kernel, tuple[int, ...], tuple[Any, ...], dict[str, Any]], None]
# A global for all threads, since autograd computes gradients in other threads.
_watch: _Watch | None = None


@contextmanager
def watched(watch: _Watch) -> Iterator[None]:
    """Call `watch` at every launch, before it, with the kernel, its grid and its arguments."""
    global _watch  # noqa: PLW0603 (one for the process)
    earlier, _watch = _watch, watch
    try:
        yield
    finally:
        _watch = earlier


def _tensors(arguments: tuple[Any, ...]) -> Iterator[Tensor]:
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, tuple):
            yield from _tensors(argument)
