"""A loop of multiply-adds in registers, which has the highest rate of float32 operations of a processor."""

from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from helixfold.ops.cpu.compiled.elements import FEATURES, write
from helixfold.ops.cpu.compiled.threads import Rows, arguments, loop, run

# Whether the processor has instructions that multiply and add.
IS_SUPPORTED = not FEATURES.isdisjoint(("fma", "avx512f", "neon"))
_WIDTH = 16 if "avx512f" in FEATURES else 8 if "fma" in FEATURES else 4
# So many sums hide the latency of the instructions, and fit the registers.
_SUMS = 12
_STEPS = 2**18
_INT32, _INT64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, _WIDTH)
# Floating-point operations of a row of the loop.
FLOPS = 2 * _WIDTH * _SUMS * _STEPS


@intrinsic
def _sum(context: Any, steps: Any) -> Any:
    """Multiply each of `_SUMS` vectors by a half and add 1, `steps` times, and return an element of their sum."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def const(value: float) -> Any:
            return ir.Constant(_VECTOR, [float(value)] * _WIDTH)

        before = builder.basic_block
        terms, after = (builder.append_basic_block(f"peak.{name}") for name in ("terms", "after"))
        builder.branch(terms)

        builder.position_at_end(terms)
        step = builder.phi(_INT64)
        step.add_incoming(ir.Constant(_INT64, 0), before)
        sums = [builder.phi(_VECTOR) for _ in range(_SUMS)]
        halves = [builder.fmul(each, const(0.5), flags=["contract"]) for each in sums]
        totals = [builder.fadd(half, const(1), flags=["contract"]) for half in halves]
        following = builder.add(step, ir.Constant(_INT64, 1))
        step.add_incoming(following, terms)
        for index in range(_SUMS):
            # Equal vectors would be computed only once.
            sums[index].add_incoming(const(index), before)
            sums[index].add_incoming(totals[index], terms)
        builder.cbranch(builder.icmp_signed("<", following, args[0]), terms, after)

        builder.position_at_end(after)
        total = totals[0]
        for each in totals[1:]:
            total = builder.fadd(total, each)
        return builder.extract_element(total, ir.Constant(_INT32, 0))

    return types.float32(types.int64), generate


def _rows() -> Rows:
    def rows(call, start, stop):
        steps, out = arguments(call, 0, 2)
        for row in range(start, stop):
            write(out, row, 4, _sum(steps))

    return rows


def multiply_add(out: torch.Tensor) -> None:
    """Do `FLOPS` floating-point operations in each row, in parallel, and write a number per row to a float32 tensor."""
    run(loop(_rows), len(out), 1, _STEPS, out.data_ptr())
