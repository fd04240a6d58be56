"""Options of `helixfold finetune`.

The docstring of an option is its line in the help. Nothing is imported here that takes long to load.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from helixfold.annotations import Group, Parameter
from helixfold.options import (
    MAX_PROCESSES,
    File,
    Integer,
    MemorySize,
    Number,
    Output,
    Positive,
    reads,
    whole_number,
)

# Equal to `settings.AdapterKind`, which takes long to load.
Adapter = Literal["lora", "full", "heads"]
Settings = Annotated[tuple[str, ...], Parameter(name="--set", metavar="NAME=VALUE", consume_multiple=False)]


@Parameter(name="*", group=Group.create_ordered("What is trained"))
@dataclass(frozen=True, kw_only=True)
class AdapterOptions:
    """Options for what of a model is trained."""

    adapter: Adapter = "lora"
    """lora: small changes of weights, a file of a few MB. heads: the confidence heads and the distogram alone. full:
    all parameters, a file of all of them."""
    rank: Annotated[int, reads(whole_number(1, 1024), "N")] = 4
    """Rank of the changes of each weight, for lora."""
    alpha: Annotated[Number | None, Parameter(show_default="twice the rank")] = None
    """Changes are multiplied by this number divided by the rank."""
    targets: Annotated[str, Parameter(metavar="PATTERN,...", show_default="all attention of the evoformer")] = (
        "evoformer.*attention*"
    )
    """Linear maps whose weights change, by patterns of their names in the model."""
    rank_stabilised: bool = False
    """rsLoRA: divide --alpha by the square root of the rank."""
    decomposed: bool = False
    """DoRA: also train the length of each row of a weight."""


@Parameter(name="*", group=Group.create_ordered("Several fine-tunings"))
@dataclass(frozen=True, kw_only=True)
class JobsOptions:
    """Options for several fine-tunings at once over one model."""

    jobs: File | None = None
    """Fine-tunings of one model (TOML), which take turns and share its frozen parameters in memory."""
    turns: Literal["steps", "deadline"] = "steps"
    """Who is next. steps: the one with the fewest steps. deadline: the one with the least time to spare."""
    memory: Annotated[MemorySize | None, Parameter(show_default="what is free")] = None
    """Memory that all of them together may take, such as 8GiB."""


@Parameter(name="*", group=Group.create_ordered("Values of whole targets"))
@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options for learning a value of whole targets from a table."""

    table: File | None = None
    """Table (.csv, .tsv) with the columns name, sequence (colons between chains), value, and perhaps split: train,
    test or predict."""
    task: Literal["binder", "classification", "regression"] = "regression"
    """Kind of the values. binder, classification: 0 or 1. regression: numbers."""
    head: Annotated[Literal["pae", "single", "pair"] | None, Parameter(show_default="pae for binder, else single")] = (
        None
    )
    """Input of the head. pae: the predicted error between chains. single, pair: representations."""
    msa: Annotated[tuple[Path, ...], Parameter(metavar="PATH...")] = ()
    """Directory with <name>.a3m for each target of the table."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FinetuneOptions:
    """All options of `helixfold finetune`."""

    output: Output | None = None
    """Directory of the run; the same command again goes on with it."""
    weights: Annotated[
        Path | None,
        Parameter(show_default="file of `helixfold weights download`, else the demonstration model in the package"),
    ] = None
    """Parameters to begin with (.npz, .pt, .safetensors)."""
    model: Annotated[str | None, Parameter(metavar="MODEL", show_default="what --weights or its name says")] = None
    """The model, such as model_1_ptm."""
    held_out: File | None = None
    """Names of chains, or for complexes of assemblies, that are not trained on. Training ends when their lDDT no longer
    gets better, and the page compares each before and after."""
    steps: Annotated[Positive | None, Parameter(show_default="1000")] = None
    """Most steps."""
    learning_rate: Annotated[Number | None, Parameter(show_default="lora 2.5e-4, full 2.5e-5, heads 1e-3")] = None
    """Learning rate after 20 steps of warm-up."""
    seed: Integer = 0
    """Seed of all random numbers."""
    settings: Settings = ()
    """Change a setting of the training run (batch_size=8, example.crop_size=128); may be given repeatedly."""
    show_settings: bool = False
    """Print all settings, and do nothing else."""
    dry_run: bool = False
    """Only show the forecast of memory, and do nothing else."""
    device: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    workers: Annotated[
        int | None, reads(whole_number(0, MAX_PROCESSES), "N"), Parameter(show_default="4 for a GPU, else 0")
    ] = None
    """Processes that prepare examples ahead."""
    layout: Annotated[str | None, Parameter(metavar="LAYOUT")] = None
    """Under torchrun: how ranks share the work, as for helixfold train."""
    what: AdapterOptions = field(default_factory=AdapterOptions)
    task: TaskOptions = field(default_factory=TaskOptions)
    several: JobsOptions = field(default_factory=JobsOptions)
