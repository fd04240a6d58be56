"""Options of `helixfold design`; the docstring of an option is its line in the help."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from data_pipeline.config import MAX_RECYCLES
from helixfold.annotations import Group, Parameter
from helixfold.options import File, Integer, MemorySize, Number, Output, option_group, reads, whole_number

_STEPS = whole_number(0, 100_000)


@option_group(Group.create_ordered("Designs"))
@dataclass(frozen=True, kw_only=True)
class DesignTargetOptions:
    """Options for how many designs there are, what they are made of, and where they go."""

    designs: Annotated[int, reads(whole_number(1, 10_000), "N")] = 1
    """Designs per target, at most 10,000, with consecutive seeds."""
    exclude: Annotated[str, Parameter(metavar="LETTERS", alias="--excluded")] = ""
    """Amino acids to leave out, as one-letter codes, such as C."""
    output: Output = Path("designs")
    """Output directory; each target gets its own subdirectory."""
    overwrite: bool = False
    """Design finished targets again."""


@option_group(Group.create_ordered("Models"))
@dataclass(frozen=True, kw_only=True)
class DesignModelOptions:
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
    seed: Integer = 0
    """Seed of all random numbers."""
    device: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the trunk."""
    memory: Annotated[MemorySize | None, Parameter(show_default="the free memory of the device")] = None
    """Memory limit of a step, such as 8GiB. Targets that do not fit are reported before the run starts."""


@option_group(Group.create_ordered("Optimisation"))
@dataclass(frozen=True, kw_only=True)
class DesignStepOptions:
    """Options for the steps of each design."""

    logits_steps: Annotated[int, reads(_STEPS, "N")] = 60
    """Steps from unbounded logits to probabilities."""
    soft_steps: Annotated[int, reads(_STEPS, "N")] = 30
    """Steps that lower the temperature of the probabilities from 1 to 0.01."""
    hard_steps: Annotated[int, reads(_STEPS, "N")] = 10
    """Steps with one amino acid per residue; the best one is the design."""
    learning_rate: Number = 0.1
    """Step size for each residue."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """How gradients update the sequence."""
    num_recycles: Annotated[int, reads(whole_number(0, MAX_RECYCLES), "N")] = 0
    """Recycling iterations after the first one, in each step."""
    gradients_through: Literal["all", "last"] = "all"
    """Recycling iterations that gradients flow through. all: needs the memory of all iterations together."""
    no_dropout: bool = False
    """Switch dropout off in all steps; by default only the hard steps run without it."""
    loss: Annotated[tuple[str, ...], Parameter(metavar="NAME=WEIGHT...", show_default="the protocol's")] = ()
    """Weights of losses: con, plddt, pae, helix, dgram, i_con, i_pae. A loss of weight 0 is only reported."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DesignCommand(DesignStepOptions, DesignModelOptions, DesignTargetOptions):
    """All options that the four protocols share."""


Structure = Annotated[File, Parameter(name="STRUCTURE", required=True)]
