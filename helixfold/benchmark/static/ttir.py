"""Read the text of a Triton kernel (TTIR) as a tree of operations."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_NAME = r"%[\w.$]+"
_OPERAND = re.compile(rf"{_NAME}(?:#\d+)?")
_RESULTS = re.compile(rf"({_NAME}(?:, {_NAME})*)(?::(\d+))? = ")
_OPERATOR = re.compile(r'"?([a-z_]\w*\.[\w.]+)"?')
_PARAMETER = re.compile(rf"({_NAME}): (!?[\w.]+(?:<[^>]*>)?)[^%]*?(?:loc\(\"([^\"]+)\"|(?=, %|\)))")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(?:!tt\.ptr<)?(\w+)>?>")
_POINTER = re.compile(r"!tt\.ptr<(\w+)")
_LABEL = re.compile(r"\^(\w+)")


class NotFollowedError(ValueError):
    """Error for a kernel that cannot be followed, such as one with a loop whose end depends on numbers in memory."""


@dataclass(eq=False)
class Operation:
    """One operation: `results` and `operands` are names, `types` the text after the last colon.

    `text` is everything between the operator's name and the types, `regions` the operations inside its braces.
    """

    operator: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    text: str
    types: str
    regions: list["Region"] = field(default_factory=list)


Region = dict[str, list[Operation]]  # blocks by name; the first is where the region begins


@dataclass(frozen=True, eq=False)
class Function:
    """A kernel: the names of its parameters in the text, by their names in Python, and its body.

    A parameter that is a tuple in Python has several names; what the compiler treats as a constant has none.
    """

    parameters: dict[str, list[str]]
    body: Region


def parsed(text: str) -> Function:
    """Return the function that a module of TTIR consists of; raise `NotFollowedError` if there are several."""
    lines = [line for line in map(_without_location, text.splitlines()) if line and not line.startswith("#")]
    starts = [number for number, line in enumerate(lines) if line.startswith("tt.func")]
    if len(starts) != 1:
        raise NotFollowedError(f"a kernel is one function, and this text has {len(starts)}")
    header = next(line for line in text.splitlines() if line.lstrip().startswith("tt.func"))
    parameters: dict[str, list[str]] = {}
    for name, _, given in _PARAMETER.findall(header):
        # Triton 3.9 says `sizes.0` for the first part of a tuple, 3.6 says `sizes` for every part.
        parameters.setdefault((given or name[1:]).partition(".")[0], []).append(name)
    body, _ = _region(iter(lines[starts[0] + 1 :]))
    return Function(parameters=parameters, body=body)


def tensor_types(types: str) -> list[tuple[tuple[int, ...], int]]:
    """Return the shape of each tensor in `types` and the bytes of its elements, or of what these point to."""
    found = _TENSOR.findall(types)
    return [(tuple(map(int, shape.split("x")[:-1])), element_bytes(element)) for shape, element in found]


def tensor_type(types: str) -> tuple[tuple[int, ...], int] | None:
    """Return the shape and the bytes of an element of the last tensor in `types`; None if there is none."""
    found = tensor_types(types)
    return found[-1] if found else None


def pointed_bytes(types: str) -> int:
    """Return the bytes of what the first pointer in `types` points to."""
    found = _POINTER.search(types)
    return 0 if found is None else element_bytes(found[1])


def element_bytes(name: str) -> int:
    """Return the bytes of an element such as `bf16` or `f8E4M3FN`."""
    bits = re.match(r"[a-z]+(\d+)", name)
    return max(1, int(bits[1]) // 8) if bits else 8


def _without_location(line: str) -> str:
    return line.partition(" loc(")[0].strip()


def _region(lines: Iterator[str]) -> tuple[Region, str]:
    """Return the blocks up to the brace that closes the region, and the text after this brace."""
    region: Region = {"": []}
    block = region[""]
    for line in lines:
        if line.startswith("}"):
            return region, line[1:].strip()
        label = _LABEL.match(line)
        if label:
            block = region.setdefault(label[1], [])
            continue
        block.append(_operation(line, lines))
    raise NotFollowedError("a region of the kernel does not end")


def _operation(line: str, lines: Iterator[str]) -> Operation:
    found = _RESULTS.match(line)
    results: tuple[str, ...] = ()
    rest = line
    if found:
        names, count = tuple(found[1].split(", ")), int(found[2] or 1)
        results = names if found[2] is None else tuple(f"{names[0]}#{place}" for place in range(count))
        rest = line[found.end() :]
    operator = _OPERATOR.match(rest)
    if operator is None:
        raise NotFollowedError(f"this line of the kernel is not understood: {line!r}")
    rest = rest[operator.end() :]
    regions = []
    if rest.endswith("{"):
        after = ""
        while True:
            region, after = _region(lines)
            regions.append(region)
            if not after.endswith("{"):  # not `} else {`
                break
        rest = f"{rest[:-1]} {after}"
    text, _, types = rest.rpartition(" : ")
    return Operation(
        operator=operator[1],
        results=results,
        operands=tuple(_OPERAND.findall(text if text else rest)),
        text=text or rest,
        types=types,
        regions=regions,
    )
