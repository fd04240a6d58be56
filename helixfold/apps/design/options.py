"""Options of a design and of `helixfold design`, and the steps that follow from them.

The docstring of an option is its line in the help. Nothing is imported here that takes long to load. `MAX_STEPS` and
`MAX_DESIGNS` are upper limits of options.
"""

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from data_pipeline.io.config import MAX_RECYCLES, MAX_SEED
from data_pipeline.io.errors import InputError, choice_problem
from data_pipeline.residues import RESTYPES
from helixfold.apps.options import ScreenOptions
from helixfold.runtime.annotations import Group, Parameter
from helixfold.runtime.options import (
    File,
    Integer,
    MemorySize,
    Number,
    Output,
    option_group,
    positive,
    reads,
    whole_number,
)

Optimizer = Literal["sgd", "adam"]
GradientsThrough = Literal["all", "last"]
DesignDtype = Literal["auto", "float32", "bfloat16"]
MAX_STEPS, MAX_DESIGNS = 100_000, 10_000
# The temperature at which probabilities are almost 0 or 1 (ColabDesign).
_LOWEST_TEMPERATURE = 0.01
# The share of probabilities that the steps of logits reach before a design is screened (BindCraft).
_SCREENED_SHARE = 0.9
_STEP_COUNT = whole_number(0, MAX_STEPS)
_DESIGN_GROUP, _MODEL_GROUP = Group.create_ordered("Designs"), Group.create_ordered("Models")
_OPTIMISATION_GROUP = Group.create_ordered("Optimisation")
_BINDER_GROUP = Group.create_ordered("Binders from end to end")


@dataclass(frozen=True, kw_only=True)
class SequenceMixture:
    """How a step of a design mixes the sequence that the network reads; shares are from 0 to 1.

    `soft` is the share of the probabilities at a `temperature`; the rest is the optimised numbers themselves. Then
    `hard` is the share of the one-hot sequence of the most probable amino acids; the rest is the first mixture.
    """

    soft: float
    hard: float
    temperature: float


@option_group(_OPTIMISATION_GROUP)
@dataclass(frozen=True, kw_only=True)
class DesignOptions:
    """Options of the optimisation of each design.

    The three stages are ColabDesign's: logits steps go from unbounded logits to probabilities, soft steps lower their
    temperature, and hard steps use one amino acid per residue. The design is the best sequence of the hard steps, or
    the sequence of the last step if there are no hard steps. Greedy steps mutate it (BindCraft's fourth stage).
    """

    logits_steps: Annotated[int, reads(_STEP_COUNT, "N")] = 60
    """Steps from unbounded logits to probabilities."""
    soft_steps: Annotated[int, reads(_STEP_COUNT, "N")] = 30
    """Steps that lower the temperature of the probabilities from 1 to 0.01."""
    hard_steps: Annotated[int, reads(_STEP_COUNT, "N")] = 10
    """Steps with one amino acid per residue; the best one is the design."""
    greedy_steps: Annotated[int, reads(_STEP_COUNT, "N")] = 0
    """Steps that mutate the design where its pLDDT is low, and keep the best mutant if its loss is lower."""
    # Mutants that a greedy step tries, as a share of the designed residues.
    greedy_share: Annotated[float, Parameter(parse=False)] = 0.01
    # BindCraft's early ends: the first steps of logits, which reach less than probabilities, are a stage of their own,
    # after which a design ends unless the mean pLDDT of its best step is above `min_plddt` (0 to 1). The same holds
    # for soft and hard steps.
    screen_steps: Annotated[int, Parameter(parse=False)] = 0
    min_plddt: Annotated[float, Parameter(parse=False)] = 0.65
    # Recycling iterations, and additional steps of logits and of probabilities, of designs with sheets.
    sheet_recycles: Annotated[int | None, Parameter(parse=False)] = None
    sheet_logits_steps: Annotated[int, Parameter(parse=False)] = 0
    sheet_soft_steps: Annotated[int, Parameter(parse=False)] = 0
    learning_rate: Number = 0.1
    """Step size for each residue."""
    optimizer: Optimizer = "sgd"
    """How gradients update the sequence."""
    # To a length of the square root of the number of residues.
    normalize_gradients: Annotated[bool, Parameter(parse=False)] = True
    num_recycles: Annotated[int, reads(whole_number(0, MAX_RECYCLES), "N")] = 0
    """Recycling iterations after the first one, in each step."""
    gradients_through: GradientsThrough = "all"
    """Recycling iterations that gradients flow through. all: needs the memory of all iterations together."""
    dropout: Annotated[bool, Parameter(parse=False)] = True  # in all but the hard steps
    excluded: Annotated[str, Parameter(name=("--exclude", "--excluded"), metavar="LETTERS", group=_DESIGN_GROUP)] = ""
    """Amino acids to leave out, as one-letter codes, such as C."""
    designs: Annotated[int, reads(whole_number(1, MAX_DESIGNS), "N"), Parameter(group=_DESIGN_GROUP)] = 1
    """Designs per target, at most 10,000, with consecutive seeds."""
    seed: Annotated[Integer, Parameter(group=_MODEL_GROUP)] = 0
    """Seed of all random numbers."""
    dtype: Annotated[DesignDtype, Parameter(group=_MODEL_GROUP)] = "auto"
    """Precision of the trunk."""

    def __post_init__(self) -> None:
        bounds = (
            ("logits_steps", 0, MAX_STEPS),
            ("soft_steps", 0, MAX_STEPS),
            ("hard_steps", 0, MAX_STEPS),
            ("greedy_steps", 0, MAX_STEPS),
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
        for name, choices in (
            ("optimizer", Optimizer),
            ("gradients_through", GradientsThrough),
            ("dtype", DesignDtype),
        ):
            if getattr(self, name) not in typing.get_args(choices):
                raise InputError(f"{name} {choice_problem(getattr(self, name), typing.get_args(choices))}")
        if unknown := [letter for letter in self.excluded if letter not in RESTYPES]:
            raise InputError(f"excluded are one-letter codes of amino acids, got {unknown[0]!r}")
        if set(RESTYPES) <= set(self.excluded):
            raise InputError("excluded are all amino acids, so that none is left to design with")

    @property
    def steps(self) -> int:
        """Return the number of steps of a design in all stages together, without additional steps for sheets."""
        return self.logits_steps + self.soft_steps + self.hard_steps + self.greedy_steps

    def schedule(self) -> Iterator["StepSettings"]:
        """Yield the settings of every step in order: logits (screened ones first), soft, hard and greedy steps."""
        screening = min(self.screen_steps, self.logits_steps)
        logits: tuple[tuple[int, float, Stage], ...] = (
            (screening, _SCREENED_SHARE, "screen"),
            (self.logits_steps - screening, 1.0, "logits"),
        )
        for count, last_share, stage in logits:
            for number in range(1, count + 1):
                mixture = SequenceMixture(soft=last_share * number / count, hard=0.0, temperature=1.0)
                yield self._step(stage, mixture)
        for number in range(1, self.soft_steps + 1):
            warm = (1 - number / self.soft_steps) ** 2
            mixture = SequenceMixture(
                soft=1.0, hard=0.0, temperature=_LOWEST_TEMPERATURE + (1 - _LOWEST_TEMPERATURE) * warm
            )
            yield self._step("soft", mixture)
        certain = SequenceMixture(soft=1.0, hard=1.0, temperature=_LOWEST_TEMPERATURE)
        for _ in range(self.hard_steps):
            yield self._step("hard", certain)
        for _ in range(self.greedy_steps):
            yield self._step("greedy", certain)

    def _step(self, stage: "Stage", mixture: SequenceMixture) -> "StepSettings":
        # Cold probabilities have large gradients with respect to the logits.
        rate = self.learning_rate * (1 - mixture.soft + mixture.soft * mixture.temperature)
        return StepSettings(
            stage=stage, mixture=mixture, learning_rate=rate, dropout=self.dropout and stage not in ("hard", "greedy")
        )


Stage = Literal["screen", "logits", "soft", "hard", "greedy"]


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """Settings of one step: its stage, the mixture that the network reads, the learning rate, and dropout.

    `dropout` is whether the network drops values as in training.
    """

    stage: Stage
    mixture: SequenceMixture
    learning_rate: float
    dropout: bool


@option_group(_DESIGN_GROUP)
@dataclass(frozen=True, kw_only=True)
class _OutputOptions:
    """Options for where designs go."""

    output: Output = Path("designs")
    """Output directory; each target gets its own subdirectory."""
    overwrite: bool = False
    """Design finished targets again."""


MpnnWeights = Literal["soluble", "original"]  # of ProteinMPNN
RankBy = Literal["i_pTM", "ipSAE"]


@option_group(_BINDER_GROUP)
@dataclass(frozen=True, kw_only=True)
class BinderOptions:
    """Options for designing binders from end to end, with BindCraft's settings."""

    accepted: Annotated[int | None, reads(positive, "N")] = None
    """Design, redraw, check and filter until so many binders per target pass the filters. Without it, designs are
    neither redrawn nor filtered."""
    target_settings: File | None = None
    """BindCraft's settings file for a target, instead of STRUCTURE, --length, --hotspots and --accepted."""
    advanced: Annotated[str, Parameter(metavar="FILE|PRESET")] = "default_4stage_multimer"
    """BindCraft's advanced settings: a file, or one of its presets. Options of this command override them."""
    filters: Annotated[str, Parameter(metavar="FILE|PRESET")] = "default"
    """BindCraft's filters: a file, or default, relaxed, peptide, peptide_relaxed or no."""
    threshold: Annotated[tuple[str, ...], Parameter(metavar="NAME=VALUE...")] = ()
    """Other thresholds of the filters, such as i_pTM=0.4 or Hotspot_RMSD=none."""
    trajectory_plddt: Annotated[Number | None, Parameter(show_default="0.65, in the end 0.7")] = None
    """Mean pLDDT, 0 to 1, below which a trajectory ends."""
    sequences: Annotated[int | None, reads(positive, "N"), Parameter(show_default="as the advanced settings say")] = (
        None
    )
    """Sequences that ProteinMPNN draws for each trajectory."""
    max_trajectories: Annotated[int, reads(whole_number(1, MAX_DESIGNS), "N")] = MAX_DESIGNS
    """Trajectories after which a target ends, whatever was accepted."""
    rank_by: RankBy = "i_pTM"
    """Value by which accepted binders are ranked."""
    no_relax: bool = False
    """Measure structures as predicted, without relaxation."""
    shared: bool = False
    """Share the output directory with other runs of the same command, on any machine; each takes trajectories that no
    other has."""


@option_group(_MODEL_GROUP)
@dataclass(frozen=True, kw_only=True)
class _ModelOptions:
    """Options for the models that design and those that check."""

    models: Annotated[tuple[str, ...], Parameter(metavar="MODEL...", show_default="as in `helixfold predict`")] = ()
    """Models to design with. With several, each step uses a randomly chosen one."""
    weights: Path | None = None
    """Parameter file of the design models, or a directory of such files."""
    check_weights: Path | None = None
    """Parameters of other models that predict each finished design from its sequence alone. Designs are ranked by these
    predictions, so use models that did not design them."""
    check_models: Annotated[
        tuple[str, ...], Parameter(metavar="MODEL...", show_default="the models in --check-weights")
    ] = ()
    """Models to check designs with."""
    device: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    memory: Annotated[MemorySize | None, Parameter(show_default="the free memory of the device")] = None
    """Memory limit of a step, such as 8GiB. Targets that do not fit are reported before the run starts."""


@option_group(_OPTIMISATION_GROUP)
@dataclass(frozen=True, kw_only=True)
class DesignCommand(ScreenOptions, DesignOptions, _ModelOptions, _OutputOptions):
    """All options that the four protocols share."""

    no_dropout: bool = False
    """Switch dropout off in all steps; by default only the hard steps run without it."""
    loss: Annotated[tuple[str, ...], Parameter(metavar="NAME=WEIGHT...", show_default="the protocol's")] = ()
    """Weights of losses: con, plddt, pae, helix, rg, termini, dgram, i_con, i_pae, i_ptm. A loss of weight 0 is only
    reported."""


@option_group(_BINDER_GROUP)
@dataclass(frozen=True, kw_only=True)
class BinderCommand(BinderOptions, DesignCommand):
    """All options of `helixfold design binder`."""


def length_range(word: str) -> tuple[int, int]:
    """Read a range of lengths such as 65-150, or one length, as its minimum and maximum, both inclusive.

    Raise `ValueError` for other text, and for lengths below 2 or above 2,000.
    """
    first, dash, last = word.partition("-")
    read = whole_number(2, 2000)
    low, high = read(first), read(last if dash else first)
    if low > high:
        raise ValueError(f"must be a range such as 65-150, got {word!r}")
    return low, high
