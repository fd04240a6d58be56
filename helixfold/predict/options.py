"""Options of `helixfold predict`, and those that `helixfold features` and `helixfold doctor` share with it.

The docstring of an option is its line in the help. Nothing is imported here that takes long to load.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from data_pipeline.config import MAX_ENSEMBLE, MAX_RECYCLES
from data_pipeline.residue_ranges import Replacement
from helixfold.annotations import Group, Parameter
from helixfold.options import (
    CudaGraphs,
    Day,
    Directory,
    File,
    Integer,
    MemorySize,
    Number,
    Output,
    Positive,
    RepresentationFormat,
    RepresentationName,
    Workers,
    part_of_all,
    reads,
    whole_number,
)
from helixfold.predict.presets import PREDICTION_PRESETS

MsaMode = Literal[
    "auto",
    "files",
    "databases",
    "server",
    "mmseqs2_uniref_env_envpair",
    "mmseqs2_uniref_env",
    "mmseqs2_uniref",
    "single_sequence",
]
DatabasePreset = Literal["full_dbs", "reduced_dbs"]
OutputFormat = Literal["helixfold", "colabfold"]
# Equal to `data_pipeline.complexes.alignments.PairMode`, which takes long to load.
PairMode = Literal["unpaired_paired", "paired", "unpaired"]
# Equal to `data_pipeline.search.alignment_server.PairStrategy`.
PairStrategy = Literal["greedy", "complete"]
Order = Literal["length", "none", "random"]
ToRelax = Literal["best", "all", "none"]
Progress = Literal["bars", "json"]
Dtype = Literal["float32", "bfloat16"]
ComputeDtype = Literal["float32", "bfloat16", "float16"]
DtypeOrAuto = Literal["auto", "float32", "bfloat16", "float16"]
Executor = Literal["auto", "whole", "slabs", "spilled"]
# Of `helixfold doctor`: devices of this machine, or a card of helixfold.ops.card that need not be in it.
DoctorDevice = Literal[
    "auto", "cpu", "cuda", "mps", "t4", "rtx3090", "rtx4090", "l4", "a100", "a100-80", "h100", "h200"
]
NO_TEMPLATE_TABLE = "others come from the [templates] of a profile, or from AlphaFold's directory (--databases)"
EXAMPLE = Path(__file__).parent / "example" / "src_sh3.fasta"
EXAMPLE_TEMPLATE = EXAMPLE.parent / "1shg.pdb"
TARGETS = Group.create_ordered("Targets")
_PRESETS = "; ".join(f"{name}: {preset.summary}" for name, preset in PREDICTION_PRESETS.items())


@Parameter(name="*", group=TARGETS)
@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """Options for what is predicted, in which order, and where results go."""

    features: Annotated[tuple[Path, ...], Parameter(metavar="PATH...")] = ()
    """Also predict from features that `helixfold features` made: features.npz files, or its output directory."""
    pulldown: Annotated[tuple[File, File] | None, Parameter(metavar="BAITS PREYS")] = None
    """Predict each bait with each prey, which are the records of two FASTA files, and rank them in one table and page:
    pulldown.tsv and pulldown.html."""
    pulldown_table: File | None = None
    """Complexes to predict in place of all pairs: a table (.csv, .tsv) with the columns bait and prey, whose cells are
    names with numbers of copies, such as heavy:light and antigen*2, and perhaps id."""
    example: bool = False
    """Predict the protein that comes with helixfold (the SH3 domain of Src, 64 residues) to try the installation,
    from the template that comes with it, an SH3 domain of spectrin, unless --templates names others."""
    output: Output = Path("predictions")
    """Directory for the results; each target has its own directory in it."""
    as_protein: bool = False
    """Take each letter as a residue, also in sequences that look like DNA, RNA or three-letter codes."""
    overwrite: bool = False
    """Predict finished targets again."""
    keep_existing: bool = False
    """Skip targets that were finished before with other settings. Without this or --overwrite, they are an error."""
    slim: bool = False
    """Leave few files of each finished target: ranked structures, confidences, ranking, settings, search results."""
    zip: bool = False
    """Also pack each finished target into <target>.result.zip."""
    shared: bool = False
    """Share the output directory with other runs of the same targets, on any machines: each claims a target before it
    begins, and goes on with those of runs that have died."""
    shard: Annotated[tuple[int, int] | None, reads(part_of_all, "I/N"), Parameter(n_tokens=1)] = None
    """Predict only part I of N of the targets, counted from 0, beside runs of the other parts; shares the directory."""
    output_format: OutputFormat = "helixfold"
    """colabfold: beside the targets' directories, also write files with ColabFold's names and contents."""
    sort_queries_by: Order = "length"
    """Order of the targets. length: short ones first, on several devices long ones first."""
    dry_run: bool = False
    """Only show what would be done, how much memory and about how long each target takes, and whether it fits."""
    command: Annotated[tuple[str, ...], Parameter(parse=False)] = ()
    """Words of the command, which results record."""
    failures_file: Annotated[Path | None, Parameter(parse=False)] = None
    """Write why targets failed into this file, and neither failures.json nor pages of all targets: the command does so
    that gave this run a part of them."""

    @property
    def is_shared(self) -> bool:
        """Return whether other runs may write into the output directory at the same time."""
        return self.shared or self.shard is not None


@Parameter(
    name="*",
    group=Group.create_ordered(
        "Alignments and templates", help="without these options nothing is searched, only the sequence is used"
    ),
)
@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options for where alignments and templates come from."""

    msa: Annotated[tuple[Path, ...], Parameter(metavar="PATH...")] = ()
    """Ready alignments (a3m, Stockholm, ...) of the one target, or a directory with <name>.a3m, or <name>/msas as
    AlphaFold leaves it, for each target."""
    templates: Annotated[tuple[Path, ...] | None, Parameter(metavar="PATH...", consume_multiple=(0, None))] = None
    """Template structures (mmCIF or PDB files, or directories of them), used instead of a template search. Without any:
    those that the MMseqs2 server finds."""
    databases: Path | None = None
    """Databases to search: a profile (TOML), or the directory that AlphaFold's or ColabFold's script filled."""
    db_preset: DatabasePreset = "full_dbs"
    """For AlphaFold's directory: search BFD and UniRef30, or small_bfd instead of both."""
    database: Annotated[tuple[File, ...], Parameter(metavar="FASTA...")] = ()
    """Sequence files to search with jackhmmer."""
    msa_server: Annotated[str | bool, Parameter(metavar="[URL]")] = False
    """Send the sequences to an MMseqs2 server; without URL to ColabFold's, a shared public service."""
    msa_server_timeout: Annotated[float, Parameter(metavar="SECONDS")] = 120.0
    """Give up a request to the server after this time, and one second more for each 128 KiB of its answer."""
    msa_server_wait: Annotated[float, Parameter(metavar="SECONDS")] = 10800.0
    """Wait this long for a search on the server."""
    msa_mode: Annotated[MsaMode, Parameter(metavar="MODE", show_choices=False)] = "auto"
    """auto: use all that is given. files: use the alignments of --msa and a3m files, and databases only for templates.
    databases, server: use only these. single_sequence: use no alignment at all.
    mmseqs2_uniref_env, mmseqs2_uniref: use a server, with or without environmental sequences;
    mmseqs2_uniref_env_envpair: also pair these, for complexes."""
    pair_strategy: PairStrategy = "greedy"
    """Rows of a complex that a server pairs. complete: of species that all chains have. greedy: that two have."""
    max_template_date: Annotated[Day | None, Parameter(show_default="the profile's, else any day")] = None
    """Use only templates released up to this day."""
    threads: Annotated[Workers | None, Parameter(show_default="all processors")] = None
    """Threads of each search."""


@Parameter(name="*", group=Group.create_ordered("Complexes"))
@dataclass(frozen=True, kw_only=True)
class ComplexOptions:
    """Options for complexes, whose chains stand between colons in a FASTA file, a table or a typed sequence."""

    records_as_chains: bool = False
    """Take each FASTA file for one complex, named after the file, whose chains are its records."""
    chain_ids: Annotated[tuple[str, ...], Parameter(metavar="ID...", show_default="letters")] = ()
    """Names of the chains of the one target, in their order; in a file, write chain_ids=H:L behind a record's name."""
    pair_mode: PairMode = "unpaired_paired"
    """Rows of the alignment: those that are paired between different chains and others, or only one of both."""
    cyclic: Annotated[tuple[str, ...] | None, Parameter(metavar="ID...", consume_multiple=(0, None))] = None
    """Close chains to rings, as cyclic peptides are: their ends are bonded. Without a name: all chains of all targets;
    a target of one chain has chain A."""


@Parameter(name="*", group=Group.create_ordered("Models"))
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options for the models that predict, and for their number of predictions."""

    preset: Annotated[
        str | None,
        Parameter(
            choices=tuple(PREDICTION_PRESETS),
            show_choices=False,
            metavar="NAME",
            help=f"Models, recycling and ensembling by one name; options given beside it take precedence. {_PRESETS}.",
        ),
    ] = None
    models: Annotated[
        tuple[str, ...],
        Parameter(metavar="MODEL...", show_default="model_1_ptm or model_1_multimer_v3, or what --weights holds"),
    ] = ()
    """model_1 to model_5, with _ptm or, for complexes, _multimer_v3, _multimer_v2 or _multimer; small (demonstration
    model), tiny or tiny_multimer (random parameters). Predictions are ranked by pLDDT, those of complexes by ipTM."""
    weights: Annotated[
        Path | None,
        Parameter(show_default="files of `helixfold weights download`, else the demonstration model in the package"),
    ] = None
    """Parameter file (.npz, .pt, .safetensors), or a directory with params_<model>.npz."""
    adapter: Annotated[tuple[str, ...], Parameter(metavar="FILE[=WEIGHT]...")] = ()
    """Add what `helixfold finetune` trained to these parameters; several, also between commas, add up, each times its
    weight (1)."""
    seed: Integer = 0
    """Seed of all random numbers, at most 2^62."""
    num_seeds: Annotated[int, reads(whole_number(1, 10_000), "N")] = 1
    """Number of predictions by each model, at most 10,000, with this seed and the ones after it."""
    stop_at_score: Annotated[Number | None, Parameter(metavar="PLDDT", show_default="never")] = None
    """Stop recycling, and make no more predictions of a target, once one has this mean pLDDT."""


@Parameter(
    name="*",
    group=Group.create_ordered(
        "Conformations", help="further predictions of a target from variants of its alignment, all from one search"
    ),
)
@dataclass(frozen=True, kw_only=True)
class ConformationOptions:
    """Options for predictions from variants of the alignment, which show other conformations than the whole one."""

    cluster_msa: bool = False
    """Also predict from each cluster of the alignment's rows (DBSCAN), as AF_Cluster does."""
    cluster_eps: Annotated[
        Number | None,
        Parameter(metavar="EPS", show_default="of 3 to 20, what puts a quarter of the rows into most clusters"),
    ] = None
    """Largest distance of neighbours in a cluster: the root of twice the columns in which they differ."""
    cluster_min_samples: Positive = 3
    """Rows within that distance of a row, itself included, that make it the core of a cluster."""
    cluster_max_gaps: Annotated[Number, Parameter(metavar="SHARE")] = 0.25
    """Share of gaps from which on rows are in no cluster."""
    mask_columns: Annotated[tuple[str, ...], Parameter(metavar="RESIDUES...")] = ()
    """Also predict with these residues replaced in all rows but the target's, as SPEACH_AF does: one prediction for
    each word, such as 10-20,45 (of a complex A:10-20)."""
    mask_window: Annotated[str | None, Parameter(metavar="N[:STEP]")] = None
    """The same with each window of so many residues; the next one begins STEP residues later, or where it ends."""
    mask_with: Replacement = "alanine"
    """Residue that replaces the masked ones; gaps stay gaps."""
    subsample_msa: Annotated[tuple[str, ...], Parameter(metavar="ROWS:EXTRA...")] = ()
    """Also predict with at most so many rows of the alignment and extra rows in each pass, such as 16:32,32:64; drawn
    anew with each seed (--num-seeds)."""
    reference: Annotated[tuple[File, ...], Parameter(metavar="FILE...")] = ()
    """Structures (mmCIF or PDB), such as two known conformations, to which the ensemble page compares all samples."""


@Parameter(name="*", group=Group.create_ordered("Recycling, relaxation and precision"))
@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """Options for how each prediction is computed and what is done with it."""

    num_recycles: Annotated[
        int | None,
        reads(whole_number(0, MAX_RECYCLES), "N"),
        Parameter(show_default="the preset's or the model's; 3, or 20 for _multimer_v3"),
    ] = None
    """Number of passes after the first, at most 1,000."""
    recycle_tolerance: Annotated[
        Number | None,
        Parameter(
            metavar="ANGSTROM",
            show_default="the preset's or the model's: 0.5 for _multimer_v3, else 0, never",
        ),
    ] = None
    """Stop recycling when distances change by less than this."""
    initial_guess: Annotated[Path | None, Parameter(metavar="PATH")] = None
    """Structure (mmCIF or PDB) from which recycling starts, as if a first pass had predicted its atoms; for several
    targets a directory with <target>.cif or <target>.pdb for each."""
    num_ensemble: Annotated[
        int | None, reads(whole_number(1, MAX_ENSEMBLE), "N"), Parameter(show_default="the preset's, or 1")
    ] = None
    """Number of random samples of the alignment in each pass, at most 100."""
    dropout: bool = False
    """Drop out parts of the network as in training, so that predictions differ from seed to seed: several of them, with
    --num-seeds, show where the network is unsure, and other conformations that it knows."""
    models_to_relax: Annotated[
        ToRelax | None,
        Parameter(show_default="best; none without OpenMM, and for untrained parameters and the demonstration model"),
    ] = None
    """Predictions to relax with OpenMM."""
    save_logits: bool = False
    """Also write the logits of all heads to logits_<model>.npz; N residues take 512 x N x N bytes more memory."""
    save_recycles: bool = False
    """Also write the structures of all passes to recycles_<model>.pdb, superposed, each a model of the file."""
    save_representations: Annotated[tuple[RepresentationName, ...], Parameter(metavar="NAME...")] = ()
    """Also write these representations of the network after the last pass to representations_<model>.npz: the target's
    row of the MSA, single, pair, and the structure module's. pair takes 512 x N x N bytes for N residues. With
    --save-recycles, those of all passes."""
    representations_format: RepresentationFormat = "npz"
    """Format of that file."""
    dtype: DtypeOrAuto = "auto"
    """Precision of the arithmetic in the trunk of the network. auto: bfloat16 on NVIDIA GPUs that have it (compute
    capability 8.0 and later), else float32; targets that were begun go on as they began. float16, for older cards, is
    more exact than bfloat16 but overflows at 65,504: a target that does so fails and says it."""


@Parameter(name="*", group=Group.create_ordered("Devices"))
@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Options for the devices and processes that predict."""

    device: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    devices: Annotated[str | None, Parameter(metavar="LIST")] = None
    """Several GPUs of this machine by number (0,1,3), or all; with --device cpu the number of processes, at most 1,024.
    Each takes the next target when it is free."""
    ranks_per_target: Workers = 1
    """Number of processes that predict one target together, each with a part of its memory."""
    targets_at_once: Annotated[Workers | None, Parameter(show_default="64 on a GPU, else 1")] = None
    """Number of targets that are predicted in the same passes, if they are short (up to 256 residues), alike in size,
    and fit into memory together; results do not depend on it, but for rounding."""
    cuda_graphs: CudaGraphs = "auto"
    """auto: an NVIDIA GPU records passes of short targets (up to 256 residues), and replays them where sizes repeat:
    that needs no processor. off: launch everything."""
    cluster: File | None = None
    """Search and fold on the nodes of a cluster (SLURM, PBS, LSF, Kubernetes), which this file (TOML) describes."""


@Parameter(name="*", group=Group.create_ordered("Memory"))
@dataclass(frozen=True, kw_only=True)
class MemoryLimits:
    """Options for the memory that a prediction may take."""

    executor: Executor = "auto"
    """whole: for short chains, on a GPU for all that fit. slabs: takes the memory of two pair tensors. spilled: keeps
    these on disk (of a GPU: in the host's memory). auto: the first of them that fits."""
    memory: Annotated[MemorySize | None, Parameter(show_default="what is free on its device")] = None
    """Memory that a process may take, such as 8GiB."""
    spill_directory: Annotated[Directory | None, Parameter(show_default="the target's directory")] = None
    """Directory on a disk for what is spilled."""
    max_msa_rows: Annotated[Positive | None, Parameter(show_default="as many as the model was trained with")] = None
    """Most rows of the alignment, drawn as cluster centres."""
    max_extra_rows: Annotated[Positive | None, Parameter(show_default="as many as the model was trained with")] = None
    """Most rows of the alignment beside the cluster centres."""


@Parameter(name="*", group=Group.create_ordered("Screen"))
@dataclass(frozen=True, kw_only=True)
class ScreenOptions:
    """Options for what a run shows."""

    log_file: File | None = None
    """Also add all lines that are shown to this file, with the time."""
    progress: Progress = "bars"
    """bars: for people. json: instead of bars, a JSON object in a line of stderr after each stage of each target."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """All options of `helixfold predict`, and the input files."""

    inputs: Annotated[tuple[Path, ...], Parameter(parse=False)] = ()
    targets: TargetOptions = field(default_factory=TargetOptions)
    search: SearchOptions = field(default_factory=SearchOptions)
    complexes: ComplexOptions = field(default_factory=ComplexOptions)
    models: ModelOptions = field(default_factory=ModelOptions)
    conformations: ConformationOptions = field(default_factory=ConformationOptions)
    compute: ComputeOptions = field(default_factory=ComputeOptions)
    devices: DeviceOptions = field(default_factory=DeviceOptions)
    memory: MemoryLimits = field(default_factory=MemoryLimits)
    screen: ScreenOptions = field(default_factory=ScreenOptions)


@Parameter(name="*", group=Group.create_ordered("Models and operators"))
@dataclass(frozen=True, kw_only=True)
class OperatorOptions:
    """Options of `helixfold doctor` for the size and the device that models and operators are reported for."""

    length: Annotated[int, reads(whole_number(1, 100_000), "N")] = 256
    """Number of residues, at most 100,000."""
    device: DoctorDevice = "auto"
    """A device of this machine, or the name of a card that need not be in it."""
    operators: bool = False
    """Also list which backend computes each operator of the network, and why no other does."""
    rows: Annotated[int, reads(whole_number(1, 1_000_000), "N")] = 128
    """Number of rows of the alignment, for --operators."""
    dtype: DtypeOrAuto = "auto"
    """Precision of the arithmetic, for --operators; auto: as predict and train choose it for the device."""
    json: bool = False
    """Print one JSON object for programs; sizes are in bytes."""
