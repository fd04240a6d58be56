"""Loops that Numba compiles, in place of several of PyTorch's operators: elements stay in registers or the cache."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from helixfold.ops.device_properties import is_simulated
from helixfold.ops.sizes import loops_if_large, loops_may_compute

_DTYPES = {torch.bfloat16, torch.float32}
# Bytes that Numba and its compiler take in a process from the first loop on. Measured.
_TAKEN = 124 * 2**20


def compiled(name: str, *tensors: Tensor | None, one_dtype: bool = False) -> Any:
    """Return the module of `helixfold.ops.cpu.compiled` of this name, or None if PyTorch shall compute.

    Loops take float32 and bfloat16, of one dtype if that is asked for, whose last dim is dense.
    """
    if not loops_may_compute() or is_simulated() or refusal() is not None:
        return None
    given = [tensor for tensor in tensors if tensor is not None]
    if one_dtype and len({tensor.dtype for tensor in given}) > 1:
        return None
    for tensor in given:
        fits = tensor.dtype in _DTYPES and tensor.device.type == "cpu" and tensor.stride(-1) == 1
        if not fits or not tensor.numel():
            return None
    return _module(name)


def bytes_taken(*elements: int) -> int:
    """Return the bytes that Numba takes in a process beside its tensors, if one of a pass has that many elements.

    Numba is not imported for it.
    """
    with loops_if_large(*elements):
        return _TAKEN * (loops_may_compute() and find_spec("numba") is not None)


@cache
def refusal() -> str | None:
    """Return why loops cannot be compiled here, or None if they can."""
    if find_spec("numba") is None:
        return "Numba is not installed (pip install 'helixfold[fast]')"
    try:
        numba = import_module("numba")
    except ImportError as error:  # such as a version of NumPy that it does not know
        return f"Numba cannot be imported: {error}"
    if numba.config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set"
    if not _module("threads").ARE_SHARED:
        return "PyTorch's threads are not those of GNU's OpenMP"
    return None


@cache
def _module(name: str) -> Any:
    return import_module(f"helixfold.ops.cpu.compiled.{name}")
