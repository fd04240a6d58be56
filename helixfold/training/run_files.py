"""The directory of a training run, and its files other than checkpoints and the log."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from data_pipeline.io.config import ConfigError
from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import atomic_write, os_errors_as_input_errors, remove_partial_files, require_file
from helixfold.results.lock import LOCK_FILE
from helixfold.results.training_log import LOG_FILE, TrainingHistory, read_log
from helixfold.training.config import TrainingConfig
from helixfold.weights.checkpoint import save_checkpoint

CONFIG_FILE = "config.json"


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """Paths of one training run, with methods that check its directory and write its files.

    `directory` is the output directory of the run, which may not exist yet, and `name` the name of the model that is
    trained. `draw` draws the training curves into a PNG file. `save` is called by `write_weights` to write the file,
    with its path and the averaged trained parameters.
    """

    directory: Path
    name: str
    draw: Callable[[TrainingHistory, Path], None] | None = None
    save: Callable[[Path, Mapping[str, Tensor]], None] | None = None

    @property
    def checkpoints(self) -> Path:
        """The directory of checkpoints."""
        return self.directory / "checkpoints"

    def weights(self, name: str) -> Path:
        """Return the path of the weights "best" or "last"."""
        return self.directory / "weights" / f"{name}.safetensors"

    def check(self) -> None:
        """Raise `InputError` unless the directory can hold this run.

        It must not be a file, or have files that are not of a training run. If its log exists, it must be a file.
        """
        if self.directory.exists() and not self.directory.is_dir():
            raise ConfigError(f"{self.directory} is a file; pass a directory for the run")
        if (self.directory / LOG_FILE).exists():
            require_file(self.directory / LOG_FILE)
        if self.checkpoints.exists() or not self.directory.exists():
            return
        # A run that was killed at the start may have left part of a `CONFIG_FILE` under a hidden name.
        names = {path.name for path in self.directory.iterdir()} - {LOCK_FILE}
        if not all(name.lstrip(".").startswith(CONFIG_FILE) for name in names):
            raise ConfigError(f"{self.directory} has files that are not from a training run; pass another directory")

    def write_config(self, config: TrainingConfig, about: Mapping[str, Any]) -> None:
        """Write the settings of the run, its name, and the other facts in `about` to `config.json`.

        First remove incomplete files that a killed run left. Raise `InputError` if the file cannot be written.
        """
        remove_partial_files([self.directory, self.directory / "weights"])
        content = json.dumps({"name": self.name, **about, "config": config.to_dict()}, indent=1)
        with (
            os_errors_as_input_errors(self.directory, "cannot be written"),
            atomic_write(self.directory / CONFIG_FILE) as temporary,
        ):
            temporary.write_text(content)

    def write_weights(
        self,
        name: str,
        state: Mapping[str, Tensor],
        config: TrainingConfig,
        *,
        descends_from: str | None = None,
        began_with: str | None = None,
    ) -> None:
        """Write parameters for `helixfold predict` to `weights/NAME.safetensors`, where NAME is `name`.

        `state` has the parameters by name. `save` writes the file if it is set. Otherwise the file also has the
        settings for predictions, `descends_from` and `began_with`; see `weights.checkpoint.Header`. Raise `InputError`
        if the file cannot be written.
        """
        preset = config.prediction_preset(self.name)
        path = self.weights(name)
        try:
            path.parent.mkdir(exist_ok=True)
            if self.save is not None:
                self.save(path, state)
                return
            save_checkpoint(
                path,
                state,
                preset.model.to_dict(),
                preset.without_model(),
                descends_from=descends_from,
                began_with=began_with,
            )
        except (OSError, SafetensorError) as error:
            raise InputError.at(path, f"cannot be written: {printable(str(error))}") from error

    def plot_curves(self) -> None:
        """Draw the training curves into `curves.png` with `draw`, if it is set.

        Raise `InputError` if the file cannot be written.
        """
        if self.draw is None:
            return
        path = self.directory / "curves.png"
        with os_errors_as_input_errors(path, "cannot be written"):
            self.draw(read_log(self.directory / LOG_FILE), path)
