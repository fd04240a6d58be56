"""Report which backend computes each operator of the network on a device or a card, and why no other does."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext

import torch

from data_pipeline.io.errors import InputError
from helixfold.apps.options import OperatorOptions
from helixfold.apps.predict.doctor import GPU_NAMES
from helixfold.benchmark.op_cases import OpCase, Shape, op_cases
from helixfold.execution import allocator
from helixfold.execution.device import dtype_on, pick_device, settled_dtype
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties, properties_of, simulated_device


def operator_backends(options: OperatorOptions) -> dict[str, list[str]]:
    """Return lines on each operator: which backend computes it at a size, and why no preferred one does.

    Raise `InputError` if the device is not there.
    """
    properties = _properties(options)
    shape = Shape(residues=options.length, rows=options.rows, dtype=dtype_on(options.dtype, properties))
    found = {}
    for case in op_cases(shape, "meta"):
        with simulated_device(properties) if options.device in GPU_NAMES else nullcontext():
            found[case.name] = _operator_lines(case, properties)
    if properties.kind == "cpu":
        refused = allocator.unsupported_reason()
        kept = "kept for later ones by predict, train and benchmark"
        found["memory that tensors leave"] = [kept if refused is None else f"left as it is: {refused}"]
    return found


def operator_lines(options: OperatorOptions, backends: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield `operator_backends` as lines of a table."""
    properties = _properties(options)
    dtype = settled_dtype(options.dtype, properties)
    yield f"operators on {properties.name}, {options.length} residues, {options.rows} rows, {dtype}"
    for operator, lines in backends.items():
        yield from (f"  {operator if number == 0 else '':48}{line}" for number, line in enumerate(lines))


def _properties(options: OperatorOptions) -> DeviceProperties:
    try:
        return (
            DEVICE_MODELS[options.device] if options.device in GPU_NAMES else properties_of(pick_device(options.device))
        )
    except InputError as error:
        raise InputError(f"operators: {error}, or a card: {', '.join(GPU_NAMES)}") from None


def _operator_lines(case: OpCase, properties: DeviceProperties) -> list[str]:
    with torch.no_grad():
        predicting = _choices(case, properties)
    with torch.enable_grad():
        training = predicting if case.in_place else _choices(case, properties)
    if predicting == training:
        return predicting
    return [f"{line}, in prediction" for line in predicting] + [f"{line}, in training" for line in training]


def _choices(case: OpCase, properties: DeviceProperties) -> list[str]:
    """Return a line for each operator: the first backend that supports the call, and why none before it does."""
    lines = []
    for op, arguments in case.calls:
        before: list[str] = []
        for name, reason in op.unsupported_reasons(properties, *arguments).items():
            if reason is None:
                because = f" ({'; '.join(before)})" if before else ""
                lines.append(f"{op.name}: {name}{because}")
                break
            before.append(f"{name}: {reason}")
    return lines
