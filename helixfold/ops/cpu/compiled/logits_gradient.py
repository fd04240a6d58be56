"""Gradients of attention's logits in bfloat16, for sixteen keys of two queries at a time."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from helixfold.ops.cpu.compiled.elements import TILE, rounded_bits

_INT32, _INT64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_FLOATS, _UNITS, _SHORTS = (ir.VectorType(element, TILE) for element in (_FLOAT, _INT32, ir.IntType(16)))


@intrinsic
def write_pairs(
    context: Any,
    rows: Any,
    slopes: Any,
    scales: Any,
    means: Any,
    width: Any,
    weight_units: Any,
    slope_units: Any,
    rounded_slopes: Any,
    first: Any,
) -> Any:
    """Compute the weights and the logits' gradients of two rows of `width`, from column `first` on.

    `rows` has the exponentials and `slopes` the gradients of the weights, in float32, and each row has a scale and the
    mean of its slopes. The logits' gradients are written over the slopes and, rounded, to `rounded_slopes`. Both rows
    together become one row of units of weights, and one of gradients. Arguments are addresses, but `width` and `first`.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows, slopes, scales, means, width, weight_units, slope_units, rounded_slopes, first = args

        def place(base: Any, index: Any, element_size: int, kind: Any) -> Any:
            address = builder.add(base, builder.mul(index, ir.Constant(_INT64, element_size)))
            return builder.inttoptr(address, kind.as_pointer())

        def of_row(base: Any, row: int) -> Any:
            """Return a number of a row in all elements of a vector."""
            one = builder.load(place(base, ir.Constant(_INT64, row), 4, _FLOAT), typ=_FLOAT, align=4)
            vector = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), one, ir.Constant(_INT32, 0))
            return builder.shuffle_vector(vector, vector, ir.Constant(_UNITS, [0] * TILE))

        weights, gradients = [], []
        for row, index in enumerate((first, builder.add(first, width))):
            there = place(slopes, index, 4, _FLOATS)
            weight = builder.fmul(
                builder.load(place(rows, index, 4, _FLOATS), typ=_FLOATS, align=4), of_row(scales, row)
            )
            slope = builder.fsub(builder.load(there, typ=_FLOATS, align=4), of_row(means, row))
            gradient = builder.fmul(weight, slope)
            builder.store(gradient, there, align=4)
            weights.append(rounded_bits(builder, weight))
            gradients.append(rounded_bits(builder, gradient))
            builder.store(gradients[row], place(rounded_slopes, index, 2, _SHORTS), align=2)
        for (one, other), target in ((weights, weight_units), (gradients, slope_units)):
            high = builder.shl(builder.zext(other, _UNITS), ir.Constant(_UNITS, [16] * TILE))
            builder.store(builder.or_(builder.zext(one, _UNITS), high), place(target, first, 4, _UNITS), align=4)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 9), generate
