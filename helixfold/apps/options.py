"""Options of `helixfold predict`, some of which `helixfold features` and `helixfold doctor` share.

The docstring of an option is its line in the help. This module imports nothing that takes long to load.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from data_pipeline.io.config import MAX_ENSEMBLE, MAX_RECYCLES
from data_pipeline.residue_ranges import Replacement
from helixfold.apps.example_files import example_file
from helixfold.apps.presets import PREDICTION_PRESETS
from helixfold.runtime.annotations import Group, Parameter
from helixfold.runtime.options import (
    MOST_USED,
    CudaGraphs,
    Day,
    Directory,
    DtypeOrAuto,
    Executor,
    File,
    Integer,
    MemorySize,
    Number,
    Offer,
    Output,
    Positive,
    Progress,
    RepresentationFormat,
    RepresentationName,
    Traits,
    Workers,
    calendar_date,
    option_group,
    part_of_all,
    reads,
    whole_number,
)

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
OutputFormat = Literal["helixfold", "colabfold", "packed"]
# Equal to `data_pipeline.features.complexes.alignments.PairMode`, which takes long to load.
PairMode = Literal["unpaired_paired", "paired", "unpaired"]
# Equal to `data_pipeline.search.alignment_server.PairStrategy`.
PairStrategy = Literal["greedy", "complete"]
Order = Literal["length", "none", "random"]
ToRelax = Literal["best", "all", "none"]
# Devices for `helixfold doctor`: of this machine, or a GPU model of helixfold.ops.device_properties.
DoctorDevice = Literal[
    "auto", "cpu", "cuda", "mps", "t4", "v100", "rtx3090", "rtx4090", "l4", "a100", "a100-80", "h100", "h200"
]
# Part of messages about options for templates.
NO_TEMPLATE_TABLE = "others come from the [templates] of a profile, or from AlphaFold's directory (--databases)"
EXAMPLE, EXAMPLE_TEMPLATE = example_file("src_sh3.fasta"), example_file("1shg.pdb")
TARGETS = Group.create_ordered("Targets")
_PRESETS_HELP = "; ".join(f"{name}: {preset.summary}" for name, preset in PREDICTION_PRESETS.items())


@option_group(TARGETS)
@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """Options for the targets, their order and the output.

    `features` are files of finished features. `as_protein` accepts sequences that look like DNA or RNA. `keep_existing`
    skips targets that were finished with other settings. `slim` removes most files of finished targets, `zip` writes an
    archive of each, and `shared` lets several runs divide the targets by claims. `shard` is a part and their number.
    """

    features: Annotated[tuple[Path, ...], Parameter(metavar="PATH..."), Traits(recorded="inputs")] = ()
    """Also predict from features made by `helixfold features`: features.npz files, its output directory, or a list of
    chains in a training set (set/held_out.txt)."""
    pulldown: Annotated[tuple[File, File] | None, Parameter(metavar="BAITS PREYS"), Traits(recorded="inputs")] = None
    """Predict every bait with every prey (the records of two FASTA files) and rank the pairs in pulldown.tsv and
    pulldown.html."""
    pulldown_table: Annotated[File | None, Traits(recorded="inputs")] = None
    """With --pulldown: predict the complexes in this table (.csv, .tsv) instead of all pairs. Columns: bait, prey and
    optionally id; a cell may name several chains and copies, such as heavy:light or antigen*2."""
    fetch_inputs: bool = False
    """Also take UniProt accessions (P69905) and PDB ids (4HHB, or 4HHB_A for one chain) instead of files, and fetch
    them: sequences to predict, and structures for --templates, --reference and --initial-guess (AlphaFold DB's of a
    UniProt accession)."""
    example: Annotated[bool, Traits(recorded="inputs")] = False
    """Predict the protein that comes with helixfold (the SH3 domain of Src, 64 residues) from its template, to try the
    installation."""
    output: Annotated[Output, Parameter(group=MOST_USED), Traits(alphafold="--output_dir")] = Path("predictions")
    """Output directory; each target gets its own subdirectory."""
    as_protein: bool = False
    """Read every letter as a residue, even if the sequence looks like DNA, RNA or three-letter codes."""
    skip_invalid: bool = False
    """Leave out targets whose input has an error, and predict the others. The errors are printed and written to
    failures.json, and the exit code is 1. Without this, nothing is predicted."""
    overwrite: Annotated[bool, Traits(colabfold="--overwrite-existing-results")] = False
    """Predict finished targets again."""
    keep_existing: bool = False
    """Skip targets that were finished before with other settings. Without this or --overwrite, they are an error."""
    slim: bool = False
    """Keep only ranked structures, confidences, ranking, settings and search results of each finished target."""
    zip: bool = False
    """Also pack each finished target into <target>.result.zip."""
    shared: bool = False
    """Share the output directory with other runs of the same targets, on any number of machines. Each run claims a
    target before it starts, and takes over the targets of runs that have died."""
    shard: Annotated[tuple[int, int] | None, reads(part_of_all, "I/N"), Parameter(n_tokens=1)] = None
    """Predict only part I of N of the targets, counted from 0. The output directory may be shared with the other
    parts."""
    output_format: OutputFormat = "helixfold"
    """colabfold: also write files with ColabFold's names and contents. packed: keep the directories of finished targets
    in archives of 256 (packed/*.zip), which `report`, `status`, `evaluate` and `compare` read."""
    sort_queries_by: Order = "length"
    """Order of the targets. length: shortest first, or longest first on several devices."""
    dry_run: Annotated[bool, Parameter(group=MOST_USED)] = False
    """Show what would be done, with the estimated memory and time of each target, and stop. More than 20 targets are
    summarized; --verbose lists them."""
    command: Annotated[tuple[str, ...], Parameter(parse=False)] = ()
    """Words of the command, for the provenance of results."""
    failures_file: Annotated[Path | None, Parameter(parse=False)] = None
    """Write failures into this file instead of failures.json, and no pages of all targets; for a part of a batch."""

    @property
    def is_shared(self) -> bool:
        """Return whether other runs may write to the output directory at the same time."""
        return self.shared or self.shard is not None


@option_group(
    Group.create_ordered("Searches and alignments", help="by default, nothing is searched: only the sequence is used")
)
@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options for where alignments and templates come from.

    `templates` of () uses the server's templates. `database` are FASTA files, `databases` a profile or directory.
    `msa_server` is a URL, or True for ColabFold's server; its times are in seconds. `threads` are of one search.
    """

    msa: Annotated[tuple[Path, ...], Parameter(metavar="PATH...", group=MOST_USED), Traits(recorded="inputs")] = ()
    """Alignments to use (a3m, Stockholm, ...) for a single target, or a directory with <name>.a3m, or AlphaFold's
    <name>/msas, for each target."""
    templates: Annotated[
        tuple[Path, ...] | None,
        Parameter(metavar="PATH...", consume_multiple=(0, None), group=MOST_USED),
        Traits(recorded="inputs", colabfold="--custom-template-path"),
    ] = None
    """Template structures (mmCIF or PDB files, or directories of them); they replace a template search. Without PATH:
    use the templates that the MMseqs2 server finds."""
    databases: Annotated[Path | None, Parameter(group=MOST_USED), Traits(recorded="inputs")] = None
    """Search these databases: a profile (TOML), or a directory set up by AlphaFold's or ColabFold's download script."""
    db_preset: Annotated[DatabasePreset, Traits(recorded="inputs", alphafold="--db_preset")] = "full_dbs"
    """For AlphaFold's directory: search BFD and UniRef30, or small_bfd instead of both."""
    database: Annotated[tuple[File, ...], Parameter(metavar="FASTA..."), Traits(recorded="inputs")] = ()
    """Search these sequence files with jackhmmer."""
    msa_server: Annotated[
        str | bool, Parameter(metavar="[URL]", group=MOST_USED), Traits(recorded="inputs", colabfold="--host-url")
    ] = False
    """Search with an MMseqs2 server; sends it the sequences. Without URL: ColabFold's public server."""
    msa_server_timeout: Annotated[float, Parameter(metavar="SECONDS")] = 120.0
    """Time limit of one request, plus one second for each 128 KiB of the response."""
    msa_server_wait: Annotated[float, Parameter(metavar="SECONDS")] = 10800.0
    """Time limit of one search on the server."""
    msa_mode: Annotated[MsaMode, Parameter(metavar="MODE", show_choices=False), Traits(recorded="inputs")] = "auto"
    """auto: use every source that is configured. files: use only the alignments of --msa and a3m files; databases are
    searched for templates only. databases, server: use only this source. single_sequence: use no alignment.
    mmseqs2_uniref_env, mmseqs2_uniref: use a server, with or without environmental sequences.
    mmseqs2_uniref_env_envpair: also pair environmental sequences of complexes."""
    pair_strategy: Annotated[PairStrategy, Traits(recorded="inputs")] = "greedy"
    """Which rows a server pairs in a complex. complete: from species found for all chains. greedy: from species found
    for at least two."""
    max_template_date: Annotated[
        Day | None,
        Parameter(show_default="the profile's, else none"),
        Traits(
            recorded="inputs",
            alphafold="--max_template_date",
            offer=Offer(
                name="newest_template",
                kind="str",
                pattern=r"^\d{4}-\d{2}-\d{2}$",
                needs="templates",
                label="Latest template release",
                text="latest release date of a template",
                convert=calendar_date,
            ),
        ),
    ] = None
    """Use only templates released on or before this day."""
    threads: Annotated[Workers | None, Parameter(show_default="all processors")] = None
    """Threads per search."""
    search_cache: Annotated[Directory | None, Parameter(show_default="databases/ in the user's cache directory")] = None
    """Directory that keeps results of MMseqs2 searches, databases converted for MMseqs2, and a server's templates."""


@option_group(Group.create_ordered("Complexes"))
@dataclass(frozen=True, kw_only=True)
class ComplexOptions:
    """Options for complexes; a complex is written as chains separated by colons, in a file or on the command line."""

    records_as_chains: Annotated[bool, Traits(recorded="inputs")] = False
    """Treat each FASTA file as one complex: its records are the chains, the file name is the target name."""
    chain_ids: Annotated[
        tuple[str, ...], Parameter(metavar="ID...", show_default="letters"), Traits(recorded="inputs")
    ] = ()
    """Chain ids of a single target, in order. In a FASTA file, add chain_ids=H:L after the record's name instead."""
    pair_mode: Annotated[
        PairMode,
        Traits(
            recorded="inputs",
            offer=Offer(
                name="pairing",
                kind="str",
                default="unpaired_paired",
                choices={
                    "unpaired_paired": "paired and unpaired",
                    "paired": "only paired",
                    "unpaired": "only unpaired",
                },
                label="MSA rows of complexes",
                text="rows of a complex's alignment",
            ),
        ),
    ] = "unpaired_paired"
    """Which MSA rows a complex uses: rows paired across chains, unpaired rows, or both."""
    cross_chain_templates: Annotated[tuple[File, ...], Parameter(metavar="FILE..."), Traits(recorded="inputs")] = ()
    """Templates that also show how chains are arranged: up to four mmCIF or PDB files, each with several chains of the
    complex. For AlphaFold-Multimer only."""
    cyclic: Annotated[
        tuple[str, ...] | None, Parameter(metavar="ID...", consume_multiple=(0, None)), Traits(recorded="options")
    ] = None
    """Close chains into rings, as in cyclic peptides: the first and last residue are bonded. Without ID: all chains of
    all targets; the chain of a monomer is A."""


@option_group(Group.create_ordered("Models"))
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options for the models and the number of predictions.

    `preset` is a set of models with their settings. `adapter` are files of low-rank adapters, with optional weights.
    `num_seeds` is the number of predictions of each model, and `stop_at_score` a mean pLDDT.
    """

    preset: Annotated[
        str | None,
        Parameter(
            choices=tuple(PREDICTION_PRESETS),
            show_choices=False,
            metavar="NAME",
            help=f"Set of models, recycling and ensembling; other options override it. {_PRESETS_HELP}.",
        ),
        Traits(recorded="predictions", alphafold="--model_preset"),
    ] = None
    models: Annotated[
        tuple[str, ...],
        Parameter(
            metavar="MODEL...",
            show_default="model_1_ptm or model_1_multimer_v3, or the models in --weights",
            group=MOST_USED,
            alias="--model",  # the name in `score` and `scan`, which take one model
        ),
        Traits(
            recorded="predictions",
            offer=Offer(
                name="model",
                kind="str",
                bounds=(1, 60),
                label="Model",
                text="one of the models that the service offers",
                convert=lambda name: (name,),
            ),
        ),
    ] = ()
    """model_1 to model_5; with suffix _ptm; for complexes with _multimer_v3, _multimer_v2 or _multimer; small
    (demonstration model); tiny, tiny_multimer (random parameters). Predictions are ranked by pLDDT, or by ipTM for
    complexes."""
    weights: Annotated[
        Path | None,
        Parameter(
            show_default="files from `helixfold weights download`, else the packaged demonstration model",
            group=MOST_USED,
        ),
        Traits(recorded="predictions"),
    ] = None
    """Parameter file (.npz, .pt, .safetensors), or a directory with params_<model>.npz files."""
    adapter: Annotated[tuple[str, ...], Parameter(metavar="FILE[=WEIGHT]..."), Traits(recorded="predictions")] = ()
    """Add adapters trained by `helixfold finetune` to the parameters, each multiplied by its WEIGHT (1). Several
    adapters, separated by spaces or commas, add up."""
    seed: Annotated[
        Integer,
        Traits(
            recorded="predictions",
            colabfold="--random-seed",
            alphafold="--random_seed",
            offer=Offer(
                name="seed", kind="int", default=0, bounds=(0, 2**31), label="Seed", text="seed of all random numbers"
            ),
        ),
    ] = 0
    """Seed of all random numbers, at most 2^62."""
    num_seeds: Annotated[
        int,
        reads(whole_number(1, 10_000), "N"),
        Parameter(group=MOST_USED),
        Traits(
            recorded="predictions",
            alphafold="--num_multimer_predictions_per_model",
            offer=Offer(
                name="predictions",
                kind="int",
                default=1,
                bounds=(1, 20),
                label="Predictions",
                text="number of predictions, each with its own seed",
            ),
        ),
    ] = 1
    """Predictions per model, at most 10,000, with consecutive seeds."""
    stop_at_score: Annotated[
        Number | None, Parameter(metavar="PLDDT", show_default="never"), Traits(recorded="options")
    ] = None
    """Stop recycling and predicting a target once a prediction reaches this mean pLDDT."""


@option_group(
    Group.create_ordered("Conformations", help="more predictions of a target, from variants of its alignment")
)
@dataclass(frozen=True, kw_only=True)
class ConformationOptions:
    """Options for predictions from variants of the alignment, which may show other conformations.

    `cluster_*` are for DBSCAN clusters of the rows, `mask_*` for replaced residues, and `subsample_msa` for numbers of
    rows. `reference` are structures with which all predictions are compared.
    """

    cluster_msa: Annotated[bool, Traits(recorded="predictions")] = False
    """Also predict from each cluster of MSA rows (DBSCAN), as AF_Cluster does."""
    cluster_eps: Annotated[
        Number | None,
        Parameter(metavar="EPS", show_default="3 to 20, whichever gives most clusters for a quarter of the rows"),
        Traits(recorded="predictions"),
    ] = None
    """Maximum distance of neighbours in a cluster: the square root of twice the number of columns that differ."""
    cluster_min_samples: Annotated[Positive, Traits(recorded="predictions")] = 3
    """Minimum number of rows within this distance, the row itself included, that makes a row a core of a cluster."""
    cluster_max_gaps: Annotated[Number, Parameter(metavar="SHARE"), Traits(recorded="predictions")] = 0.25
    """Rows with at least this fraction of gaps are not clustered."""
    mask_columns: Annotated[tuple[str, ...], Parameter(metavar="RESIDUES..."), Traits(recorded="predictions")] = ()
    """Also predict with these residues replaced in all MSA rows except the target's, as SPEACH_AF does. One prediction
    for each argument, such as 10-20,45, or A:10-20 in a complex."""
    mask_window: Annotated[str | None, Parameter(metavar="N[:STEP]"), Traits(recorded="predictions")] = None
    """The same for a sliding window of N residues that moves by STEP residues."""
    mask_with: Annotated[Replacement, Traits(recorded="predictions")] = "alanine"
    """Residue that replaces the masked ones; gaps stay gaps."""
    subsample_msa: Annotated[tuple[str, ...], Parameter(metavar="ROWS:EXTRA..."), Traits(recorded="predictions")] = ()
    """Also predict with at most this many MSA rows and extra rows per recycling iteration, such as 16:32,32:64. The
    rows are sampled again for each seed (--num-seeds)."""
    reference: Annotated[tuple[File, ...], Parameter(metavar="FILE...")] = ()
    """Structures (mmCIF or PDB), such as two known conformations; the ensemble page compares all predictions with
    them."""


@option_group(Group.create_ordered("Recycling, relaxation and precision"))
@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """Options for recycling, relaxation, precision and additional output of each prediction.

    `recycle_tolerance` is in Å. `initial_guess` is a structure with which recycling starts, or a directory of them.
    `num_ensemble` is the number of MSA samples that are averaged, and `foldseek` a database for its search.
    """

    num_recycles: Annotated[
        int | None,
        reads(whole_number(0, MAX_RECYCLES), "N"),
        Parameter(show_default="3; 20 for _multimer_v3; or the preset's", group=MOST_USED),
        Traits(
            recorded="options",
            colabfold="--num-recycle",
            offer=Offer(
                name="recycles",
                kind="int",
                bounds=(0, 50),
                label="Recycles",
                text="recycling iterations after the first one",
            ),
        ),
    ] = None
    """Recycling iterations after the first one, at most 1,000."""
    recycle_tolerance: Annotated[
        Number | None,
        Parameter(
            metavar="ANGSTROM",
            show_default="never; 0.5 for _multimer_v3; or the preset's",
        ),
        Traits(recorded="options", colabfold="--recycle-early-stop-tolerance"),
    ] = None
    """Stop recycling when distances change by less than this."""
    initial_guess: Annotated[Path | None, Parameter(metavar="PATH"), Traits(recorded="inputs")] = None
    """Structure (mmCIF or PDB) to start recycling from, instead of the first iteration's atoms. For several targets: a
    directory with <target>.cif or <target>.pdb."""
    restraints: Annotated[Path | None, Parameter(metavar="PATH"), Traits(recorded="inputs")] = None
    """Distance restraints for the models alphalink_contacts and alphalink_distances: two residues a line, and a false
    discovery rate, a cross-linker or a distribution. For several targets: a directory with <target>.csv, .tsv or
    .txt."""
    num_ensemble: Annotated[
        int | None,
        reads(whole_number(1, MAX_ENSEMBLE), "N"),
        Parameter(show_default="the preset's, or 1"),
        Traits(recorded="options"),
    ] = None
    """MSA samples averaged in each recycling iteration, at most 100."""
    dropout: Annotated[
        bool,
        Traits(
            recorded="options",
            colabfold="--use-dropout",
            offer=Offer(
                name="dropout",
                kind="bool",
                default=False,
                label="Diverse predictions (dropout)",
                text="use dropout, for diverse predictions",
            ),
        ),
    ] = False
    """Keep dropout on, as in training. Predictions then differ between seeds (--num-seeds), which shows where the
    network is uncertain and may show other conformations."""
    models_to_relax: Annotated[
        ToRelax | None,
        Parameter(
            show_default="best; none without OpenMM, or with untrained or demonstration parameters", group=MOST_USED
        ),
        Traits(
            alphafold="--models_to_relax",
            offer=Offer(
                name="relax",
                kind="bool",
                default=False,
                needs="relaxes",
                label="Relax the best structure",
                text="relax the best structure with OpenMM",
                convert=lambda relax: "best" if relax else "none",
            ),
        ),
    ] = None
    """Predictions to relax with OpenMM."""
    foldseek: Annotated[Path | None, Parameter(metavar="DATABASE")] = None
    """Search for known structures like the best prediction, with the program foldseek: a database of Foldseek, or a
    directory of structures."""
    save_logits: bool = False
    """Also write the logits of all heads to logits_<model>.npz. Takes 512 x N x N bytes more memory for N residues."""
    save_recycles: bool = False
    """Also write the superposed structures of all recycling iterations to recycles_<model>.pdb, as models of one
    file."""
    save_representations: Annotated[tuple[RepresentationName, ...], Parameter(metavar="NAME...")] = ()
    """Also write these representations to representations_<model>.npz: the target's MSA row, single, pair, or the
    structure module's single representation. pair takes 512 x N x N bytes for N residues. With --save-recycles: of all
    recycling iterations."""
    representations_format: RepresentationFormat = "npz"
    """Format of the representations file."""
    dtype: Annotated[DtypeOrAuto, Traits(recorded="options")] = "auto"
    """Precision of the trunk. auto: bfloat16 on NVIDIA GPUs with compute capability 8.0 or later, else float32; a
    resumed target keeps its precision. float16, for older GPUs, is more precise than bfloat16 but overflows at 65,504;
    the target then fails with a message."""


@option_group(Group.create_ordered("Devices"))
@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Options for devices and processes.

    `devices` are GPU indices or a number of processes. `ranks_per_target` processes fold a target together, and
    `targets_at_once` short targets are one batch. `cluster` is the file that describes a cluster.
    """

    device: Annotated[str, Parameter(metavar="NAME", group=MOST_USED)] = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    devices: Annotated[str | None, Parameter(metavar="LIST"), Traits(alphafold="--gpu_devices")] = None
    """Use several GPUs of this machine, by index (0,1,3) or all; with --device cpu, this many processes (at most
    1,024). Each takes the next target when it is idle."""
    ranks_per_target: Workers = 1
    """Processes that predict one target together, each holding part of the memory."""
    targets_at_once: Annotated[Workers | None, Parameter(show_default="64 on a GPU, else 1")] = None
    """Short targets (up to 256 residues) of similar length that are predicted in one batch, if they fit into memory.
    Results are the same up to rounding."""
    cuda_graphs: CudaGraphs = "auto"
    """auto: capture CUDA graphs of short targets (up to 256 residues) on an NVIDIA GPU and replay them for equal sizes,
    which takes load off the CPU. off: launch every kernel."""
    cluster: File | None = None
    """Search and predict on the nodes of a cluster (Slurm, PBS, LSF, Kubernetes) described in this TOML file."""


@option_group(Group.create_ordered("Memory"))
@dataclass(frozen=True, kw_only=True)
class MemoryLimits:
    """Options for the memory of a prediction.

    `executor` is how the network is computed, and `memory` a limit in bytes. `max_msa_rows` limits the cluster centres.
    """

    executor: Executor = "auto"
    """How the network is computed. whole: fastest, for chains that fit. slabs: needs the memory of two pair tensors.
    spilled: keeps these tensors on disk (for a GPU: in host memory). auto: the first one that fits."""
    memory: Annotated[MemorySize | None, Parameter(show_default="the free memory of its device")] = None
    """Memory limit of a process, such as 8GiB."""
    spill_directory: Annotated[Directory | None, Parameter(show_default="the target's directory")] = None
    """Directory for spilled tensors, on a fast disk."""
    max_msa_rows: Annotated[
        Positive | None,
        Parameter(show_default="as in the model's training"),
        Traits(recorded="options", colabfold="--max-seq"),
    ] = None
    """Maximum number of MSA rows used as cluster centres."""
    max_extra_rows: Annotated[
        Positive | None,
        Parameter(show_default="as in the model's training"),
        Traits(recorded="options", colabfold="--max-extra-seq"),
    ] = None
    """Maximum number of extra MSA rows."""


@option_group(Group.create_ordered("Output on the screen"))
@dataclass(frozen=True, kw_only=True)
class ScreenOptions:
    """Options for output on the screen."""

    log_file: File | None = None
    """Append all output to this file, with time stamps."""
    progress: Progress = "bars"
    """bars: progress bars, on a terminal only. json: one JSON object on stderr after each stage of each target, with
    the time and the seconds left."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PredictOptions(  # fields of the last base class come first, also in the help
    ScreenOptions,
    MemoryLimits,
    DeviceOptions,
    ComputeOptions,
    ConformationOptions,
    ModelOptions,
    ComplexOptions,
    SearchOptions,
    TargetOptions,
):
    """All options of `helixfold predict`, and the input files."""

    inputs: Annotated[tuple[Path, ...], Parameter(parse=False), Traits(recorded="inputs")] = ()


@option_group(Group.create_ordered("Models and operators"))
@dataclass(frozen=True, kw_only=True)
class OperatorOptions:
    """Options of `helixfold doctor`: the target size, device and operators of the report.

    `length` is a number of residues. `operators` also lists the backends of operators, for `rows` MSA rows and `dtype`.
    """

    length: Annotated[int, reads(whole_number(1, 100_000), "N")] = 256
    """Number of residues, at most 100,000."""
    device: Annotated[DoctorDevice, Parameter(metavar="NAME", show_choices=False)] = "auto"
    """A device of this machine (auto, cpu, cuda, mps), or any supported GPU model: t4, v100, rtx3090, rtx4090, l4,
    a100, a100-80, h100, h200."""
    operators: bool = False
    """Also list the backend that computes each operator, and why others cannot."""
    rows: Annotated[int, reads(whole_number(1, 1_000_000), "N")] = 128
    """Number of MSA rows, for --operators."""
    dtype: DtypeOrAuto = "auto"
    """Precision, for --operators. auto: as in predict and train."""
    json: bool = False
    """Print one JSON object; sizes are in bytes."""
