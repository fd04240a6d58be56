"""Options of `helixfold finetune`.

The docstring of an option is its line in the help. Nothing is imported here that takes long to load.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from helixfold.runtime.annotations import Group, Parameter
from helixfold.runtime.options import (
    MAX_PROCESSES,
    File,
    Integer,
    MemorySize,
    Number,
    Output,
    Positive,
    Progress,
    option_group,
    reads,
    whole_number,
)

# Equal to `settings.AdapterKind`, which takes long to load.
Adapter = Literal["lora", "full", "heads"]
Settings = Annotated[tuple[str, ...], Parameter(name="--set", metavar="NAME=VALUE", consume_multiple=False)]


@option_group(Group.create_ordered("What is trained"))
@dataclass(frozen=True, kw_only=True)
class AdapterOptions:
    """Options for what of a model is trained."""

    adapter: Adapter = "lora"
    """lora: low-rank changes of weights, a file of a few MB. heads: only the confidence heads and the distogram. full:
    all parameters."""
    rank: Annotated[int, reads(whole_number(1, 1024), "N")] = 4
    """Rank of each weight's change, for lora."""
    alpha: Annotated[Number | None, Parameter(show_default="twice the rank")] = None
    """Scale of the changes: they are multiplied by alpha / rank."""
    targets: Annotated[str, Parameter(metavar="PATTERN,...", show_default="all attention of the evoformer")] = (
        "evoformer.*attention*"
    )
    """Which linear maps to adapt: patterns of their names in the model."""
    rank_stabilised: bool = False
    """rsLoRA: divide --alpha by the square root of the rank."""
    decomposed: bool = False
    """DoRA: also train the norm of each row of a weight."""


@option_group(Group.create_ordered("Several fine-tunings"))
@dataclass(frozen=True, kw_only=True)
class JobsOptions:
    """Options for several fine-tunings at once over one model."""

    jobs: File | None = None
    """Run several fine-tunings of one model, described in this TOML file. They take turns and share the frozen
    parameters in memory."""
    schedule: Annotated[Literal["steps", "deadline"], Parameter(alias="--turns")] = "steps"
    """Which job runs next. steps: the one with the fewest steps done. deadline: the one with the least time
    left before its deadline."""
    memory: Annotated[MemorySize | None, Parameter(show_default="the free memory")] = None
    """Memory limit of all jobs together, such as 8GiB."""
    progress: Progress = "bars"
    """bars: a progress bar. json: one JSON object on stderr after each step of a job, with the time and the seconds
    left."""


@option_group(Group.create_ordered("Values of whole targets"))
@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options for learning a value of whole targets from a table."""

    table: File | None = None
    """Table (.csv, .tsv) of values to learn. Columns: name, sequence (colons between chains), value and optionally
    split (train, test or predict)."""
    task: Literal["binder", "classification", "regression"] = "regression"
    """Kind of value. binder, classification: 0 or 1. regression: a number."""
    head: Annotated[Literal["pae", "single", "pair"] | None, Parameter(show_default="pae for binder, else single")] = (
        None
    )
    """Input of the new head. pae: predicted aligned error between chains. single, pair: representations."""
    msa: Annotated[tuple[Path, ...], Parameter(metavar="PATH...")] = ()
    """Directory with <name>.a3m for each target in the table."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(JobsOptions, TaskOptions, AdapterOptions):
    """All options of `helixfold finetune`."""

    output: Output | None = None
    """Output directory of the run. Run the same command again to resume."""
    weights: Annotated[
        Path | None,
        Parameter(show_default="file from `helixfold weights download`, else the packaged demonstration model"),
    ] = None
    """Parameters to start from (.npz, .pt, .safetensors)."""
    model: Annotated[str | None, Parameter(metavar="MODEL", show_default="from the file or its name")] = None
    """Model that the parameters belong to, such as model_1_ptm."""
    new_parameters: Annotated[tuple[str, ...], Parameter(metavar="PATTERN...", show_default="none")] = ()
    """With --adapter full, or heads for parameters of heads: parameters of a changed network that the file may lack, or
    have in another shape, such as 'evoformer.*.my_update.*'. They start with the network's own initial values."""
    held_out: File | None = None
    """File of chain names (assembly names for complexes) that are not trained on. Training stops when their lDDT no
    longer improves; the report compares each before and after."""
    steps: Annotated[Positive | None, Parameter(show_default="1000")] = None
    """Maximum number of steps."""
    learning_rate: Annotated[Number | None, Parameter(show_default="lora 2.5e-4, full 2.5e-5, heads 1e-3")] = None
    """Learning rate after 20 warm-up steps."""
    seed: Integer = 0
    """Seed of all random numbers."""
    settings: Settings = ()
    """Change a setting of the training, such as batch_size=8 or example.crop_size=128. May be repeated."""
    show_settings: bool = False
    """Print all settings and stop."""
    dry_run: bool = False
    """Show the estimated memory and stop."""
    device: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    workers: Annotated[
        int | None, reads(whole_number(0, MAX_PROCESSES), "N"), Parameter(show_default="4 for a GPU, else 0")
    ] = None
    """Loader processes."""
    layout: Annotated[str | None, Parameter(metavar="LAYOUT")] = None
    """Under torchrun: how ranks divide the work, as in `helixfold train`."""
