"""Options of `helixfold score` and `helixfold scan`.

The docstring of an option is its line in the help. Nothing is imported here that takes long to load.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from data_pipeline.config import MAX_RECYCLES
from helixfold.annotations import Group, Parameter
from helixfold.options import Directory, File, Integer, MemorySize, Output, Workers, reads, whole_number
from helixfold.predict.options import ComplexOptions, DtypeOrAuto, Executor, SearchOptions

# What a structure is to the network that scores it.
Protocol = Literal["auto", "template", "initial_guess"]


@Parameter(name="*", group=Group.create_ordered("Structures", sort_key=-1))
@dataclass(frozen=True, kw_only=True)
class StructureOptions:
    """Options for which structures are scored, and how."""

    rescore: bool = False
    """STRUCTURES are output directories of helixfold, AlphaFold or ColabFold: score all their ranked models, and show
    the ranks and the pLDDT that they have beside the scores."""
    binders: bool = False
    """STRUCTURES are complexes of a designed binder and its target: start from them, with the target's chains as
    templates where the model reads them, and rank them by the predicted error between both."""
    binder_chains: Annotated[tuple[str, ...], Parameter(metavar="ID...", show_default="the first chain")] = ()
    """Chains of the binder, for --binders; all others are the target."""
    reference: Annotated[Path | None, Parameter(metavar="PATH")] = None
    """Native structure, or a directory of them, which are matched by name, else by sequence: also show how close
    structures are to it, and how scores correlate with that."""
    protocol: Protocol = "auto"
    """template: the structure is a template of the sequence, with backbone and C-beta atoms alone (AF2Rank).
    initial_guess: its atoms are the first that are recycled. auto: for each structure, template for a single chain by a
    model that reads templates, else initial_guess."""
    save_structures: bool = False
    """Also write what the network makes of each structure, to structures/<target>/<name>.pdb."""
    output: Output = Path("scores")
    """Directory for the table and the page."""
    overwrite: bool = False
    """Score finished structures again."""


@Parameter(name="*", group=Group.create_ordered("Mutations", sort_key=-1))
@dataclass(frozen=True, kw_only=True)
class MutationOptions:
    """Options for which mutations are scanned, and where results go."""

    positions: Annotated[tuple[str, ...], Parameter(metavar="POSITION...", show_default="all")] = ()
    """Residues to mutate, counted from 1 in each chain: 30, 10-20, of a complex A.30 or A.10-20, or all."""
    to: Annotated[str, Parameter(metavar="LETTERS", show_default="all twenty")] = "ACDEFGHIKLMNPQRSTVWY"
    """Amino acids that each position is mutated to, such as A for an alanine scan."""
    table: File | None = None
    """Table (.tsv, .csv) of mutations instead of positions: the column mutation, such as K30A, of a complex A.K30A,
    with colons between several at once; and id, if there are several targets."""
    likelihoods: bool = True
    """Also compute the likelihoods of the masked-residue head; false saves a pass for each position."""
    save_structures: bool = False
    """Also write the structure of each mutant, to <target>/structures/<mutation>.pdb."""
    output: Output = Path("scan")
    """Directory for the results; each target has its own directory in it."""
    overwrite: bool = False
    """Make finished mutants again."""


@Parameter(name="*", group=Group.create_ordered("Model and device"))
@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Options for the one model that folds everything, and for the device that computes it."""

    model: Annotated[
        str | None,
        Parameter(metavar="NAME", show_default="model_1_ptm or model_1_multimer_v3, or what --weights holds"),
    ] = None
    """The model: one of those of `helixfold predict` that predicts aligned errors."""
    weights: Annotated[
        Path | None,
        Parameter(show_default="files of `helixfold weights download`, else the demonstration model in the package"),
    ] = None
    """Parameter file (.npz, .pt, .safetensors), or a directory with params_<model>.npz."""
    num_recycles: Annotated[
        int | None,
        reads(whole_number(0, MAX_RECYCLES), "N"),
        Parameter(show_default="1 for scores, 3 for binders; the model's own for mutations"),
    ] = None
    """Number of passes after the first, at most 1,000."""
    seed: Integer = 0
    """Seed of all random numbers, at most 2^62."""
    dtype: DtypeOrAuto = "auto"
    """Precision of the arithmetic in the trunk of the network; auto: bfloat16 on NVIDIA GPUs that have it."""
    device: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    at_once: Annotated[Workers | None, Parameter(show_default="64 on a GPU, else 1")] = None
    """Number of short chains (up to 256 residues) of one length that share passes, if they fit into memory."""
    executor: Executor = "auto"
    """whole, slabs or spilled; auto: the first of them that fits."""
    memory: Annotated[MemorySize | None, Parameter(show_default="what is free on its device")] = None
    """Memory that may be taken, such as 8GiB."""
    spill_directory: Annotated[Directory | None, Parameter(show_default="the output directory")] = None
    """Directory on a disk for what is spilled."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """All options of `helixfold score`, and the paths that it scores."""

    inputs: Annotated[tuple[Path, ...], Parameter(parse=False)] = ()
    structures: StructureOptions = field(default_factory=StructureOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ScanOptions:
    """All options of `helixfold scan`, and the files of its targets."""

    inputs: Annotated[tuple[Path, ...], Parameter(parse=False)] = ()
    mutations: MutationOptions = field(default_factory=MutationOptions)
    search: SearchOptions = field(default_factory=SearchOptions)
    complexes: ComplexOptions = field(default_factory=ComplexOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
