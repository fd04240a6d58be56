"""Integer arithmetic of Triton kernels on numbers and arrays: what decides which memory a program reads and writes."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from helixfold.benchmark.static.ttir import Operation, pointed_bytes, tensor_type


@dataclass(frozen=True, eq=False)
class Pointer:
    """Addresses in the memory of an argument: `offset` in bytes, a number or one for each element of a tensor."""

    argument: str
    offset: Any

    def moved(self, offset: Any) -> "Pointer":
        return Pointer(self.argument, self.offset + offset)


Value = Any  # an int, an array of ints or booleans, a `Pointer`, or None for what is not followed


def _quotient(dividend: Any, divisor: Any) -> Any:
    """Return the quotient rounded towards zero, as a GPU does."""
    found = np.abs(dividend) // np.maximum(np.abs(divisor), 1) * (np.sign(dividend) * np.sign(divisor))
    return found if isinstance(found, np.ndarray) else int(found)


def _remainder(dividend: Any, divisor: Any) -> Any:
    return dividend - _quotient(dividend, divisor) * divisor


_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    **dict.fromkeys(("slt", "ult"), operator.lt),
    **dict.fromkeys(("sle", "ule"), operator.le),
    **dict.fromkeys(("sgt", "ugt"), operator.gt),
    **dict.fromkeys(("sge", "uge"), operator.ge),
}
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    **dict.fromkeys(("arith.divsi", "arith.divui"), _quotient),
    **dict.fromkeys(("arith.remsi", "arith.remui"), _remainder),
    **dict.fromkeys(("arith.minsi", "arith.minui"), np.minimum),
    **dict.fromkeys(("arith.maxsi", "arith.maxui"), np.maximum),
    "arith.andi": operator.and_,
    "arith.ori": operator.or_,
    "arith.xori": operator.xor,
    "arith.shli": operator.lshift,
    **dict.fromkeys(("arith.shrsi", "arith.shrui"), operator.rshift),
}
_SAME = {"arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "tt.bitcast"}
_AXES = {"x": 0, "y": 1, "z": 2}
_CONSTANT = re.compile(r"^\s*(?:dense<)?(-?\d+|true|false)>?\s*$")


def is_integer_operation(operator_name: str) -> bool:
    """Return whether the operation computes addresses, masks or sizes and is followed here."""
    return operator_name in _BINARY or operator_name in _SAME or operator_name in _OTHERS


def followed(operation: Operation, given: list[Value], program: tuple[int, ...], grid: tuple[int, ...]) -> Value:
    """Return the result of an operation on integers or pointers; None if it does not follow from what is known."""
    name = operation.operator
    if name in _OTHERS:
        return _OTHERS[name](operation, given, program, grid)
    if any(each is None or isinstance(each, Pointer) for each in given):
        return None
    if name in _SAME:
        return given[0]
    return _BINARY[name](*given)


def _constant(operation: Operation, *_: Any) -> Value:
    found = _CONSTANT.match(operation.text)
    if found is None:
        return None  # a floating-point number
    number = found[1] == "true" if found[1] in ("true", "false") else int(found[1])
    tensor = tensor_type(operation.types)
    return number if tensor is None else np.broadcast_to(np.asarray(number), tensor[0])


def _compared(operation: Operation, given: list[Value], *_: Any) -> Value:
    left, right = given
    if left is None or right is None:
        return None
    return _COMPARE[operation.text.split(",")[0].strip()](left, right)


def _selected(operation: Operation, given: list[Value], *_: Any) -> Value:
    condition, first, second = given
    if condition is None or first is None or second is None or any(isinstance(each, Pointer) for each in given[1:]):
        return None
    if isinstance(condition, np.ndarray):
        return np.where(condition, first, second)
    return first if condition else second


def _range(operation: Operation, *_: Any) -> Value:
    bounds = {name: int(number) for name, number in re.findall(r"(start|end) = (\d+)", operation.text)}
    return np.arange(bounds["start"], bounds["end"])


def _reshaped(change: Callable[[Operation, Any, tuple[int, ...]], Any]) -> Callable[..., Value]:
    """Return a function that changes the shape of an array, or of the addresses of a pointer."""

    def run(operation: Operation, given: list[Value], *_: Any) -> Value:
        tensor, value = tensor_type(operation.types), given[0]
        if value is None or tensor is None:
            return None
        if isinstance(value, Pointer):
            return Pointer(value.argument, change(operation, np.asarray(value.offset), tensor[0]))
        return change(operation, np.asarray(value), tensor[0])

    return run


def _transposed(operation: Operation, array: Any, shape: tuple[int, ...]) -> Any:
    order = re.search(r"order = array<i32: ([\d, ]+)>", operation.text)
    return array.transpose([int(each) for each in order[1].split(",")]) if order else array.T


def _added(operation: Operation, given: list[Value], *_: Any) -> Value:
    pointer, offset = given
    if not isinstance(pointer, Pointer):
        return None
    size = pointed_bytes(operation.types)
    return Pointer(pointer.argument, None) if offset is None else pointer.moved(offset * size)


_OTHERS: Mapping[str, Callable[..., Value]] = {
    "arith.constant": _constant,
    "arith.cmpi": _compared,
    "arith.select": _selected,
    "tt.get_program_id": lambda operation, _, program, grid: program[_AXES[operation.text.strip()[0]]],
    "tt.get_num_programs": lambda operation, _, program, grid: grid[_AXES[operation.text.strip()[0]]],
    "tt.make_range": _range,
    "tt.addptr": _added,
    **dict.fromkeys(("tt.splat", "tt.broadcast"), _reshaped(lambda _, array, shape: np.broadcast_to(array, shape))),
    **dict.fromkeys(("tt.expand_dims", "tt.reshape"), _reshaped(lambda _, array, shape: array.reshape(shape))),
    "tt.trans": _reshaped(_transposed),
}
