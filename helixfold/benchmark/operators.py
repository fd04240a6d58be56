"""Report which backend computes each operator of the network on a device, and why preferred backends do not."""

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
    """Return, by operator case (`op_cases`), lines on the backend that computes it, and why preferred ones do not.

    For a CPU, the last entry reports how the allocator treats freed memory. Raise `InputError` if the device is not
    available.
    """
    properties = _properties(options)
    shape = Shape(residues=options.length, rows=options.rows, dtype=dtype_on(options.dtype, properties))
    lines_by_case = {}
    for case in op_cases(shape, "meta"):
        with simulated_device(properties) if options.device in GPU_NAMES else nullcontext():
            lines_by_case[case.name] = _operator_lines(case, properties)
    if properties.kind == "cpu":
        reason = allocator.unsupported_reason()
        reused = "reused by predict, train and benchmark"
        lines_by_case["memory of freed tensors"] = [reused if reason is None else f"default allocator: {reason}"]
    return lines_by_case


def operator_lines(options: OperatorOptions, backends: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a title with device, sizes and dtype, then `backends` (from `operator_backends`) as lines of a table."""
    properties = _properties(options)
    dtype = settled_dtype(options.dtype, properties)
    yield f"operators on {properties.name}, {options.length} residues, {options.rows} rows, {dtype}"
    for operator, lines in backends.items():
        yield from (f"  {operator if index == 0 else '':48}{line}" for index, line in enumerate(lines))


def _properties(options: OperatorOptions) -> DeviceProperties:
    try:
        return (
            DEVICE_MODELS[options.device] if options.device in GPU_NAMES else properties_of(pick_device(options.device))
        )
    except InputError as error:
        raise InputError(f"operators: {error}, or a GPU model: {', '.join(GPU_NAMES)}") from None


def _operator_lines(case: OpCase, properties: DeviceProperties) -> list[str]:
    with torch.no_grad():
        prediction = _choices(case, properties)
    with torch.enable_grad():
        training = prediction if case.in_place else _choices(case, properties)
    if prediction == training:
        return prediction
    return [f"{line}, in prediction" for line in prediction] + [f"{line}, in training" for line in training]


def _choices(case: OpCase, properties: DeviceProperties) -> list[str]:
    """Return a line for each operator: the first backend that supports the call, and why earlier ones do not."""
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
