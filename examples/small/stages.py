"""The runs that a model came from, one after the other, as their directories tell it."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.errors import InputError
from helixfold.training.config import TrainingConfig
from helixfold.training.log import LOG_FILE, TrainingHistory, read_log
from helixfold.training.presets import TRAINING_PRESETS, training_preset
from helixfold.training.run_files import CONFIG_FILE

_WIDTH = 110  # letters of a line of a command


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One run of `helixfold train`."""

    name: str  # of its directory
    config: TrainingConfig
    weights: str | None  # what it began from
    ranks: int
    versions: dict[str, str]
    history: TrainingHistory

    @property
    def seconds(self) -> float:
        """In training steps, waiting for data and for other ranks included."""
        return sum(step.seconds for step in self.history.steps)

    @property
    def examples(self) -> int:
        return max((step.examples_seen for step in self.history.steps), default=0)

    @property
    def command(self) -> str:
        """What starts this run again, from the directory where the training set is; by the preset that is nearest."""
        preset = min(TRAINING_PRESETS, key=lambda name: len(settings(training_preset(name), self.config)))
        words = ["torchrun", "--nproc-per-node", str(self.ranks), "-m", "helixfold.cli.main"]
        words = (words if self.ranks > 1 else ["helixfold"]) + ["train", "training_set", "--output", self.name]
        words += ["--preset", preset, "--held-out", "held_out.txt"]
        words += ["--weights", self.weights] if self.weights else []
        for setting in settings(training_preset(preset), self.config):
            words += ["--set", setting]
        return wrapped(words)


def read_stages(directories: Sequence[Path]) -> list[Stage]:
    """The runs in these directories, in this order; `InputError` for what is no run."""
    stages = []
    for directory in directories:
        path = directory / CONFIG_FILE
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            stage = Stage(
                name=directory.resolve().name,
                config=TrainingConfig.from_dict(about["config"]),
                weights=None if about["weights"] is None else _from_here(about["weights"], directory.resolve().parent),
                ranks=about["ranks"],
                versions=about["versions"],
                history=read_log(directory / LOG_FILE),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError.at(path, f"does not describe a training run: {error}") from error
        stages.append(stage)
    return stages


def settings(preset: TrainingConfig, config: TrainingConfig) -> list[str]:
    """What `--set` makes of the preset's settings to have these."""
    return list(_changes(preset.to_dict(), config.to_dict()))


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in new.items():
        before = old[name]
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            yield from _changes(before, value, f"{prefix}{name}.")
        elif before != value:
            yield f"{prefix}{name}={value if isinstance(value, str) else json.dumps(value)}"


def _from_here(weights: str, home: Path) -> str:
    """As it is called from where the runs lie: others' machines have other directories."""
    path = Path(weights)
    if path.is_absolute():
        return str(path.relative_to(home)) if path.is_relative_to(home) else path.name
    return weights


def wrapped(words: Sequence[str]) -> str:
    """A command on several lines; an option stays with its value."""
    lines, line = [], ""
    pending = ""
    for word in map(shlex.quote, words):
        part = f"{pending} {word}".strip()
        if word.startswith("--"):
            line, lines = _added(line, lines, pending)
            pending = word
            continue
        line, lines = _added(line, lines, part)
        pending = ""
    line, lines = _added(line, lines, pending)
    return " \\\n  ".join([*lines, line])


def _added(line: str, lines: list[str], part: str) -> tuple[str, list[str]]:
    if not part:
        return line, lines
    if line and len(line) + len(part) + 1 > _WIDTH:
        return part, [*lines, line]
    return f"{line} {part}".strip(), lines
