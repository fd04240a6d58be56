"""Compilation of loops over rows by Numba, and their execution in the threads of PyTorch's own operators."""

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
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from data_pipeline.io.user_cache import user_cache

# LLVM's flags for floating-point numbers: terms may be added in any order, and a product and a sum may be one
# instruction. NaN and infinity are respected.
FAST = {"reassoc", "contract", "nsz", "arcp"}
# Options of all compiled functions. A function without options would get the options of the first function that
# compiles it. With Python's errors of division, which cannot occur here, a loop would not be vectorised.
OPTIONS: dict[str, Any] = {"fastmath": FAST, "error_model": "numpy"}
# Fields of a call: the next row, the number of rows, the rows that a thread computes at a time, the address of the
# loop, and its arguments.
_NEXT, _TOTAL, _STEP, _LOOP, _ARGUMENTS = range(5)
_INT64 = ir.IntType(64)

# A loop takes the address of its call, and the start and the stop of its rows.
Rows = Callable[[int, int, int], None]


@intrinsic(prefer_literal=True)
def arguments(context: Any, call: Any, first: Any, count: Any) -> Any:
    """Return `count` arguments of a call, starting at `first`, as a tuple; both numbers are constants."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    length = count.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        call, first, _ = args
        values = [
            builder.load(_at(builder, call, builder.add(first, ir.Constant(_INT64, _ARGUMENTS + index))), typ=_INT64)
            for index in range(length)
        ]
        return context.make_tuple(builder, signature.return_type, values)

    return types.UniTuple(types.int64, length)(types.int64, types.int64, count), generate


@intrinsic
def _take(context: Any, call: Any, count: Any) -> Any:
    """Add `count` atomically to the next row of a call, and return its earlier value."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        call, count = args
        return builder.atomic_rmw("add", _at(builder, call, ir.Constant(_INT64, _NEXT)), count, "monotonic")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _compute(context: Any, function: Any, call: Any, start: Any, stop: Any) -> Any:
    """Call the compiled loop at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_INT64] * 3)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64, types.int64), generate


def _at(builder: Any, address: Any, index: Any) -> Any:
    return builder.gep(builder.inttoptr(address, _INT64.as_pointer()), [index], source_etype=_INT64)


def _thread(call):
    """Compute rows that no thread has claimed yet, a few at a time."""
    total, step, loop = arguments(call, _TOTAL - _ARGUMENTS, 3)
    start = _take(call, step)
    while start < total:
        _compute(loop, call, start, min(start + step, total))
        start = _take(call, step)


# The OpenMP library that PyTorch is linked with, if it is GNU OpenMP.
_LIBRARY = ctypes.CDLL(torch._C.__file__)
# Whether loops can run in the threads of PyTorch's operators.
ARE_SHARED = hasattr(_LIBRARY, "GOMP_parallel")


@cache
def _parallel() -> Any:
    """Return the OpenMP function that runs another function in each thread, and the address of that function."""
    run = _LIBRARY.GOMP_parallel
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    run.restype = None
    return run, _compiled("thread", _thread, types.void(types.int64))


@cache
def loop(rows: Callable[..., Rows], *constants: int) -> int:
    """Return the address of the compiled loop that `rows` returns for these constants, from the cache if possible."""
    name = ".".join((rows.__module__.rpartition(".")[2], rows.__name__, *map(str, constants)))
    return _compiled(name, rows(*constants), types.void(types.int64, types.int64, types.int64))


def run(address: int, total: int, step: int, *values: int) -> None:
    """Compute rows 0 to `total` with the loop at an address, in parallel, `step` rows at a time per thread."""
    parallel, thread = _parallel()
    call = (ctypes.c_int64 * (_ARGUMENTS + len(values)))(0, total, step, address, *values)
    parallel(thread, ctypes.addressof(call), 0 if total > step else 1, 0)


def _compiled(name: str, function: Callable[..., None], signature: Any) -> int:
    """Return the address of a compiled function, which is stored in the user's cache if that is writable.

    `name` is its directory in the cache. Numba numbers the functions of a directory that have the same definition, such
    as a loop for other constants. If two processes stored two of them at the same time, one would get the other's code.
    """
    directory = _cache_directory()
    if directory is None:
        return int(cfunc(signature, **OPTIONS)(function).address)
    earlier, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(directory / name)
    try:
        return int(cfunc(signature, cache=True, **OPTIONS)(function).address)
    finally:
        numba.config.CACHE_DIR = earlier


@cache
def _cache_directory() -> Path | None:
    """Return the cache directory for these exact sources and this processor.

    Numba itself checks only one of the source files, and would number code for other processors, too (`_compiled`). The
    result is None if the directory is not writable, or if other users can write to it.
    """
    cache = user_cache()
    if cache is None:
        return None
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    processor = repr(cpu_target.target_context.codegen().magic_tuple()).encode()
    directory = cache / "loops" / hashlib.sha256(sources + processor).hexdigest()[:16]
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError:
        return None
    # Code is loaded from the cache, so no other user may be able to write to it.
    is_own = status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return directory if is_own and os.access(directory, os.W_OK) else None
