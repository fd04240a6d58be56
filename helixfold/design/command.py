"""Options of `helixfold design`; the docstring of an option is its line in the help."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from data_pipeline.config import MAX_RECYCLES
from helixfold.annotations import Group, Parameter
from helixfold.options import File, Integer, MemorySize, Number, Output, reads, whole_number

_STEPS = whole_number(0, 100_000)


@Parameter(name="*", group=Group.create_ordered("Designs"))
@dataclass(frozen=True, kw_only=True)
class DesignTargetOptions:
    """Options for how many designs there are, what they are made of, and where they go."""

    designs: Annotated[int, reads(whole_number(1, 10_000), "N")] = 1
    """Number of designs of each target, from the seed and those after it, at most 10,000."""
    excluded: Annotated[str, Parameter(metavar="LETTERS")] = ""
    """One-letter codes of amino acids that are not used, such as C."""
    output: Output = Path("designs")
    """Directory for the results; each target has its own directory in it."""
    overwrite: bool = False
    """Design finished targets again."""


@Parameter(name="*", group=Group.create_ordered("Models"))
@dataclass(frozen=True, kw_only=True)
class DesignModelOptions:
    """Options for the models that design and those that check."""

    models: Annotated[tuple[str, ...], Parameter(metavar="MODEL...", show_default="what predict would take")] = ()
    """Models that design; of several, a random one makes each step."""
    weights: Path | None = None
    """Parameter file of the models that design, or a directory of such files."""
    check_weights: Path | None = None
    """Parameters of other models, which fold each finished design again from its sequence alone; designs are ranked by
    what these say. They should not be those that design."""
    check_models: Annotated[
        tuple[str, ...], Parameter(metavar="MODEL...", show_default="what --check-weights holds")
    ] = ()
    """Models that check."""
    seed: Integer = 0
    """Seed of all random numbers."""
    device: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the arithmetic in the trunk of the network."""
    memory: Annotated[MemorySize | None, Parameter(show_default="what is free on the device")] = None
    """Memory that a step may take, such as 8GiB; what does not fit is told before it begins."""


@Parameter(name="*", group=Group.create_ordered("Optimisation"))
@dataclass(frozen=True, kw_only=True)
class DesignStepOptions:
    """Options for the steps of each design."""

    logits_steps: Annotated[int, reads(_STEPS, "N")] = 60
    """Steps that go from numbers without bounds to probabilities."""
    soft_steps: Annotated[int, reads(_STEPS, "N")] = 30
    """Steps that lower the temperature of the probabilities from 1 to 0.01."""
    hard_steps: Annotated[int, reads(_STEPS, "N")] = 10
    """Steps with one amino acid for each residue; the best of them is the design."""
    learning_rate: Number = 0.1
    """Length of a step, for each residue."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """How steps follow from gradients."""
    num_recycles: Annotated[int, reads(whole_number(0, MAX_RECYCLES), "N")] = 0
    """Number of passes after the first, in each step."""
    gradients_through: Literal["all", "last"] = "all"
    """Passes that have gradients: all, whose memory adds up, or the last alone."""
    no_dropout: bool = False
    """Drop nothing out of the network, in place of what training drops, in all but the hard steps."""
    loss: Annotated[tuple[str, ...], Parameter(metavar="NAME=WEIGHT...", show_default="the protocol's")] = ()
    """Weights of losses: con, plddt, pae, helix, dgram, i_con, i_pae; of weight 0 one is only reported."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DesignCommand:
    """All options that the four protocols share."""

    targets: DesignTargetOptions = field(default_factory=DesignTargetOptions)
    models: DesignModelOptions = field(default_factory=DesignModelOptions)
    steps: DesignStepOptions = field(default_factory=DesignStepOptions)


Structure = Annotated[File, Parameter(name="STRUCTURE", required=True)]
