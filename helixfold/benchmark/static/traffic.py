"""Count what a kernel's launch reads, writes and computes, by following its text (TTIR) for some of its programs.

Integers are computed, so the addresses that a program asks for are known; floating-point numbers are not. The body of a
loop is followed once, at its first step, and counted as often as it runs.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import numpy as np
from torch import Tensor

from helixfold.benchmark.static.integers import Pointer, Value, followed, is_integer_operation
from helixfold.benchmark.static.ttir import (
    Function,
    NotFollowedError,
    Operation,
    Region,
    parsed,
    pointed_bytes,
    tensor_type,
    tensor_types,
)
from helixfold.ops.triton.compiled import CompiledKernel, Launch

# Bytes of the smallest piece that the caches move.
SECTOR_BYTES = 32
# Programs of a grid that are followed; their mean stands for all.
_PROGRAMS = 24
# Each comes from another part of the grid, where this share of the part before it is added at every step: were they
# evenly spread, each might be the same tile of another row.
_GOLDEN = 0.6180339887498949

# Instructions of a thread for each element of a tensor operation, where it is not one. Elements of one thread are next
# to each other, so two conversions to 16 bits are one instruction, and many addresses differ by a constant and cost
# nothing. Exponentials, logarithms and roots take a unit with a quarter of a scheduler's lanes or less, and a few
# instructions around it. A division in float32 is correct to the last bit: a reciprocal, two steps of Newton's method
# and a test for the cases that need a longer way. A sum along a dimension adds every element once, and the partial sums
# of threads cost little beside that.
INSTRUCTIONS: Mapping[str, float] = {
    "arith.extf": 0.5,
    "arith.truncf": 0.5,
    "arith.negf": 0.5,
    "arith.divf": 9.0,
    "math.exp": 6.0,
    "math.exp2": 4.0,
    "math.log": 6.0,
    "math.log2": 5.0,
    "math.sqrt": 8.0,
    "math.rsqrt": 5.0,
    "tt.reduce": 1.0,
    "tt.scan": 2.0,
    "tt.load": 0.5,
    "tt.store": 0.5,
}


@dataclass(eq=False)
class Work:
    """Bytes that the programs of a launch ask for, and the operations that they compute.

    `loaded` and `stored` are bytes by argument, `sectors` the bytes of the sectors that hold them. `flop` is the
    floating-point operations of matrix instructions and `instructions` those of threads for everything else.
    """

    loaded: Counter[str] = field(default_factory=Counter)
    stored: Counter[str] = field(default_factory=Counter)
    sectors: float = 0.0
    flop: float = 0.0
    instructions: float = 0.0

    def add(self, other: "Work", factor: float) -> None:
        """Add `factor` times the work of another."""
        for mine, its in ((self.loaded, other.loaded), (self.stored, other.stored)):
            for name, count in its.items():
                mine[name] += factor * count  # type: ignore[assignment]
        self.sectors += factor * other.sectors
        self.flop += factor * other.flop
        self.instructions += factor * other.instructions


def launch_work(launch: Launch) -> Work:
    """Return the work of all programs of a launch; raise `NotFollowedError` for what is not understood."""
    grid = (*launch.grid, 1, 1)[:3]
    environment = _parameters(_parsed(launch.kernel), launch.arguments)
    # Of a tensor only its name counts here, so that launches on other tensors of the same sizes need not be followed.
    key = tuple((name, each.argument if isinstance(each, Pointer) else each) for name, each in environment.items())
    return _work(launch.kernel, grid, key)


@cache
def _work(kernel: CompiledKernel, grid: tuple[int, int, int], parameters: tuple[tuple[str, Any], ...]) -> Work:
    function, programs = _parsed(kernel), prod(grid)
    environment = {name: Pointer(each, 0) if isinstance(each, str) else each for name, each in parameters}
    total = Work()
    followed_programs = _spread(programs)
    for number in followed_programs:
        program = (number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1]))
        run = _Program(program, grid, dict(environment))
        run.follow(function.body)
        total.add(run.work, programs / len(followed_programs))
    return total


def _spread(programs: int) -> list[int]:
    """Return the numbers of the programs to follow: all of them, or some from all parts of the grid."""
    if programs <= _PROGRAMS:
        return list(range(programs))
    return [int((part + part * _GOLDEN % 1) * programs / _PROGRAMS) for part in range(_PROGRAMS)]


def moved_bytes(launch: Launch, work: Work) -> float:
    """Return the bytes of distinct memory that a launch reads, plus those that it writes.

    An argument that is both read and written counts twice, one that is given several times once.
    """
    moved = 0.0
    for asked in (work.loaded, work.stored):
        by_memory: dict[Any, tuple[int, float]] = {}
        for name, wanted in asked.items():
            tensor = _flat(launch.arguments)[name]
            key = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride())
            known = by_memory.get(key, (0, 0.0))[1]
            by_memory[key] = (_distinct(tensor), known + wanted)
        moved += sum(min(distinct, wanted) for distinct, wanted in by_memory.values())
    return moved


def given_bytes(launch: Launch) -> float:
    """Return the bytes of distinct memory that a launch is given, whatever it does with it."""
    largest: dict[int, int] = {}
    for each in _flat(launch.arguments).values():
        if isinstance(each, Tensor):
            memory = each.untyped_storage()._cdata
            largest[memory] = max(largest.get(memory, 0), _distinct(each))
    return float(sum(largest.values()))


def _distinct(tensor: Tensor) -> int:
    """Return the bytes of the distinct elements of a tensor: an expanded one has fewer than elements."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return min(prod(sizes) * tensor.element_size(), tensor.untyped_storage().nbytes())


@cache
def _parsed(kernel: CompiledKernel) -> Function:
    return parsed(kernel.ttir)


def _flat(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name; the parts of tuples are called `sizes.0`, `sizes.1` and so on."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, tuple):
            found |= _flat({f"{name}.{place}": part for place, part in enumerate(value)})
        else:
            found[name] = value
    return found


def _parameters(function: Function, arguments: Mapping[str, Any]) -> dict[str, Value]:
    """Return the values of the parameters by their names in the text."""
    values: dict[str, Value] = {}
    for name, texts in function.parameters.items():
        flat = _flat({name: arguments[name]})
        if isinstance(arguments[name], tuple):
            # A one and an absent argument are constants of the compiled kernel.
            flat = {
                part: value
                for part, value in flat.items()
                if value is not None and not (isinstance(value, int) and value == 1)
            }
        if len(flat) != len(texts):
            raise NotFollowedError(f"the compiled kernel has {len(texts)} parts of {name}, the launch {len(flat)}")
        for text, (part, value) in zip(texts, flat.items(), strict=True):
            if isinstance(value, Tensor):
                values[text] = Pointer(part, 0)
            else:
                values[text] = value if isinstance(value, int) else None
    return values


class _Program:
    """One program of a grid, followed from its first operation to its return."""

    def __init__(self, program: tuple[int, ...], grid: tuple[int, ...], environment: dict[str, Value]) -> None:
        self.program, self.grid, self.environment = program, grid, environment
        self.work, self.times = Work(), 1.0

    def follow(self, region: Region) -> Operation | None:
        """Follow a region from its first block; return the operation that ends it."""
        block: str | None = next(iter(region))
        while block is not None:
            block, last = self._block(region[block])
        return last

    def _block(self, operations: list[Operation]) -> tuple[str | None, Operation | None]:
        for operation in operations:
            name = operation.operator
            if name in ("tt.return", "scf.yield"):
                return None, operation
            if name in ("cf.br", "cf.cond_br"):
                return self._branch(operation), None
            self._operation(operation)
        return None, None

    def _branch(self, operation: Operation) -> str:
        targets = [word.partition("(")[0].strip(" ,:") for word in operation.text.split("^")[1:]]
        return targets[0] if operation.operator == "cf.br" or self._value(operation.operands[0]) else targets[1]

    def _value(self, name: str) -> Value:
        return self.environment.get(name)

    def _operation(self, operation: Operation) -> None:
        name = operation.operator
        # Regions beside each other use the same names.
        for each in operation.results:
            self.environment.pop(each, None)
        if name == "scf.for":
            self._loop(operation)
        elif name == "scf.if":
            self._condition(operation)
        elif name.startswith(("scf.", "tt.call")):
            raise NotFollowedError(f"{name} is not understood")
        elif name in ("tt.load", "tt.store", "tt.atomic_rmw"):
            self._access(operation)
        elif name == "tt.dot":
            self._product(operation)
        elif is_integer_operation(name):
            given = [self._value(each) for each in operation.operands]
            result = followed(operation, given, self.program, self.grid)
            self.environment[operation.results[0]] = result
            if result is None and name == "arith.select":
                self._elements(operation)
        else:
            self._elements(operation)

    def _elements(self, operation: Operation) -> None:
        shapes = [shape for shape, _ in tensor_types(operation.types)]
        # A reduction works on its operand, which is larger than its result.
        elements = max(map(prod, shapes), default=1)
        self.work.instructions += self.times * elements * INSTRUCTIONS.get(operation.operator, 1.0)

    def _product(self, operation: Operation) -> None:
        (first, element), (second, _), _ = tensor_types(operation.types)
        products = self.times * prod(first) * second[-1]
        if element >= 4 and "tf32" not in operation.text:
            self.work.instructions += products  # exact products in float32 are not for matrix instructions
        else:
            self.work.flop += 2 * products

    def _access(self, operation: Operation) -> None:
        is_load = operation.operator == "tt.load"
        pointer = self._value(operation.operands[0])
        if not isinstance(pointer, Pointer):
            raise NotFollowedError(f"the address of {operation.operator} is not known: {operation.text}")
        tensor = tensor_type(operation.types)
        size = pointed_bytes(operation.types)
        offsets = np.broadcast_to(np.asarray(pointer.offset), tensor[0] if tensor else ())
        masks = operation.operands[1:2] if is_load else operation.operands[2:3]
        mask = self._value(masks[0]) if masks else None
        wanted = offsets.ravel() if mask is None else offsets[np.broadcast_to(mask, offsets.shape)]
        sectors = np.unique(wanted // SECTOR_BYTES).size * SECTOR_BYTES
        accesses = [self.work.loaded] if is_load else [self.work.stored]
        if operation.operator == "tt.atomic_rmw":
            accesses.append(self.work.loaded)
        for access in accesses:
            access[pointer.argument] += self.times * wanted.size * size  # type: ignore[assignment]
            self.work.sectors += self.times * sectors
        self._elements(operation)

    def _condition(self, operation: Operation) -> None:
        condition = self._value(operation.operands[0])
        # A condition on numbers that are not followed counts as true.
        chosen = operation.regions[0] if condition is None or condition else operation.regions[1:2]
        for region in [chosen] if isinstance(chosen, dict) else chosen:
            last = self.follow(region)
            if last is not None:
                self.environment |= dict(zip(operation.results, map(self._value, last.operands), strict=False))

    def _loop(self, operation: Operation) -> None:
        index, *bounds = operation.operands[:4]
        start, stop, step = map(self._value, bounds)
        if any(each is None for each in (start, stop, step)):
            raise NotFollowedError(f"a loop's number of steps does not follow from the arguments: {operation.text}")
        steps = max(0, -(-(stop - start) // step))
        carried = dict(zip(operation.operands[4::2], map(self._value, operation.operands[5::2]), strict=True))
        ends = list(carried.values())
        if steps:
            self.environment |= carried
            self.environment[index] = start
            outer, self.times = self.times, self.times * steps
            last = self.follow(operation.regions[0])
            self.times = outer
            yielded = [] if last is None else [self._value(each) for each in last.operands]
            ends = [_after(first, second, steps) for first, second in zip(ends, yielded, strict=True)]
        self.environment |= dict(zip(operation.results, ends, strict=True))


def _after(first: Value, second: Value, steps: int) -> Value:
    """Return a value after a loop that changes it by the same amount at every step."""
    if first is None or second is None:
        return None
    if isinstance(first, Pointer):
        return Pointer(first.argument, _after(first.offset, second.offset, steps))
    return first + steps * (second - first)
