"""Write the log of a training run: lines in `log.jsonl`, TensorBoard events, and progress on the screen.

Steps count from 0, as in `TrainingLoader`. A run that resumes at `first_step` repeats the steps from there on. Their
earlier records are removed first, so that the log has each step once.
"""

import json
import math
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

from data_pipeline.io.extras import require
from data_pipeline.io.files import atomic_write
from helixfold._deprecated import moved_names
from helixfold.results.training_log import LOG_FILE, StepRecord, log_lines
from helixfold.training.progress import Progress, print_message

TENSORBOARD_DIRECTORY = "tensorboard"  # name of a directory in the directory of a run


class TensorBoardWriter:
    """Writer of scalars for `tensorboard --logdir`, to a new file in `directory`.

    TensorBoard hides events of an earlier run from `first_step` on. If the disk is full, a message is printed, and
    nothing more is written. Unlike PyTorch's `SummaryWriter`, this class has no thread, which would print a traceback
    when the disk is full.
    """

    def __init__(self, directory: Path, first_step: int) -> None:
        require("train", "tensorboard", action="a training run")
        # TensorBoard is imported here, because only a run's first process needs it.
        from tensorboard.compat.proto.event_pb2 import SessionLog  # noqa: PLC0415
        from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415

        directory.mkdir(parents=True, exist_ok=True)
        # The name begins with the time, because TensorBoard reads files in the order of their names.
        nanoseconds = time.time_ns()
        name = f"events.out.tfevents.{nanoseconds // 10**9}.{platform.node()}.{os.getpid()}.{nanoseconds}"
        self._file: BinaryIO | None = (directory / name).open("wb")
        self._records = RecordWriter(self._file)
        self._add(step=first_step, file_version="brain.Event:2")
        self._add(step=first_step, session_log=SessionLog(status=SessionLog.START))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of a step; the keys are the names of the curves."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415

        # One event holds all scalars. `SummaryWriter.add_scalar` writes one for each, which is thirty times slower.
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._add(step=step, summary=Summary(value=values))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, **content: Any) -> None:
        """Write an event, unless an earlier one could not be written."""
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415

        if self._file is None:
            return
        try:
            self._records.write(Event(wall_time=time.time(), **content).SerializeToString())
            self._file.flush()
        except OSError as error:
            print_message(f"cannot write TensorBoard events ({error.strerror}); log.jsonl has everything")
            with suppress(OSError):
                self._file.close()
            self._file = None


class TrainingLog:
    """Log of a run's steps, evaluations and events, on rank 0; other ranks have a `SilentLog`.

    Every line of `log.jsonl` is one JSON object with "type" ("step", "evaluation" or "event") and "time" (seconds since
    1970). NaN and infinity are written as null, because JSON does not have them. Each method writes its line before it
    returns, so a killed run leaves at most one incomplete line, the last. A full disk does not end the run: lines are
    kept until they can be written, and TensorBoard events stop.

    Raise `InputError` if `directory` has a log that cannot be continued.
    """

    def __init__(self, directory: Path, *, first_step: int, last_step: int, progress: bool) -> None:
        """Open the log of a run whose next step is `first_step` and which ends before `last_step`."""
        self._path = directory / LOG_FILE
        directory.mkdir(parents=True, exist_ok=True)
        _remove_from(self._path, first_step)
        self._file = self._path.open("ab", buffering=0)
        self._waiting = b""  # lines that could not be written yet, because the disk is full
        self._is_stuck = False
        self._tensorboard = TensorBoardWriter(directory / TENSORBOARD_DIRECTORY, first_step)
        self._progress = Progress(first_step=first_step, last_step=last_step) if progress else None

    def step(self, record: StepRecord) -> None:
        """Record one step in `log.jsonl` and TensorBoard, and show it in the progress."""
        self._write("step", {field.name: getattr(record, field.name) for field in fields(record)})
        scalars = {
            **{f"loss/{name}": value for name, value in record.losses.items()},
            **{f"complexes/{name}": value for name, value in record.metrics.items()},
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
        self._tensorboard.write(record.step, scalars)
        if self._progress is not None:
            self._progress.step(record.step, record.losses["weighted"], record.examples_per_second)

    def evaluation(self, step: int, summary: Mapping[str, float], chains: Iterable[Mapping[str, Any]]) -> None:
        """Record and print mean scores (`summary`), and record the scores of each held-out chain or complex (`chains`).

        `step` is the last completed step.
        """
        self._write("evaluation", {"step": step, "summary": dict(summary), "chains": [*map(dict, chains)]})
        self._tensorboard.write(step, {f"evaluation/{name}": value for name, value in summary.items()})
        if self._progress is not None:
            self._progress.evaluation(step, summary)

    def event(self, kind: str, text: str, *, step: int | None = None, **details: Any) -> None:
        """Record and print a message, such as a skipped step, an unusable chain or a failed save.

        `kind` is a word for its type, and `details` are further facts for `log.jsonl`. An event with a step is removed
        when that step is repeated. An event without a step stays.
        """
        self._write("event", {"kind": kind, "text": text, "step": step, "details": details})
        print_message(text if step is None else f"step {step}: {text}")

    def close(self) -> None:
        """Write lines that are still waiting, and end the progress bar."""
        if self._progress is not None:
            self._progress.close()
        self._write_waiting()
        self._file.close()
        self._tensorboard.close()

    def _write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Write a line of a type ("step", "evaluation" or "event") with these values."""
        line = {"type": kind, "time": round(time.time(), 3), **values}
        self._waiting += json.dumps(_finite(line), allow_nan=False).encode() + b"\n"
        self._write_waiting()

    def _write_waiting(self) -> None:
        """Write all lines that are waiting; if that fails, keep them and print a message once."""
        try:
            while self._waiting:
                self._waiting = self._waiting[self._file.write(self._waiting) :]
            self._is_stuck = False
        except OSError as error:
            if not self._is_stuck:  # The message is printed once.
                print_message(
                    f"cannot write {self._path} ({error.strerror}); its lines are kept until this is possible"
                )
            self._is_stuck = True


class SilentLog(TrainingLog):
    """Log that writes and prints nothing, for all ranks except the first and before a run begins."""

    def __init__(self) -> None:
        """Open no file."""

    def step(self, record: StepRecord) -> None:
        """Record nothing."""

    def evaluation(self, step: int, summary: Mapping[str, float], chains: Iterable[Mapping[str, Any]]) -> None:
        """Record nothing."""

    def event(self, kind: str, text: str, *, step: int | None = None, **details: Any) -> None:
        """Record and print nothing."""

    def close(self) -> None:
        """Do nothing."""


def _remove_from(path: Path, first_step: int) -> None:
    """Remove the records of `first_step` and later steps from a log, in one atomic write."""
    if not path.exists():
        return

    def earlier() -> Iterator[bytes]:
        return (
            line for _, line, values in log_lines(path) if values.get("step") is None or values["step"] < first_step
        )

    if sum(map(len, earlier())) < path.stat().st_size:
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            file.writelines(earlier())


def _finite(value: Any) -> Any:
    """Return the value with NaN and infinity replaced by None, because JSON does not have them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


__getattr__ = moved_names(__name__)
