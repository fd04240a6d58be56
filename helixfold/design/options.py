"""Settings of a design's optimisation, and the steps that follow from them."""

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from data_pipeline.config import MAX_RECYCLES, MAX_SEED
from data_pipeline.errors import InputError, choice_problem
from data_pipeline.residues import RESTYPES
from helixfold.design.sequence import SequenceMixture
from helixfold.execution.device import AUTO, DTYPES

Optimizer = Literal["sgd", "adam"]
# Iterations of recycling that have gradients: all, exactly, or the last alone, as in training.
GradientsThrough = Literal["all", "last"]
MAX_STEPS, MAX_DESIGNS = 100_000, 10_000
# The temperature at which probabilities are as good as certain (ColabDesign).
_COLD = 0.01


@dataclass(frozen=True, kw_only=True)
class DesignOptions:
    """Options of the optimisation of each design.

    Of the steps, those of logits go from the numbers themselves to probabilities, those of soft sequences lower the
    temperature of these, and in hard ones each residue has one amino acid (ColabDesign's three stages). The best
    sequence of the hard steps is the design, or that of the last step if there are none.
    """

    logits_steps: int = 60
    soft_steps: int = 30
    hard_steps: int = 10
    learning_rate: float = 0.1
    optimizer: Optimizer = "sgd"
    normalize_gradients: bool = True  # to a length of the square root of the number of residues
    num_recycles: int = 0
    gradients_through: GradientsThrough = "all"
    dropout: bool = True  # in all but the hard steps
    excluded: str = ""  # one-letter codes of amino acids that free residues never are
    designs: int = 1  # restarts, from the seed and those after it
    seed: int = 0
    dtype: str = AUTO

    def __post_init__(self) -> None:
        bounds = (
            ("logits_steps", 0, MAX_STEPS),
            ("soft_steps", 0, MAX_STEPS),
            ("hard_steps", 0, MAX_STEPS),
            ("num_recycles", 0, MAX_RECYCLES),
            ("designs", 1, MAX_DESIGNS),
            ("seed", 0, MAX_SEED),
        )
        for name, least, most in bounds:
            if not least <= getattr(self, name) <= most:
                raise InputError(f"{name} must be at least {least} and at most {most:,}, got {getattr(self, name)}")
        if not self.steps:
            raise InputError("a design needs at least one step")
        if not 0 < self.learning_rate < 1e6:
            raise InputError(f"learning_rate must be greater than 0, got {self.learning_rate:g}")
        for name, choices in (("optimizer", Optimizer), ("gradients_through", GradientsThrough)):
            if getattr(self, name) not in typing.get_args(choices):
                raise InputError(f"{name} {choice_problem(getattr(self, name), typing.get_args(choices))}")
        if unknown := [letter for letter in self.excluded if letter not in RESTYPES]:
            raise InputError(f"excluded are one-letter codes of amino acids, got {unknown[0]!r}")
        if set(RESTYPES) <= set(self.excluded):
            raise InputError("excluded are all amino acids, so that none is left to design with")
        if self.dtype not in (AUTO, *DTYPES) or self.dtype == "float16":
            raise InputError(f"dtype {choice_problem(self.dtype, (AUTO, 'float32', 'bfloat16'))}")

    @property
    def steps(self) -> int:
        """Return the number of all steps of a design."""
        return self.logits_steps + self.soft_steps + self.hard_steps

    def schedule(self) -> Iterator["StepSettings"]:
        """Yield the settings of every step in order."""
        for number in range(1, self.logits_steps + 1):
            mixture = SequenceMixture(soft=number / self.logits_steps, hard=0.0, temperature=1.0)
            yield self._step("logits", mixture)
        for number in range(1, self.soft_steps + 1):
            warm = (1 - number / self.soft_steps) ** 2
            mixture = SequenceMixture(soft=1.0, hard=0.0, temperature=_COLD + (1 - _COLD) * warm)
            yield self._step("soft", mixture)
        for _ in range(self.hard_steps):
            yield self._step("hard", SequenceMixture(soft=1.0, hard=1.0, temperature=_COLD))

    def _step(self, stage: "Stage", mixture: SequenceMixture) -> "StepSettings":
        # Cold probabilities have large gradients with respect to the logits.
        rate = self.learning_rate * (1 - mixture.soft + mixture.soft * mixture.temperature)
        return StepSettings(stage=stage, mixture=mixture, learning_rate=rate, dropout=self.dropout and stage != "hard")


Stage = Literal["logits", "soft", "hard"]


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """Settings of one step: its stage, how the sequence is made, the learning rate, and whether parts are dropped."""

    stage: Stage
    mixture: SequenceMixture
    learning_rate: float
    dropout: bool
