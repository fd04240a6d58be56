"""Access to elements of tensors in memory as float32, and functions of them, for loops compiled by Numba."""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.core.cgutils import raw_memcpy
from numba.extending import intrinsic

from helixfold.ops.cpu.compiled.threads import OPTIONS

# Whether Numba compiles for this processor.
_IS_FOR_HOST = not (numba.config.CPU_NAME or numba.config.CPU_FEATURES)
# LLVM's names of the instruction sets of this processor; empty if Numba compiles for another processor.
FEATURES = frozenset(name for name, present in get_host_cpu_features().items() if present and _IS_FOR_HOST)
# Rows and columns of a tile that is transposed in registers.
TILE = 16
_INT16, _INT32, _FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()
_LOG2_E = np.float32(1.4426950408889634)
# The natural logarithm of 2 as a sum: the first term times a small integer is exact.
_LN2, _LN2_REST = np.float32(0.693359375), np.float32(-2.1219444005469057e-4)
# exp of this is the smallest normal float32.
_MIN_EXPONENT = np.float32(-87.33654)
# Maximum argument of `exp`, beyond which its result would overflow.
_MAX_EXPONENT = np.float32(88)


class BFloat(ir.HalfType):
    """LLVM's bfloat16 type, which llvmlite lacks."""

    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"


BFloat._create_instance()


def _pointer(builder: Any, address: Any, index: Any, element: Any) -> Any:
    return builder.gep(builder.inttoptr(address, element.as_pointer()), [index], source_etype=element)


def _load(element: Any, size: int) -> Any:
    @intrinsic
    def load(context: Any, address: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            address, index = args
            value = builder.load(_pointer(builder, address, index, element), typ=element, align=size)
            if size == 2:
                value = builder.shl(builder.zext(value, _INT32), ir.Constant(_INT32, 16))
                value = builder.bitcast(value, _FLOAT)
            return value

        return types.float32(types.int64, types.int64), generate

    return load


def rounded_bits(builder: Any, value: Any) -> Any:
    """Return the bits of a number, or of the elements of a vector, rounded to bfloat16 (nearest, ties to even).

    Only the NaN values that processors produce stay NaN. The AVX-512 instruction for this is slower: a layer norm takes
    1.4 times as long on an AMD EPYC (Zen 5).
    """
    lanes = value.type.count if isinstance(value.type, ir.VectorType) else None
    wide, short = (kind if lanes is None else ir.VectorType(kind, lanes) for kind in (_INT32, _INT16))

    def constant(value: int) -> Any:
        return ir.Constant(wide, value if lanes is None else [value] * lanes)

    bits = builder.bitcast(value, wide)
    odd = builder.and_(builder.lshr(bits, constant(16)), constant(1))
    bits = builder.add(builder.add(bits, constant(0x7FFF)), odd)
    return builder.trunc(builder.lshr(bits, constant(16)), short)


def _store(element: Any, size: int) -> Any:
    @intrinsic
    def store(context: Any, address: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            address, index, value = args
            value = rounded_bits(builder, value) if size == 2 else value
            builder.store(value, _pointer(builder, address, index, element), align=size)
            return context.get_dummy_value()

        return types.none(types.int64, types.int64, types.float32), generate

    return store


_load_bfloat16, _store_bfloat16 = _load(_INT16, 2), _store(_INT16, 2)
_load_float32, _store_float32 = _load(_FLOAT, 4), _store(_FLOAT, 4)


@njit(forceinline=True, **OPTIONS)
def read(address, index, size):
    """Return the element at an index, of `size` bytes, as float32."""
    if size == 2:
        return _load_bfloat16(address, index)
    return _load_float32(address, index)


@njit(forceinline=True, **OPTIONS)
def write(address, index, size, value):
    """Write a float32 number, rounded to `size` bytes, to the element at an index."""
    if size == 2:
        _store_bfloat16(address, index, value)
    else:
        _store_float32(address, index, value)


@njit(forceinline=True, **OPTIONS)
def clear(address, count):
    """Write `count` float32 zeros."""
    for index in range(count):
        _store_float32(address, index, np.float32(0))


@intrinsic
def write_pair(context: Any, address: Any, index: Any, first: Any, second: Any) -> Any:
    """Round two float32 numbers to bfloat16 and write them to elements 2 * index and 2 * index + 1 of an array."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, index, first, second = args
        first, second = (builder.zext(rounded_bits(builder, value), _INT32) for value in (first, second))
        pair = builder.or_(first, builder.shl(second, ir.Constant(_INT32, 16)))
        builder.store(pair, _pointer(builder, address, index, _INT32), align=4)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.float32, types.float32), generate


@intrinsic
def copy(context: Any, source: Any, target: Any, count: Any) -> Any:
    """Copy `count` bytes from one address to another."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        source, target = (builder.inttoptr(address, byte) for address in args[:2])
        raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), generate


@intrinsic
def ordered(context: Any, value: Any) -> Any:
    """Map a number to an integer that has the same order, with NaN as the largest, so that maxima are fast."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _flipped(builder, builder.bitcast(args[0], _INT32))

    return types.int32(types.float32), generate


@intrinsic
def unordered(context: Any, order: Any) -> Any:
    """Return the number that `ordered` mapped to this integer."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(_flipped(builder, args[0]), _FLOAT)

    return types.float32(types.int32), generate


def _flipped(builder: Any, bits: Any) -> Any:
    """Return the bits, with all except the sign flipped if the sign is set."""
    sign = builder.ashr(bits, ir.Constant(_INT32, 31))
    return builder.xor(bits, builder.and_(sign, ir.Constant(_INT32, 0x7FFFFFFF)))


@intrinsic
def larger(context: Any, one: Any, other: Any) -> Any:
    """Return the larger of two 32-bit integers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.icmp_signed(">", *args), *args)

    return types.int32(types.int32, types.int32), generate


@intrinsic
def _power_of_two(context: Any, exponent: Any) -> Any:
    """Return 2 to the power of an integer from -126 to 127."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        exponent = builder.add(builder.fptosi(args[0], _INT32), ir.Constant(_INT32, 127))
        return builder.bitcast(builder.shl(exponent, ir.Constant(_INT32, 23)), _FLOAT)

    return types.float32(types.float32), generate


@njit(forceinline=True, fastmath={"contract"}, error_model="numpy")
def exp(x):
    """Return exp(x) for x up to 88, with a relative error below 2e-7; results are at least about 1e-38."""
    x = _MIN_EXPONENT if x < _MIN_EXPONENT else x
    whole = np.float32(np.floor(x * _LOG2_E + np.float32(0.5)))
    part = x - whole * _LN2 - whole * _LN2_REST
    # The best polynomial approximation of exp between -ln(2)/2 and ln(2)/2.
    result = np.float32(0.0013948593)
    result = result * part + np.float32(0.008375137)
    result = result * part + np.float32(0.041666217)
    result = result * part + np.float32(0.16666415)
    result = result * part + np.float32(0.5)
    result = result * part + np.float32(1)
    result = result * part + np.float32(1)
    return result * _power_of_two(whole)


@njit(forceinline=True, fastmath={"contract"}, error_model="numpy")
def sigmoid(x):
    """Return the logistic function of a number."""
    # With a larger exponent, the result would be 0 within rounding.
    power = _MAX_EXPONENT if -x > _MAX_EXPONENT else -x
    return np.float32(1) / (np.float32(1) + exp(power))


def _transposed_tile(element: Any, align: int) -> Any:
    vector = ir.VectorType(element, TILE)

    @intrinsic
    def transpose(context: Any, source: Any, stride: Any, target: Any, target_stride: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source, stride, target, target_stride = args

            def row(base: Any, stride: Any, index: int) -> Any:
                at = _pointer(builder, base, builder.mul(ir.Constant(ir.IntType(64), index), stride), element)
                return builder.bitcast(at, vector.as_pointer())

            rows = [builder.load(row(source, stride, i), typ=vector, align=align) for i in range(TILE)]
            # Each step exchanges one bit of the row index with the same bit of the column index.
            for bit in (1, 2, 4, 8):
                for i in (i for i in range(TILE) if not i & bit):
                    one, other = rows[i], rows[i | bit]
                    for to, first in ((i, 0), (i | bit, bit)):
                        lanes = [(lane & ~bit | first) + TILE * bool(lane & bit) for lane in range(TILE)]
                        mask = ir.Constant(ir.VectorType(_INT32, TILE), lanes)
                        rows[to] = builder.shuffle_vector(one, other, mask)
            for i in range(TILE):
                builder.store(rows[i], row(target, target_stride, i), align=align)
            return context.get_dummy_value()

        return types.none(*[types.int64] * 4), generate

    return transpose


_transpose_16_bits, _transpose_32_bits = _transposed_tile(_INT16, 2), _transposed_tile(_INT32, 4)


@njit(**OPTIONS)
def transpose(source, stride, rows, columns, target, target_stride, size):
    """Write the transpose of a matrix [rows, columns] of elements of `size` bytes to `target`.

    Strides are the distances between rows in elements.
    """
    whole_rows, whole_columns = rows // TILE * TILE, columns // TILE * TILE
    for row in range(0, whole_rows, TILE):
        for column in range(0, whole_columns, TILE):
            first, second = source + size * (row * stride + column), target + size * (column * target_stride + row)
            if size == 2:
                _transpose_16_bits(first, stride, second, target_stride)
            else:
                _transpose_32_bits(first, stride, second, target_stride)
    for row in range(rows):
        for column in range(whole_columns if row < whole_rows else 0, columns):
            copy(source + size * (row * stride + column), target + size * (column * target_stride + row), size)
