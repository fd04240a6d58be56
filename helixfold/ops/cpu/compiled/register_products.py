"""Matrix products with sums in registers, for loops compiled by Numba.

PyTorch multiplies batches of float32 matrices with MKL, which uses half of the vector width of AMD processors.

Matrices consist of units of four bytes: one float32 element, or two bfloat16 elements for consecutive terms of the sum.
A left matrix in bfloat16 therefore has the usual layout, and a right one interleaves two rows element by element. Sums
are float32.
"""

from math import inf
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from helixfold.ops.cpu.compiled.elements import FEATURES, BFloat
from helixfold.ops.cpu.compiled.threads import OPTIONS

# Whether registers hold 16 float32 elements, or 8 with AVX2.
IS_WIDE = "avx512f" in FEATURES
# Element sizes for which these products are used. On processors with units for bfloat16 matrices, oneDNN is faster.
SIZES = {size for size, needed in ((4, {"avx2", "fma"}), (2, {"avx512bf16"})) if needed <= FEATURES}
if "amx-bf16" in FEATURES:
    SIZES.discard(2)
_INT32, _INT64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()


def _in_registers(rows: int, vectors: int, size: int, width: int) -> Any:
    """Return a function that computes `rows` rows, and `vectors` times `width` columns, of a product."""
    places = [(row, vector) for row in range(rows) for vector in range(vectors)]
    unit = _FLOAT if size == 4 else _INT32
    sums_type, units_type = ir.VectorType(_FLOAT, width), ir.VectorType(unit, width)
    indices_type = ir.VectorType(_INT32, width)

    def added(builder: Any, total: Any, left: Any, right: Any) -> Any:
        if size == 4:
            return builder.fadd(builder.fmul(left, right, flags=["contract"]), total, flags=["contract"])
        pairs = ir.VectorType(BFloat(), 2 * width)
        name, module = f"llvm.x86.avx512bf16.dpbf16ps.{32 * width}", builder.module
        kind = ir.FunctionType(sums_type, [sums_type, pairs, pairs])
        function = module.globals.get(name) or ir.Function(module, kind, name)
        return builder.call(function, [total, builder.bitcast(left, pairs), builder.bitcast(right, pairs)])

    @intrinsic
    def compute(
        context: Any,
        left: Any,
        row_stride: Any,
        stride: Any,
        right: Any,
        right_stride: Any,
        depth: Any,
        out: Any,
        out_stride: Any,
        start: Any,
        start_stride: Any,
        relu: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            left, row_stride, stride, right, right_stride, depth, out, out_stride, start, start_stride, relu = args

            def const(value: int) -> Any:
                return ir.Constant(_INT64, value)

            def at(base: Any, index: Any, kind: Any) -> Any:
                pointer = builder.gep(builder.inttoptr(base, unit.as_pointer()), [index], source_etype=unit)
                return builder.bitcast(pointer, kind.as_pointer())

            def sums_at(base: Any, base_stride: Any, row: int, vector: int) -> Any:
                return at(base, builder.add(builder.mul(const(row), base_stride), const(vector * width)), sums_type)

            def floats(value: float) -> Any:
                return ir.Constant(sums_type, [value] * width)

            starts = [builder.mul(const(row), row_stride) for row in range(rows)]
            with builder.if_else(builder.icmp_signed("!=", start, const(0))) as (is_given, is_absent):
                with is_given:
                    given = {
                        place: builder.load(sums_at(start, start_stride, *place), typ=sums_type, align=4)
                        for place in places
                    }
                    given_block = builder.basic_block
                with is_absent:
                    absent_block = builder.basic_block
            firsts = {place: builder.phi(sums_type) for place in places}
            for place, phi in firsts.items():
                phi.add_incoming(given[place], given_block)
                phi.add_incoming(floats(0.0), absent_block)
            before = builder.basic_block
            terms, after = (builder.append_basic_block(f"product.{name}") for name in ("terms", "after"))
            builder.branch(terms)

            builder.position_at_end(terms)
            term = builder.phi(_INT64)
            term.add_incoming(const(0), before)
            sums = {place: builder.phi(sums_type) for place in places}
            offset = builder.mul(term, right_stride)
            addresses = [at(right, builder.add(offset, const(v * width)), units_type) for v in range(vectors)]
            rights = [builder.load(address, typ=units_type, align=4) for address in addresses]
            totals = {}
            for row in range(rows):
                address = at(left, builder.add(starts[row], builder.mul(term, stride)), unit)
                one = builder.load(address, typ=unit, align=size)
                nothing = ir.Constant(units_type, ir.Undefined)
                one = builder.insert_element(nothing, one, ir.Constant(_INT32, 0))
                everywhere = builder.shuffle_vector(one, nothing, ir.Constant(indices_type, [0] * width))
                for vector in range(vectors):
                    totals[row, vector] = added(builder, sums[row, vector], everywhere, rights[vector])
            following = builder.add(term, const(1))
            term.add_incoming(following, terms)
            for place, total in totals.items():
                sums[place].add_incoming(firsts[place], before)
                sums[place].add_incoming(total, terms)
            builder.cbranch(builder.icmp_signed("<", following, depth), terms, after)

            builder.position_at_end(after)
            floor = builder.select(builder.icmp_signed("!=", relu, const(0)), floats(0.0), floats(-inf))
            # Addresses computed earlier would take registers from the sums.
            for place, total in totals.items():
                is_below = builder.fcmp_ordered("<", total, floor)
                builder.store(builder.select(is_below, floor, total), sums_at(out, out_stride, *place), align=4)
            return context.get_dummy_value()

        return types.none(*[types.int64] * 11), generate

    return compute


def _panel(rows: int, vectors: int, size: int, width: int) -> Any:
    """Return a function that computes any number of rows, and `vectors` times `width` columns, of a product.

    It computes `rows` rows at a time, then 4, then one.
    """
    several, four, one = (_in_registers(count, vectors, size, width) for count in (rows, 4, 1))

    @njit(**OPTIONS)
    def panel(left, row_stride, stride, right, right_stride, depth, out, out_stride, height, start, start_stride, relu):
        row = 0
        while row < height:
            remaining = height - row
            lefts, target = left + 4 * row * row_stride, out + 4 * row * out_stride
            rest = depth, target, out_stride, start + 4 * row * start_stride, start_stride, relu
            # Twice four rows take less time than six and twice one.
            if remaining >= rows and (rows != 6 or remaining != 8):
                several(lefts, row_stride, stride, right, right_stride, *rest)
                row += rows
            elif remaining >= 4:
                four(lefts, row_stride, stride, right, right_stride, *rest)
                row += 4
            else:
                one(lefts, row_stride, stride, right, right_stride, *rest)
                row += 1

    return panel


def wide_product(size: int) -> Any:
    """Return `product` for elements of `size` bytes, in vectors of 16 units.

    Instead of `add`, it takes the address and the row stride of the numbers that sums start from, which are 0 for
    zeros, and whether to write the positive part of the sums.
    """
    # Sixteen sums hide the latency of a multiplication, and leave half of 32 registers for the factors.
    by_64, by_32 = _panel(4, 4, size, 16), _panel(8, 2, size, 16)
    by_16, by_8 = _panel(8, 1, size, 16), _panel(8, 1, size, 8)

    @njit(**OPTIONS)
    def product(
        left, row_stride, stride, right, right_stride, depth, out, out_stride, rows, columns, start, start_stride, relu
    ):
        column = 0
        while column < columns:
            panel, target, width = right + 4 * column, out + 4 * column, columns - column
            rest = rows, start + 4 * column if start else 0, start_stride, relu
            if width >= 64:
                by_64(left, row_stride, stride, panel, right_stride, depth, target, out_stride, *rest)
                column += 64
            elif width >= 32:
                by_32(left, row_stride, stride, panel, right_stride, depth, target, out_stride, *rest)
                column += 32
            elif width >= 16:
                by_16(left, row_stride, stride, panel, right_stride, depth, target, out_stride, *rest)
                column += 16
            else:
                by_8(left, row_stride, stride, panel, right_stride, depth, target, out_stride, *rest)
                column += 8

    return product


def narrow_product() -> Any:
    """Return the function that `wide_product` returns, for float32, in vectors of 8."""
    # Twelve sums leave four of 16 registers for the factors.
    by_16, by_8 = _panel(6, 2, 4, 8), _panel(8, 1, 4, 8)

    @njit(**OPTIONS)
    def product(
        left, row_stride, stride, right, right_stride, depth, out, out_stride, rows, columns, start, start_stride, relu
    ):
        for column in range(0, columns, 16):
            panel, target = right + 4 * column, out + 4 * column
            rest = rows, start + 4 * column if start else 0, start_stride, relu
            if columns - column >= 16:
                by_16(left, row_stride, stride, panel, right_stride, depth, target, out_stride, *rest)
            else:
                by_8(left, row_stride, stride, panel, right_stride, depth, target, out_stride, *rest)

    return product


float32_product = wide_product(4) if IS_WIDE else narrow_product()
_bfloat16_product = wide_product(2) if "avx512bf16" in FEATURES else float32_product


@njit(**OPTIONS)
def product(left, row_stride, stride, right, right_stride, depth, out, out_stride, rows, columns, add, size):
    """Write the product of matrices of units, or if `add` is not 0, add it to the output.

    Arguments are addresses and strides in units: of the rows and columns of the left matrix, and of the rows of the
    others, whose columns are contiguous. Each sum is over `depth` units, at least 1. `columns` is a multiple of 8.
    """
    start, start_stride = (out, out_stride) if add else (0, 0)
    rest = rows, columns, start, start_stride, 0
    if size == 2:
        _bfloat16_product(left, row_stride, stride, right, right_stride, depth, out, out_stride, *rest)
    else:
        float32_product(left, row_stride, stride, right, right_stride, depth, out, out_stride, *rest)
