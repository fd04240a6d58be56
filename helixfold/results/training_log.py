"""Read the log of a training run, `log.jsonl`.

Steps count from 0, as in `TrainingLoader`.
"""

import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import os_errors_as_input_errors, require_file
from data_pipeline.io.json_files import MAX_JSON_BYTES, parse_json

# Name of the log in a run's directory.
LOG_FILE = "log.jsonl"


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """Record of one training step, over all ranks; numbers that were not finite are NaN."""

    step: int  # from 0
    examples_seen: int  # since the beginning of the run, including this step
    losses: dict[str, float]  # means over the batch: each term unweighted, the weighted sum "weighted", and "total"
    learning_rate: float
    gradient_norm: float  # of the mean gradient over micro-batches; see `optim.flat.StepReport`
    clipped: float  # fraction of gradients that were clipped (of examples, tensors or batches, as configured)
    skipped: bool  # whether a loss or gradient was not finite, so that the parameters were not updated
    passes: int  # recycling iterations, including the last one
    seconds: float  # of the whole step
    data_seconds: float  # part of `seconds` spent waiting for data
    examples_per_second: float
    memory_gib: float  # peak since the start of the run
    names: tuple[str, ...]  # chains or assemblies in the batch
    # Means over the complexes that have a metric; see `losses.chain_metrics`. Earlier versions wrote none.
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord:
    """Record of an evaluation on held-out chains after a step; `chains` has a dict of scores for each chain."""

    step: int
    summary: dict[str, float]  # means over the chains
    chains: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class TrainingHistory:
    """The steps and evaluations of a training run, in order."""

    steps: tuple[StepRecord, ...]
    evaluations: tuple[EvaluationRecord, ...]


_Record = TypeVar("_Record", StepRecord, EvaluationRecord)


def read_log(path: Path) -> TrainingHistory:
    """Read the steps and evaluations in a `log.jsonl`, ignoring other events and an incomplete last line.

    Raise `InputError` with the line number if the file is not a training log.
    """
    steps: list[StepRecord] = []
    evaluations: list[EvaluationRecord] = []
    for number, _, values in log_lines(path):
        try:
            if values["type"] == "step":
                steps.append(_restored(StepRecord, values))
                if len(steps) > 1 and steps[-1].step <= steps[-2].step:
                    raise ValueError(f"step {steps[-1].step} follows step {steps[-2].step}")
            elif values["type"] == "evaluation":
                evaluations.append(_restored(EvaluationRecord, values))
        except (ValueError, OverflowError) as error:  # OverflowError: an integer larger than any float
            raise InputError.at(path, f"{error}; is this the log of a training run?", line=number) from error
    return TrainingHistory(steps=tuple(steps), evaluations=tuple(evaluations))


def _restored(record: type[_Record], values: Mapping[str, Any]) -> _Record:
    """Create a record from the values of a line. Raise `ValueError` if they are not such a record."""
    kinds: dict[str, Any] = typing.get_type_hints(record)
    optional = {each.name for each in fields(record) if each.default_factory is not MISSING}
    stored = {*values} - {"type", "time"}
    if differing := ({*kinds} - optional - stored) | (stored - {*kinds}):
        raise ValueError(f"{sorted(differing)} are missing or unknown")
    return record(**{name: _value(name, kind, values[name]) for name, kind in kinds.items() if name in values})


def _value(name: str, kind: Any, value: Any) -> Any:
    if kind is float and (value is None or type(value) in (int, float)):
        return math.nan if value is None else float(value)
    if kind in (int, bool) and type(value) is kind:
        return value
    if kind == dict[str, float] and isinstance(value, dict):
        return {key: _value(f"{name}.{key}", float, number) for key, number in value.items()}
    item = typing.get_origin(typing.get_args(kind)[0]) or typing.get_args(kind)[0] if typing.get_args(kind) else None
    if item is not None and isinstance(value, list) and all(isinstance(part, item) for part in value):
        return tuple(value)
    raise ValueError(f"{name} is {printable(repr(value), 60)}")


def log_lines(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """Yield the number (from 1), bytes and JSON content of each complete line of a training log, of any type.

    Raise `InputError` with the line number if the file is not a training log.
    """
    require_file(path)
    with os_errors_as_input_errors(path, "cannot be read"), path.open("rb") as file:
        # Text after the last line break is an incomplete line, which is left out.
        for number, line in enumerate(iter(lambda: file.readline(MAX_JSON_BYTES), b""), start=1):
            if not line.endswith(b"\n") and len(line) < MAX_JSON_BYTES:
                return
            try:
                values = parse_json(line)
            except ValueError:
                values = None
            is_record = isinstance(values, dict) and values.get("type") in ("step", "evaluation", "event")
            if not is_record or type(values.get("step")) not in (int, types.NoneType):
                raise InputError.at(
                    path,
                    f"'{printable(line[:100].decode(errors='replace').rstrip(), 60)}' is not a line of a training log; "
                    "move the file away",
                    line=number,
                )
            yield number, line, values
