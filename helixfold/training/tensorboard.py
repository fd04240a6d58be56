"""TensorBoard events of a training run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_pipeline.extras import require
from helixfold.training.progress import print_message

# A run that is killed loses the events of at most this many seconds.
_FLUSH_SECONDS = 5


class TensorBoardWriter:
    """Writer of scalars for `tensorboard --logdir`; earlier events from `first_step` on are hidden."""

    def __init__(self, directory: Path, first_step: int) -> None:
        require("train", "tensorboard", action="a training run")
        # Takes seconds to import, and only a run's first process needs it.
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        self._writer: SummaryWriter | None = SummaryWriter(
            str(directory), purge_step=first_step, flush_secs=_FLUSH_SECONDS
        )

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of a step, by the names of their curves."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415

        if self._writer is None:
            return
        # One event for all scalars: `add_scalar` makes one for each, which is thirty times slower.
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()])
        try:
            file: Any = self._writer.file_writer
            file.add_summary(summary, step)
        except OSError as error:
            self._writer = None
            print_message(f"TensorBoard's events cannot be written ({error.strerror}); log.jsonl has everything")

    def close(self) -> None:
        """Write events that are still in memory, and close the file."""
        if self._writer is None:
            return
        try:
            self._writer.close()
        except OSError as error:
            print_message(f"TensorBoard's last events cannot be written ({error.strerror}); log.jsonl has everything")
