"""Read the stages of a training from the directories of their runs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.io.errors import InputError
from helixfold.results.training_log import LOG_FILE, TrainingHistory, read_log
from helixfold.training.config import TrainingConfig
from helixfold.training.run_files import CONFIG_FILE


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One run of `helixfold train`."""

    name: str  # of its directory
    config: TrainingConfig
    ranks: int
    versions: dict[str, str]
    history: TrainingHistory

    @property
    def seconds(self) -> float:
        """Return the seconds in training steps, including waiting for data and for other ranks."""
        return sum(step.seconds for step in self.history.steps)

    @property
    def examples(self) -> int:
        """Return the number of training examples."""
        return max((step.examples_seen for step in self.history.steps), default=0)


def read_stages(directories: Sequence[Path]) -> list[Stage]:
    """Return the runs in these directories, in this order. Raise `InputError` for a directory that is not a run."""
    stages = []
    for directory in directories:
        path = directory / CONFIG_FILE
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            stage = Stage(
                name=directory.resolve().name,
                config=TrainingConfig.from_dict(about["config"]),
                ranks=about["ranks"],
                versions=about["versions"],
                history=read_log(directory / LOG_FILE),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError.at(path, f"does not describe a training run: {error}") from error
        stages.append(stage)
    return stages
