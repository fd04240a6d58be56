"""Runs of a minute network that are begun, killed at a numbered event, and resumed."""

import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from helixfold.results.training_log import StepRecord, read_log
from helixfold.training.checkpoint_files import checkpoint_steps, read_manifest
from tests.support.interruptions import Event, Kill, at_event, count_changes
from tests.training.ranks import Ranks, train

ROOT = Path(__file__).parents[2]
STEPS = 8
# A rank other than the first one changes no files.
STEP, SAVED = "helixfold.training.trainer:Trainer._make_step", "helixfold.training.checkpoint:write_checkpoint"
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

    def start(self, ranks: int, kill: Kill | None = None, victim: int = 0, **settings: object) -> Ranks:
        """Start the ranks, one of which is sent a signal at an event; changes are counted in the run's directory."""
        printed, arguments = self.directory.with_suffix(".txt"), self.arguments(**settings)
        if kill is None:
            return Ranks(ranks, printed, train, arguments)
        return Ranks(ranks, printed, at_event, kill, victim, self.directory, train, arguments)

    def kill(self, ranks: int, event: Event, victim: int = 0, **settings: object) -> bool:
        """Kill one rank at an event, and then the others; return whether it happened before the run had ended."""
        with self.start(ranks, Kill(signal.SIGKILL, event), victim, **settings) as processes:
            processes.processes[victim].join(120)
            code = processes.processes[victim].exitcode
            assert code in (0, -signal.SIGKILL), processes.printed()
            return code != 0

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
    """Runs that nothing happened to, by their number of ranks, and how many changes of files one rank makes."""

    runs: dict[int, Run]
    changes: int


def run_unbroken(store: Path, directory: Path, options: tuple[str, ...] = ()) -> Unbroken:
    """Run on one rank and on two, and once more for the number of changes of files."""
    runs = {}
    for ranks in (1, 2):
        runs[ranks] = Run(store=store, directory=directory / f"on_{ranks}", options=options)
        runs[ranks].finish(ranks)
    counted = Run(store=store, directory=directory / "counted", options=options)
    return Unbroken(runs, count_changes(counted.directory, lambda: train(counted.arguments())))


def check_kills(kills: int, ranks: int, unbroken: Unbroken, directory: Path, seed: int = 0) -> int:
    """Kill run after run at random events and resume them until all kills are spent; return those during a save.

    Each run ends as the unbroken one did.
    """
    random, expected, number, during_saves = np.random.default_rng(seed), unbroken.runs[ranks], 0, 0
    left = kills
    while left:
        number += 1
        run = Run(store=expected.store, directory=directory / f"run_{number}", options=expected.options)
        while left:
            victim = int(random.integers(ranks))
            at_change = Event(index=int(random.integers(1, unbroken.changes + 1)))
            at_step = Event(index=int(random.integers(1, STEPS + 1)), call=STEP)
            if not run.kill(ranks, at_step if victim else at_change, victim):
                break
            left -= 1
            during_saves += any(path.name.endswith(".partial") for path in run.checkpoints.glob(".*"))
        run.finish(ranks)
        assert run.result() == expected.result(), f"run {number}"
        assert [path.name for path in run.checkpoints.iterdir() if path.name.startswith(".")] == [".lock"]
    return during_saves
