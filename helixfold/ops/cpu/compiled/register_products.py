"""Matrix products with sums in registers, for loops compiled by Numba.

PyTorch multiplies batches of float32 matrices with MKL, which uses half of the vector width of AMD processors.

Matrices consist of units of four bytes: one float32 element, or two bfloat16 elements for consecutive terms of the sum.
A left matrix in bfloat16 therefore has the usual layout, and a right one interleaves two rows element by element. Sums
are float32.
"""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from helixfold.ops.cpu.compiled.elements import FEATURES, BFloat
from helixfold.ops.cpu.compiled.threads import OPTIONS

# Element sizes for which these products are used. With narrower vectors, the sums would not fit the registers, and MKL
# is as fast. On processors with units for bfloat16 matrices, oneDNN is faster.
SIZES = {size for size, feature in ((4, "avx512f"), (2, "avx512bf16")) if feature in FEATURES}
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
        add: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            left, row_stride, stride, right, right_stride, depth, out, out_stride, add = args

            def const(value: int) -> Any:
                return ir.Constant(_INT64, value)

            def at(base: Any, index: Any, kind: Any) -> Any:
                pointer = builder.gep(builder.inttoptr(base, unit.as_pointer()), [index], source_etype=unit)
                return builder.bitcast(pointer, kind.as_pointer())

            starts = [builder.mul(const(row), row_stride) for row in range(rows)]
            before = builder.basic_block
            terms, after = (builder.append_basic_block(f"product.{name}") for name in ("terms", "after"))
            builder.branch(terms)

            builder.position_at_end(terms)
            term = builder.phi(_INT64)
            term.add_incoming(const(0), before)
            sums = {place: builder.phi(sums_type) for place in places}
            first = builder.mul(term, right_stride)
            addresses = [at(right, builder.add(first, const(v * width)), units_type) for v in range(vectors)]
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
                sums[place].add_incoming(ir.Constant(sums_type, [0.0] * width), before)
                sums[place].add_incoming(total, terms)
            builder.cbranch(builder.icmp_signed("<", following, depth), terms, after)

            builder.position_at_end(after)
            # Addresses computed earlier would take registers from the sums.
            outs = {}
            for row, vector in places:
                index = builder.add(builder.mul(const(row), out_stride), const(vector * width))
                outs[row, vector] = at(out, index, sums_type)
            with builder.if_else(builder.icmp_signed("!=", add, const(0))) as (adds, writes):
                with adds:
                    for place, total in totals.items():
                        there = builder.load(outs[place], typ=sums_type, align=4)
                        builder.store(builder.fadd(there, total), outs[place], align=4)
                with writes:
                    for place, total in totals.items():
                        builder.store(total, outs[place], align=4)
            return context.get_dummy_value()

        return types.none(*[types.int64] * 9), generate

    return compute


def _panel(rows: int, vectors: int, size: int, width: int = 16) -> Any:
    """Return a function that computes any number of rows, and `vectors` times `width` columns, of a product."""
    several, one = _in_registers(rows, vectors, size, width), _in_registers(1, vectors, size, width)

    @njit(**OPTIONS)
    def panel(left, row_stride, stride, right, right_stride, depth, out, out_stride, height, add):
        row = 0
        while row + rows <= height:
            first, target = left + 4 * row * row_stride, out + 4 * row * out_stride
            several(first, row_stride, stride, right, right_stride, depth, target, out_stride, add)
            row += rows
        while row < height:
            first, target = left + 4 * row * row_stride, out + 4 * row * out_stride
            one(first, row_stride, stride, right, right_stride, depth, target, out_stride, add)
            row += 1

    return panel


def _product(size: int) -> Any:
    # Sixteen sums hide the latency of a multiplication, and leave registers for the factors.
    by_64, by_32 = _panel(4, 4, size), _panel(8, 2, size)
    by_16, by_8 = _panel(8, 1, size), _panel(8, 1, size, 8)

    @njit(**OPTIONS)
    def product(left, row_stride, stride, right, right_stride, depth, out, out_stride, rows, columns, add):
        column = 0
        while column < columns:
            panel, target, width = right + 4 * column, out + 4 * column, columns - column
            if width >= 64:
                by_64(left, row_stride, stride, panel, right_stride, depth, target, out_stride, rows, add)
                column += 64
            elif width >= 32:
                by_32(left, row_stride, stride, panel, right_stride, depth, target, out_stride, rows, add)
                column += 32
            elif width >= 16:
                by_16(left, row_stride, stride, panel, right_stride, depth, target, out_stride, rows, add)
                column += 16
            else:
                by_8(left, row_stride, stride, panel, right_stride, depth, target, out_stride, rows, add)
                column += 8

    return product


_float32_product = _product(4)
_bfloat16_product = _product(2) if "avx512bf16" in FEATURES else _float32_product


@njit(**OPTIONS)
def product(left, row_stride, stride, right, right_stride, depth, out, out_stride, rows, columns, add, size):
    """Write the product of matrices of units, or if `add` is not 0, add it to the output.

    Arguments are addresses and strides in units: of the rows and columns of the left matrix, and of the rows of the
    others, whose columns are contiguous. Each sum is over `depth` units, at least 1. `columns` is a multiple of 8.
    """
    if size == 2:
        _bfloat16_product(left, row_stride, stride, right, right_stride, depth, out, out_stride, rows, columns, add)
    else:
        _float32_product(left, row_stride, stride, right, right_stride, depth, out, out_stride, rows, columns, add)
