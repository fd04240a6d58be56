"""The state of a design between two steps, and its file, from which a killed run resumes exactly."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import atomic_write
from data_pipeline.io.json_files import parse_json
from data_pipeline.io.npz import read_npz
from helixfold.apps.design.options import DesignOptions
from helixfold.apps.design.task import DesignTask

# Standard deviation of the initial numbers of a design (ColabDesign).
_INITIAL_DEVIATION = 0.01
_MAX_BYTES = 2**28
# Adam's shares of earlier gradients and of their squares, and what is added to roots (Kingma & Ba 2015).
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8
_ARRAY_NAMES = ("numbers", "mean", "square")


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """State of a design between two steps: the numbers that are optimised, the optimizer's means, and results so far.

    `numbers` are unbounded, one for each residue and amino acid; see `designed_sequence`. `mean` and `square` are
    Adam's running means of gradients and of squared gradients. `step` is the number of completed steps. `losses` has,
    for each completed step, each loss by name and the weighted sum as "loss". `best_sequence` is the best sequence of
    hard and greedy steps, None before them. It has the letters of all residues, in the order in which the network reads
    them. `best_loss` is its weighted sum.
    """

    numbers: Float[np.ndarray, "r 20"]
    mean: Float[np.ndarray, "r 20"]
    square: Float[np.ndarray, "r 20"]
    step: int = 0
    losses: tuple[Mapping[str, float], ...] = ()
    best_sequence: str | None = None
    best_loss: float | None = None

    def moved(self, gradient: Float[np.ndarray, "r 20"], learning_rate: float, options: DesignOptions) -> "Trajectory":
        """Return the trajectory after one update of its numbers by SGD or Adam, with `step` increased by 1.

        The gradient is first normalised if `options.normalize_gradients` is true. `losses` are not extended.
        """
        if options.normalize_gradients:
            residues = int((np.square(gradient).sum(-1) > 0).sum())
            gradient = gradient * (residues**0.5 / (np.linalg.norm(gradient) + 1e-7))
        if options.optimizer == "sgd":
            return replace(self, numbers=self.numbers - learning_rate * gradient, step=self.step + 1)
        mean = _BETA1 * self.mean + (1 - _BETA1) * gradient
        square = _BETA2 * self.square + (1 - _BETA2) * np.square(gradient)
        done = self.step + 1
        root = np.sqrt(square / (1 - _BETA2**done)) + _EPSILON
        change = learning_rate * (mean / (1 - _BETA1**done)) / root
        return replace(self, numbers=self.numbers - change, mean=mean, square=square, step=done)

    def save(self, path: Path) -> None:
        """Write the trajectory to an `.npz` file."""
        state = {"step": self.step, "losses": list(self.losses), "best": [self.best_sequence, self.best_loss]}
        arrays = {name: getattr(self, name) for name in _ARRAY_NAMES}
        with atomic_write(path) as temporary, temporary.open("wb") as archive:
            np.savez(archive, allow_pickle=False, **arrays, known=np.array(json.dumps(state)))

    @classmethod
    def load(cls, path: Path, residues: int) -> "Trajectory":
        """Read a file that `save` wrote for a design of `residues` residues; raise `InputError` for any other file."""
        arrays = read_npz(path, _MAX_BYTES)
        try:
            state = parse_json(str(arrays["known"]))
            best_sequence, best_loss = state["best"]
            trajectory = cls(
                **{name: arrays[name] for name in _ARRAY_NAMES},
                step=int(state["step"]),
                losses=tuple({name: float(loss) for name, loss in each.items()} for each in state["losses"]),
                best_sequence=None if best_sequence is None else str(best_sequence),
                best_loss=None if best_loss is None else float(best_loss),
            )
            if any(getattr(trajectory, name).dtype.kind != "f" for name in _ARRAY_NAMES):
                raise ValueError("its arrays are not of numbers")
            if any("loss" not in each for each in trajectory.losses):
                raise ValueError("a step has no loss")
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError.at(
                path, f"it is not a state of a design ({printable(str(error))}); remove it to begin again"
            ) from error
        if (
            any(getattr(trajectory, name).shape != (residues, 20) for name in _ARRAY_NAMES)
            or len(trajectory.losses) != trajectory.step
        ):
            raise InputError.at(path, "it is the state of another design; remove it to begin again")
        return trajectory


def begun(task: DesignTask, options: DesignOptions, number: int, residues: int) -> Trajectory:
    """Return the trajectory before the first step of a task's design `number`, with small random numbers.

    The task's name and the sum of `options.seed` and `number` determine them. `residues` counts all residues.
    """
    numbers = _INITIAL_DEVIATION * generator(task, options, number).normal(size=(residues, 20))
    zeros = np.zeros_like(numbers)
    return Trajectory(numbers=numbers, mean=zeros, square=zeros)


def generator(task: DesignTask, options: DesignOptions, number: int, *more: int) -> np.random.Generator:
    """Return the random generator of the design `number` of a task, or with more numbers, of one of its steps.

    Equal task names, arguments and seeds give equal generators.
    """
    return np.random.default_rng([zlib.crc32(task.name.encode()), options.seed + number, *more])
