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

# Standard deviation of the numbers that a design begins with (ColabDesign).
_START = 0.01
_MAX_BYTES = 2**28
# Adam's shares of earlier gradients and of their squares, and what is added to roots (Kingma & Ba 2015).
_FIRST, _SECOND, _SMALL = 0.9, 0.999, 1e-8
_ARRAYS = ("numbers", "mean", "square")


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """A design under way: the numbers that its sequence is made of, the optimiser's means, and what was found so far.

    `step` counts the steps that are done. `losses` has the weighted sum and each loss of every step. `best_sequence`
    has the letters of all residues, in the order in which the network reads them, and `best_loss` its weighted sum.
    """

    numbers: Float[np.ndarray, "r 20"]
    mean: Float[np.ndarray, "r 20"]
    square: Float[np.ndarray, "r 20"]
    step: int = 0
    losses: tuple[Mapping[str, float], ...] = ()
    best_sequence: str | None = None
    best_loss: float | None = None

    def moved(self, gradient: Float[np.ndarray, "r 20"], learning_rate: float, options: DesignOptions) -> "Trajectory":
        """Return the trajectory with its numbers moved against a gradient, one step further."""
        if options.normalize_gradients:
            residues = int((np.square(gradient).sum(-1) > 0).sum())
            gradient = gradient * (residues**0.5 / (np.linalg.norm(gradient) + 1e-7))
        if options.optimizer == "sgd":
            return replace(self, numbers=self.numbers - learning_rate * gradient, step=self.step + 1)
        mean = _FIRST * self.mean + (1 - _FIRST) * gradient
        square = _SECOND * self.square + (1 - _SECOND) * np.square(gradient)
        done = self.step + 1
        root = np.sqrt(square / (1 - _SECOND**done)) + _SMALL
        change = learning_rate * (mean / (1 - _FIRST**done)) / root
        return replace(self, numbers=self.numbers - change, mean=mean, square=square, step=done)

    def save(self, path: Path) -> None:
        """Write the trajectory to an `.npz` file."""
        known = {"step": self.step, "losses": list(self.losses), "best": [self.best_sequence, self.best_loss]}
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        with atomic_write(path) as temporary, temporary.open("wb") as archive:
            np.savez(archive, allow_pickle=False, **arrays, known=np.array(json.dumps(known)))

    @classmethod
    def load(cls, path: Path, residues: int) -> "Trajectory":
        """Read the file that `save` wrote; raise `InputError` for any other file."""
        arrays = read_npz(path, _MAX_BYTES)
        try:
            known = parse_json(str(arrays["known"]))
            best_sequence, best_loss = known["best"]
            found = cls(
                **{name: arrays[name] for name in _ARRAYS},
                step=int(known["step"]),
                losses=tuple({name: float(loss) for name, loss in each.items()} for each in known["losses"]),
                best_sequence=None if best_sequence is None else str(best_sequence),
                best_loss=None if best_loss is None else float(best_loss),
            )
            if any(getattr(found, name).dtype.kind != "f" for name in _ARRAYS):
                raise ValueError("its arrays are not of numbers")
            if any("loss" not in each for each in found.losses):
                raise ValueError("a step has no loss")
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError.at(
                path, f"it is not a state of a design ({printable(str(error))}); remove it to begin again"
            ) from error
        if any(getattr(found, name).shape != (residues, 20) for name in _ARRAYS) or len(found.losses) != found.step:
            raise InputError.at(path, "it is the state of another design; remove it to begin again")
        return found


def begun(task: DesignTask, options: DesignOptions, number: int, residues: int) -> Trajectory:
    """Return the beginning of a task's design of this number, which its seed determines."""
    numbers = _START * generator(task, options, number).normal(size=(residues, 20))
    zeros = np.zeros_like(numbers)
    return Trajectory(numbers=numbers, mean=zeros, square=zeros)


def generator(task: DesignTask, options: DesignOptions, number: int, *more: int) -> np.random.Generator:
    """Return the random stream of a design, or with more numbers of one of its steps."""
    return np.random.default_rng([zlib.crc32(task.name.encode()), options.seed + number, *more])
