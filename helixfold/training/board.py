"""TensorBoard's events of a training run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_pipeline.extras import require
from helixfold.training.progress import say

# Events that a killed run had not written are lost: those of this many seconds.
_FLUSH_SECONDS = 5


class Board:
    """Writes scalars that `tensorboard --logdir` shows; what other runs wrote at or after `first_step` is hidden."""

    def __init__(self, directory: Path, first_step: int) -> None:
        require("train", "tensorboard", action="a training run")
        # Takes seconds to import, and only a run's first process needs it.
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        self._writer: SummaryWriter | None = SummaryWriter(
            str(directory), purge_step=first_step, flush_secs=_FLUSH_SECONDS
        )

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """One point of each curve."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415

        if self._writer is None:
            return
        # One event for all: `add_scalar` makes one for each, thirty times slower.
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()])
        try:
            file: Any = self._writer.file_writer
            file.add_summary(summary, step)
        except OSError as error:
            self._writer = None
            say(f"TensorBoard's events cannot be written ({error.strerror}); log.jsonl has everything")

    def close(self) -> None:
        if self._writer is None:
            return
        try:
            self._writer.close()
        except OSError as error:
            say(f"TensorBoard's last events cannot be written ({error.strerror}); log.jsonl has everything")
