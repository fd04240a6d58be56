"""Loops over rows that Numba compiles, in the threads in which PyTorch's own operators run."""

import ctypes
import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import torch
from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic

from data_pipeline.io.user_cache import user_cache

# Terms may be added in any order, and a product and a sum be one instruction. NaN and infinity are kept.
FAST = {"reassoc", "contract", "nsz", "arcp"}
# Options of all that is compiled. A function without its own has those of whatever compiles it first: with Python's
# errors of division, which nothing here can raise, a loop takes one element at a time.
OPTIONS: dict[str, Any] = {"fastmath": FAST, "error_model": "numpy"}
# Of a call: the next row, the number of rows, how many a thread takes at a time, the loop's address, its arguments.
_NEXT, _TOTAL, _STEP, _LOOP, _ARGUMENTS = range(5)
_INT64 = ir.IntType(64)

# A loop gets the address of its call, the first row that it computes and the one after the last.
Rows = Callable[[int, int, int], None]


@intrinsic(prefer_literal=True)
def arguments(context: Any, call: Any, first: Any, count: Any) -> Any:
    """Return `count` arguments of a call from the `first` on, as a tuple; both are constants."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    number = count.literal_value

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        call, first, _ = given
        values = [
            builder.load(_at(builder, call, builder.add(first, ir.Constant(_INT64, _ARGUMENTS + index))), typ=_INT64)
            for index in range(number)
        ]
        return context.make_tuple(builder, signature.return_type, values)

    return types.UniTuple(types.int64, number)(types.int64, types.int64, count), generate


@intrinsic
def _take(context: Any, call: Any, count: Any) -> Any:
    """Add to a call's next row, as no other thread does meanwhile, and return what it was."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        call, count = given
        return builder.atomic_rmw("add", _at(builder, call, ir.Constant(_INT64, _NEXT)), count, "monotonic")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _compute(context: Any, function: Any, call: Any, start: Any, stop: Any) -> Any:
    """Call the compiled loop at an address."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_INT64] * 3)
        builder.call(builder.inttoptr(given[0], kind.as_pointer()), given[1:])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64, types.int64), generate


def _at(builder: Any, address: Any, index: Any) -> Any:
    return builder.gep(builder.inttoptr(address, _INT64.as_pointer()), [index], source_etype=_INT64)


def _thread(call):
    """Compute rows that no thread has taken yet, a few at a time."""
    total, step, loop = arguments(call, _TOTAL - _ARGUMENTS, 3)
    start = _take(call, step)
    while start < total:
        _compute(loop, call, start, min(start + step, total))
        start = _take(call, step)


# The OpenMP library that PyTorch was linked with, if it is GNU's.
_LIBRARY = ctypes.CDLL(torch._C.__file__)
ARE_SHARED = hasattr(_LIBRARY, "GOMP_parallel")


@cache
def _parallel() -> Any:
    """Return the function of the OpenMP library that runs another one in all its threads, and that other one."""
    run = _LIBRARY.GOMP_parallel
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    run.restype = None
    return run, _compiled(_thread, types.void(types.int64))


@cache
def loop(rows: Callable[..., Rows], *constants: int) -> int:
    """Return the address of the loop that `rows` makes for these constants, compiled in an earlier process or now."""
    return _compiled(rows(*constants), types.void(types.int64, types.int64, types.int64))


def run(address: int, total: int, step: int, *given: int) -> None:
    """Compute rows 0 to `total` by the loop at an address, in all threads, each of which takes `step` at a time."""
    parallel, thread = _parallel()
    call = (ctypes.c_int64 * (_ARGUMENTS + len(given)))(0, total, step, address, *given)
    parallel(thread, ctypes.addressof(call), 0 if total > step else 1, 0)


def _compiled(function: Callable[..., None], signature: Any) -> int:
    """Return the address of a function, which is kept in the user's cache if that can be written."""
    directory = _cache_directory()
    if directory is None:
        return int(cfunc(signature, **OPTIONS)(function).address)
    earlier, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(directory)
    try:
        return int(cfunc(signature, cache=True, **OPTIONS)(function).address)
    finally:
        numba.config.CACHE_DIR = earlier


@cache
def _cache_directory() -> Path | None:
    """Return the directory of what was compiled from these very sources: Numba looks only at one file of them.

    It is None if the directory cannot be written, or if other users can write it.
    """
    cache = user_cache()
    if cache is None:
        return None
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    directory = cache / "loops" / hashlib.sha256(sources).hexdigest()[:16]
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError:
        return None
    # Code is loaded from there, and a cache may be shared: nobody else must be able to write it.
    is_own = status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return directory if is_own and os.access(directory, os.W_OK) else None
