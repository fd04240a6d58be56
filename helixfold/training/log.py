"""Write the log of a training run: lines in `log.jsonl`, TensorBoard events, and progress on the screen.

Steps count from 0, as in `TrainingLoader`. A run that resumes at `first_step` repeats the steps from there on, so their
earlier records are removed first: in the end the log has each step once.
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

TENSORBOARD_DIRECTORY = "tensorboard"


class TensorBoardWriter:
    """Writer of scalars for `tensorboard --logdir`; earlier events from `first_step` on are hidden.

    Unlike torch's `SummaryWriter` it has no thread, which would print a traceback when the disk is full.
    """

    def __init__(self, directory: Path, first_step: int) -> None:
        require("train", "tensorboard", action="a training run")
        # Only a run's first process needs it.
        from tensorboard.compat.proto.event_pb2 import SessionLog  # noqa: PLC0415
        from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415

        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files in order of their names.
        nanoseconds = time.time_ns()
        name = f"events.out.tfevents.{nanoseconds // 10**9}.{platform.node()}.{os.getpid()}.{nanoseconds}"
        self._file: BinaryIO | None = (directory / name).open("wb")
        self._records = RecordWriter(self._file)
        self._add(step=first_step, file_version="brain.Event:2")
        self._add(step=first_step, session_log=SessionLog(status=SessionLog.START))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of a step, by the names of their curves."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415

        # One event for all scalars: `SummaryWriter.add_scalar` makes one for each, which is thirty times slower.
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._add(step=step, summary=Summary(value=values))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415

        if self._file is None:
            return
        try:
            self._records.write(Event(wall_time=time.time(), **content).SerializeToString())
            self._file.flush()
        except OSError as error:
            print_message(f"TensorBoard's events cannot be written ({error.strerror}); log.jsonl has everything")
            with suppress(OSError):
                self._file.close()
            self._file = None


class TrainingLog:
    """Log of a run's steps, evaluations and events, on rank 0; other ranks have a `SilentLog`.

    Every line of `log.jsonl` is one JSON object with "type" ("step", "evaluation" or "event") and "time" (seconds since
    1970). JSON has no NaN and no infinity: such a number is null. Each method writes its line before it returns, so a
    killed run leaves at most one incomplete line, the last. A full disk does not end the run: lines wait until they can
    be written, and TensorBoard's events stop.

    Raise `InputError` if `directory` has a log that cannot be continued.
    """

    def __init__(self, directory: Path, *, first_step: int, last_step: int, progress: bool) -> None:
        """Open the log before `first_step`, the next one; the run ends before `last_step`."""
        self._path = directory / LOG_FILE
        directory.mkdir(parents=True, exist_ok=True)
        _remove_from(self._path, first_step)
        self._file = self._path.open("ab", buffering=0)
        self._waiting = b""  # lines that a full disk has not taken yet
        self._is_stuck = False
        self._tensorboard = TensorBoardWriter(directory / TENSORBOARD_DIRECTORY, first_step)
        self._progress = Progress(first_step=first_step, last_step=last_step) if progress else None

    def step(self, record: StepRecord) -> None:
        """Record one step."""
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
        """Record the scores of the held-out chains after `step`, the last completed one."""
        self._write("evaluation", {"step": step, "summary": dict(summary), "chains": [*map(dict, chains)]})
        self._tensorboard.write(step, {f"evaluation/{name}": value for name, value in summary.items()})
        if self._progress is not None:
            self._progress.evaluation(step, summary)

    def event(self, kind: str, text: str, *, step: int | None = None, **details: Any) -> None:
        """Record and print a message: a skipped step, a refused chain, a failed save.

        An event with a step is removed when that step is repeated; one without a step stays.
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
        line = {"type": kind, "time": round(time.time(), 3), **values}
        self._waiting += json.dumps(_finite(line), allow_nan=False).encode() + b"\n"
        self._write_waiting()

    def _write_waiting(self) -> None:
        try:
            while self._waiting:
                self._waiting = self._waiting[self._file.write(self._waiting) :]
            self._is_stuck = False
        except OSError as error:
            if not self._is_stuck:  # printed only once
                print_message(f"{self._path} cannot be written ({error.strerror}); its lines wait until it can")
            self._is_stuck = True


class SilentLog(TrainingLog):
    """Log that writes and prints nothing, for ranks other than the first and before a run begins."""

    def __init__(self) -> None:
        """Open no file."""

    def step(self, record: StepRecord) -> None:
        """Record nothing."""

    def evaluation(self, step: int, summary: Mapping[str, float], chains: Iterable[Mapping[str, Any]]) -> None:
        """Record nothing."""

    def event(self, kind: str, text: str, *, step: int | None = None, **details: Any) -> None:
        """Record nothing, and print nothing."""

    def close(self) -> None:
        """Do nothing."""


def _remove_from(path: Path, first_step: int) -> None:
    """Remove the steps from `first_step` on from a log, in one atomic write."""
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
    """Return the value with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


__getattr__ = moved_names(__name__)
