"""Loops that Numba compiles, in place of several of PyTorch's operators, where there is enough to compute.

They take a third to a half of the time, since elements stay in registers or the cache. The first loop of a process
costs 0.45 seconds (and some more where none was compiled before), which small streams would not win back.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from helixfold.ops.card import is_described

# Elements from which on a stream is computed by loops; None for never.
LEAST_STREAM: int | None = 2**21
_DTYPES = {torch.bfloat16, torch.float32}
_thread = threading.local()


@contextmanager
def loops_if_large(*elements: int) -> Iterator[None]:
    """Let loops compute inside if one of an operator's tensors has many elements, or the stream that it is a slab of.

    So all blocks of a stream are computed in the same way.
    """
    earlier = _may_compute()
    _thread.may_compute = earlier or (LEAST_STREAM is not None and max(elements, default=0) >= LEAST_STREAM)
    try:
        yield
    finally:
        _thread.may_compute = earlier


def compiled(name: str, *tensors: Tensor | None, one_dtype: bool = False) -> Any:
    """Return the module of `helixfold.ops.cpu.compiled` of this name, or None if PyTorch shall compute.

    Loops take float32 and bfloat16, of one dtype if that is asked for, whose last dim is dense.
    """
    if not _may_compute() or is_described() or refusal() is not None:
        return None
    given = [tensor for tensor in tensors if tensor is not None]
    if one_dtype and len({tensor.dtype for tensor in given}) > 1:
        return None
    for tensor in given:
        fits = tensor.dtype in _DTYPES and tensor.device.type == "cpu" and tensor.stride(-1) == 1
        if not fits or not tensor.numel():
            return None
    return _module(name)


@cache
def refusal() -> str | None:
    """Return why loops cannot be compiled here, or None if they can."""
    if find_spec("numba") is None:
        return "Numba is not installed (pip install 'helixfold[fast]')"
    if not hasattr(ctypes.CDLL(torch._C.__file__), "GOMP_parallel"):
        return "PyTorch's threads are not those of GNU's OpenMP"
    return None


def _may_compute() -> bool:
    return getattr(_thread, "may_compute", False)


@cache
def _module(name: str) -> Any:
    return import_module(f"helixfold.ops.cpu.compiled.{name}")
