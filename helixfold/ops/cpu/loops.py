"""Selection of loops compiled by Numba, which replace several PyTorch operators and keep elements in the cache."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from helixfold.ops.device_properties import is_simulated
from helixfold.ops.sizes import loops_if_large, loops_may_compute

_DTYPES = {torch.bfloat16, torch.float32}
# Bytes that Numba and its compiler take in a process after the first loop (measured).
_NUMBA_BYTES = 124 * 2**20


def compiled(name: str, *tensors: Tensor | None, one_dtype: bool = False) -> Any:
    """Return the module `name` of `helixfold.ops.cpu.compiled`, or None if its loops do not compute these tensors.

    Loops support non-empty float32 and bfloat16 tensors with a dense last dimension. With `one_dtype`, all tensors must
    have the same dtype. Also return None outside large streams (`loops_may_compute`), on a simulated device, and if
    loops cannot be compiled.
    """
    if not loops_may_compute() or is_simulated() or unsupported_reason() is not None:
        return None
    present = [tensor for tensor in tensors if tensor is not None]
    if one_dtype and len({tensor.dtype for tensor in present}) > 1:
        return None
    for tensor in present:
        fits = tensor.dtype in _DTYPES and tensor.device.type == "cpu" and tensor.stride(-1) == 1
        if not fits or not tensor.numel():
            return None
    return _module(name)


def numba_bytes(*elements: int) -> int:
    """Return an estimate of the bytes that Numba takes in a process, or 0 if it is not used.

    It is used if it is installed and any of these numbers of elements enables compiled loops (`loops_if_large`). Numba
    is not imported to find out.
    """
    with loops_if_large(*elements):
        return _NUMBA_BYTES * (loops_may_compute() and find_spec("numba") is not None)


@cache
def unsupported_reason() -> str | None:
    """Return why loops cannot be compiled on this machine, or None if they can."""
    if find_spec("numba") is None:
        return "Numba is not installed (pip install 'helixfold[fast]')"
    try:
        numba = import_module("numba")
    except ImportError as error:  # such as for an unsupported version of NumPy
        return f"Numba cannot be imported: {error}"
    if numba.config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set"
    if not _module("threads").ARE_SHARED:
        return "PyTorch does not use GNU OpenMP"
    return None


@cache
def _module(name: str) -> Any:
    return import_module(f"helixfold.ops.cpu.compiled.{name}")
