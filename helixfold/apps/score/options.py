"""Options of `helixfold score` and `helixfold scan`.

The docstring of an option is its line in the help. This module imports nothing that takes long to load.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from data_pipeline.io.config import MAX_RECYCLES
from helixfold.apps.options import ComplexOptions, ScreenOptions, SearchOptions
from helixfold.runtime.annotations import Group, Parameter
from helixfold.runtime.options import (
    MOST_USED,
    Directory,
    DtypeOrAuto,
    Executor,
    File,
    Integer,
    MemorySize,
    Output,
    Workers,
    option_group,
    reads,
    whole_number,
)

# How a structure is passed to the network that scores it.
Protocol = Literal["auto", "template", "initial_guess"]


@option_group(Group.create_ordered("Structures", sort_key=-1))
@dataclass(frozen=True, kw_only=True)
class StructureOptions:
    """Options for structures and protocols of scoring.

    `rescore` reads outputs of prediction programs, and `binders` scores designed binders. `reference` are native
    structures. `protocol` is how the network reads a structure.
    """

    rescore: bool = False
    """Score the ranked models in output directories of helixfold, AlphaFold or ColabFold, and show their ranks and
    pLDDT next to the scores."""
    binders: bool = False
    """Score complexes of a designed binder and its target, starting from the structures in the files (target chains as
    templates if the model reads templates). Ranked by the predicted aligned error between binder and target."""
    binder_chains: Annotated[tuple[str, ...], Parameter(metavar="ID...", show_default="the first chain")] = ()
    """Chains of the binder, for --binders; all other chains are the target."""
    reference: Annotated[Path | None, Parameter(metavar="PATH", group=MOST_USED)] = None
    """Native structure, or a directory of native structures matched by name or sequence. Also show how close each
    structure is to its native structure, and how well the scores correlate."""
    protocol: Protocol = "auto"
    """How the network sees a structure. template: as a template, backbone and C-beta atoms only (AF2Rank).
    initial_guess: as the atoms that recycling starts from. auto: for each structure, template for a single chain if the
    model reads templates, else initial_guess."""
    save_structures: bool = False
    """Also write the predicted structures to structures/<target>/<name>.pdb."""
    output: Annotated[Output, Parameter(group=MOST_USED)] = Path("scores")
    """Directory for the table and the report page."""
    overwrite: bool = False
    """Score finished structures again."""


@option_group(Group.create_ordered("Mutations", sort_key=-1))
@dataclass(frozen=True, kw_only=True)
class MutationOptions:
    """Options for the mutations of a scan and its output.

    `to` are the amino acids to mutate to, and `table` a file of mutations. `likelihoods` also masks each position.
    """

    positions: Annotated[tuple[str, ...], Parameter(metavar="POSITION...", show_default="all", group=MOST_USED)] = ()
    """Residues to mutate, counted from 1 in each chain: 30, 10-20, or all; in a complex A.30 or A.10-20."""
    to: Annotated[str, Parameter(metavar="LETTERS", show_default="all twenty", group=MOST_USED)] = (
        "ACDEFGHIKLMNPQRSTVWY"
    )
    """Amino acids to mutate to, such as A for an alanine scan."""
    table: File | None = None
    """Table (.tsv, .csv) of mutations, instead of --positions. Column mutation: K30A, A.K30A in a complex;
    separate simultaneous mutations with colons. Column id: the target, if there are several."""
    likelihoods: bool = True
    """Also compute amino-acid likelihoods with the masked-MSA head. --likelihoods=false saves one run of the network
    per position."""
    save_structures: bool = False
    """Also write each mutant's structure to <target>/structures/<mutation>.pdb."""
    output: Annotated[Output, Parameter(group=MOST_USED)] = Path("scan")
    """Output directory; each target gets its own subdirectory."""
    overwrite: bool = False
    """Predict finished mutants again."""


@option_group(Group.create_ordered("Model and device"))
@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Options for the model, its device and memory.

    `batch_size` is the maximum number of short chains in one batch, and `memory` a limit in bytes.
    """

    model: Annotated[
        str | None,
        Parameter(
            metavar="MODEL",
            show_default="model_1_ptm or model_1_multimer_v3, or the model in --weights",
            group=MOST_USED,
            alias="--models",  # the name in `predict`
        ),
    ] = None
    """Model to use; it must predict aligned errors."""
    weights: Annotated[
        Path | None,
        Parameter(
            show_default="files from `helixfold weights download`, else the packaged demonstration model",
            group=MOST_USED,
        ),
    ] = None
    """Parameter file (.npz, .pt, .safetensors), or a directory with params_<model>.npz files."""
    num_recycles: Annotated[
        int | None,
        reads(whole_number(0, MAX_RECYCLES), "N"),
        Parameter(show_default="1 for scores, 3 for binders, the model's own for mutations"),
    ] = None
    """Recycling iterations after the first one, at most 1,000."""
    seed: Integer = 0
    """Seed of all random numbers, at most 2^62."""
    dtype: DtypeOrAuto = "auto"
    """Precision of the trunk. auto: bfloat16 on NVIDIA GPUs that support it, else float32."""
    device: Annotated[str, Parameter(metavar="NAME", group=MOST_USED)] = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    batch_size: Annotated[Workers | None, Parameter(show_default="64 on a GPU, else 1", alias="--at-once")] = None
    """Maximum number of short chains (up to 256 residues) of equal length in one batch, if they fit into memory."""
    executor: Executor = "auto"
    """How the network is computed: whole, slabs or spilled. auto: the first one that fits."""
    memory: Annotated[MemorySize | None, Parameter(show_default="the free memory of its device")] = None
    """Memory limit, such as 8GiB."""
    spill_directory: Annotated[Directory | None, Parameter(show_default="the output directory")] = None
    """Directory for spilled tensors, on a fast disk."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ScoreOptions(ScreenOptions, NetworkOptions, StructureOptions):
    """All options of `helixfold score`, and the paths of structures to score."""

    inputs: Annotated[tuple[Path, ...], Parameter(parse=False)] = ()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ScanOptions(ScreenOptions, NetworkOptions, ComplexOptions, SearchOptions, MutationOptions):
    """All options of `helixfold scan`, and the input files of targets."""

    inputs: Annotated[tuple[Path, ...], Parameter(parse=False)] = ()
