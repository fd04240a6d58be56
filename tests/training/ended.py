"""Runs of a minute network that are begun, ended from outside, and gone on with."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from helixfold.training.checkpoint_files import checkpoint_steps, read_manifest
from helixfold.training.log import StepRecord, read_log
from tests.training.ranks import Ranks, train

ROOT = Path(__file__).parents[2]
STEPS = 8
# A network and examples as small as they get: what is tried is how a run ends, not what it learns.
SETTINGS = {
    "steps": STEPS,
    "save_every": 2,
    "keep": 2,
    "batch_size": 2,
    "example.crop_size": 8,
    "example.sampling.max_msa_clusters": 4,
    "example.sampling.max_extra_msa": 4,
    "example.sampling.max_templates": 1,
    "example.max_passes": 2,
    "model.evoformer.blocks": 1,
    "model.structure.layers": 1,
    "optimizer.warmup_steps": 1,
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run's directory and the command that begins it or goes on with it."""

    store: Path
    directory: Path
    options: tuple[str, ...] = ()

    def start(self, ranks: int, **settings: object) -> Ranks:
        return Ranks(ranks, self.directory.with_suffix(".txt"), train, self.arguments(**settings))

    def arguments(self, **settings: object) -> list[str]:
        changed = [f"--set={name}={value}" for name, value in {**SETTINGS, **settings}.items()]
        return [str(self.store), f"--output={self.directory}", "--device=cpu", *self.options, *changed]

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def finish(self, ranks: int, *, seconds: float = 120, **settings: object) -> None:
        with self.start(ranks, **settings) as processes:
            assert processes.finish(seconds) == [0] * ranks, processes.printed()

    def result(self) -> tuple[object, ...]:
        """Everything that the run came to, down to the last bit; times and memory differ from run to run."""
        done = max(checkpoint_steps(self.checkpoints))
        last = read_manifest(self.checkpoints, done)
        state = [bits(path) for path in sorted((self.checkpoints / f"step_{done:08d}").glob("*.safetensors"))]
        steps = [(step.step, step.losses, step.gradient_norm, step.names) for step in self.log()]
        return last.record, state, bits(self.directory / "weights/last.safetensors"), steps

    def log(self) -> tuple[StepRecord, ...]:
        return read_log(self.directory / "log.jsonl").steps

    def losses(self) -> NDArray[np.float64]:
        """For each step the terms by name."""
        return np.array([[step.losses[name] for name in sorted(step.losses)] for step in self.log()])


def bits(path: Path) -> dict[str, bytes]:
    """Tensors of a file; the file itself may differ, as the words in its header come in any order."""
    return {name: array.tobytes() for name, array in load_file(path).items()}


@dataclass(frozen=True)
class Unbroken:
    """Runs that nothing happened to, and how long they took."""

    runs: dict[int, Run]
    seconds: dict[int, float]


def wait_for(condition: Callable[[], bool], processes: Ranks) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, processes.printed()
        assert not processes.wait(0), f"it ended before: {processes.printed()}"
        time.sleep(0.0005)
