"""Records of a training run: lines in `log.jsonl`, TensorBoard events, and progress on the screen.

Steps count from 0, as in `TrainingLoader`. A run that was killed and goes on at `first_step` makes the steps from there
on again, so what was recorded of them is removed first: in the end the log has each step once.
"""

import json
import math
import time
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from data_pipeline.errors import InputError, printable
from data_pipeline.files import replacing
from helixfold.training.board import Board
from helixfold.training.progress import Progress, say

LOG_FILE, TENSORBOARD_DIRECTORY = "log.jsonl", "tensorboard"


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """All that is recorded of one step, of all processes together."""

    step: int
    examples_seen: int  # since the beginning of the run, with this step's
    losses: dict[str, float]  # means over the step's batch: each term unweighted, their sum "weighted", and "total"
    learning_rate: float
    gradient_norm: float
    clipped: float  # share of what is clipped one by one, from 0 to 1
    skipped: bool  # something was not finite, and the parameters stayed as they were
    passes: int  # recycling included
    seconds: float
    data_seconds: float  # of these, waiting for data
    examples_per_second: float
    memory_gib: float  # the most so far
    names: tuple[str, ...]  # of the chains in the batch


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord:
    """The scores of the held-out chains after a step."""

    step: int
    summary: dict[str, float]  # means over the chains
    chains: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class TrainingHistory:
    """A `log.jsonl` as it is read back, in the order of the steps."""

    steps: tuple[StepRecord, ...]
    evaluations: tuple[EvaluationRecord, ...]


_Record = TypeVar("_Record", StepRecord, EvaluationRecord)


class TrainingLog:
    """Records a run's steps, evaluations and events; on rank 0, the others have a `SilentLog`.

    Every line of `log.jsonl` is one JSON object with "type" ("step", "evaluation" or "event") and "time" (seconds since
    1970). JSON has no NaN and no infinity: such a number is null. A line is written as a whole when its method returns,
    so a killed run leaves at most one torn line, the last. A disk that is full does not end the run: lines wait for
    room, and TensorBoard's events stop.

    Raises `InputError` where `directory` has a log that cannot be continued.
    """

    def __init__(self, directory: Path, *, first_step: int, last_step: int, progress: bool) -> None:
        """`first_step` is the one that is made next, `last_step` the one before which the run ends."""
        self._lines = _Lines(directory / LOG_FILE, first_step)
        self._board = Board(directory / TENSORBOARD_DIRECTORY, first_step)
        self._progress = Progress(first_step=first_step, last_step=last_step) if progress else None

    def step(self, record: StepRecord) -> None:
        """Record one step."""
        self._lines.write("step", {field.name: getattr(record, field.name) for field in fields(record)})
        self._board.write(record.step, _scalars(record))
        if self._progress is not None:
            self._progress.step(record.step, record.losses["total"], record.examples_per_second)

    def evaluation(self, step: int, summary: Mapping[str, float], chains: Iterable[Mapping[str, Any]]) -> None:
        """Record what the held-out chains came to; `step` is the last that was made, and is made again with it."""
        self._lines.write("evaluation", {"step": step, "summary": dict(summary), "chains": [*map(dict, chains)]})
        self._board.write(step, {f"evaluation/{name}": value for name, value in summary.items()})
        if self._progress is not None:
            self._progress.evaluation(step, summary)

    def event(self, kind: str, text: str, *, step: int | None = None, **details: Any) -> None:
        """Record what a person should know, and print it: a skipped step, a refused chain, a save that failed.

        An event with a step is removed when that step is made again; one without stays.
        """
        self._lines.write("event", {"kind": kind, "text": text, "step": step, "details": details})
        say(text if step is None else f"step {step}: {text}")

    def close(self) -> None:
        """Write what waits, and end the progress bar."""
        if self._progress is not None:
            self._progress.close()
        self._lines.close()
        self._board.close()


class SilentLog(TrainingLog):
    """The log of a rank that is not the first, or of a run before it begins: it writes and prints nothing."""

    def __init__(self) -> None:
        """Open no file."""

    def step(self, record: StepRecord) -> None:
        """Record nothing."""

    def evaluation(self, step: int, summary: Mapping[str, float], chains: Iterable[Mapping[str, Any]]) -> None:
        """Record nothing."""

    def event(self, kind: str, text: str, *, step: int | None = None, **details: Any) -> None:
        """Record nothing, and print nothing."""

    def close(self) -> None:
        """There is nothing to end."""


class _Lines:
    """`log.jsonl`, written line by line behind what is kept of it."""

    def __init__(self, path: Path, first_step: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_from(path, first_step)
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._waiting = b""
        self._is_stuck = False

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        line = {"type": kind, "time": round(time.time(), 3), **values}
        self._waiting += json.dumps(_finite(line), allow_nan=False).encode() + b"\n"
        self._write_waiting()

    def close(self) -> None:
        self._write_waiting()
        self._file.close()

    def _write_waiting(self) -> None:
        try:
            while self._waiting:
                self._waiting = self._waiting[self._file.write(self._waiting) :]
            self._is_stuck = False
        except OSError as error:
            if not self._is_stuck:  # said once
                say(f"{self._path} cannot be written ({error.strerror}); its lines wait until it can")
            self._is_stuck = True


def read_log(path: Path) -> TrainingHistory:
    """Return the steps and evaluations in a `log.jsonl`; a torn last line is left out.

    Raises `InputError` for a file that is not such a log, with the line.
    """
    steps: list[StepRecord] = []
    evaluations: list[EvaluationRecord] = []
    for number, _, values in _parsed(path):
        try:
            if values["type"] == "step":
                steps.append(_restored(StepRecord, values))
                if len(steps) > 1 and steps[-1].step <= steps[-2].step:
                    raise ValueError(f"step {steps[-1].step} stands after step {steps[-2].step}")
            elif values["type"] == "evaluation":
                evaluations.append(_restored(EvaluationRecord, values))
        except ValueError as error:
            raise InputError.at(path, f"{error}; is this the log of a training run?", line=number) from error
    return TrainingHistory(steps=tuple(steps), evaluations=tuple(evaluations))


def _restored(record: type[_Record], values: Mapping[str, Any]) -> _Record:
    """The record that a line was made from; ValueError where it is none."""
    kinds: dict[str, Any] = typing.get_type_hints(record)
    if {*kinds, "type", "time"} != {*values}:
        raise ValueError(f"{sorted({*kinds} ^ ({*values} - {'type', 'time'}))} are missing or unknown")
    return record(**{name: _value(name, kind, values[name]) for name, kind in kinds.items()})


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


def _scalars(record: StepRecord) -> dict[str, float]:
    """A step as TensorBoard shows it, by its groups."""
    return {
        **{f"loss/{name}": value for name, value in record.losses.items()},
        "optimizer/learning_rate": record.learning_rate,
        "optimizer/gradient_norm": record.gradient_norm,
        "optimizer/clipped": record.clipped,
        "optimizer/skipped": float(record.skipped),
        "speed/examples_per_second": record.examples_per_second,
        "speed/seconds": record.seconds,
        "speed/data_seconds": record.data_seconds,
        "speed/memory_gib": record.memory_gib,
        "speed/passes": float(record.passes),
    }


def _parsed(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """Each whole line: its number from 1, its bytes, and what it says."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError.at(path, f"cannot be read: {error.strerror}") from error
    # Whatever stands after the last line's end is a line that was torn.
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            values = json.loads(line)
        except ValueError:
            values = None
        is_record = isinstance(values, dict) and values.get("type") in ("step", "evaluation", "event")
        if not is_record or type(values.get("step")) not in (int, types.NoneType):
            raise InputError.at(
                path,
                f"'{printable(line.decode(errors='replace'), 60)}' is no line of a training log; move the file away",
                line=number,
            )
        yield number, line + b"\n", values


def _remove_from(path: Path, first_step: int) -> None:
    """Leave of a log what was before `first_step`, in one motion."""
    if not path.exists():
        return
    kept = b"".join(
        line for _, line, values in _parsed(path) if values.get("step") is None or values["step"] < first_step
    )
    if len(kept) < path.stat().st_size:
        with replacing(path) as temporary:
            temporary.write_bytes(kept)


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
