"""Options of `helixfold train`, of `helixfold plan`, and of `helixfold features` for training sets.

The docstring of an option is its line in the help. Nothing is imported here that takes long to load.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from helixfold.annotations import Parameter
from helixfold.options import (
    MAX_PROCESSES,
    CudaGraphs,
    Day,
    Directory,
    File,
    Integer,
    MemorySize,
    Number,
    Output,
    Positive,
    Workers,
    reads,
    whole_number,
)

TrainingPreset = Literal[
    "initial_training",
    "finetuning",
    "multimer_initial_training",
    "multimer_finetuning",
    "small",
    "tiny",
    "tiny_multimer",
]
Recipe = Literal["small"]
AUTO_LAYOUT = "auto"
Settings = Annotated[tuple[str, ...], Parameter(name="--set", metavar="NAME=VALUE", consume_multiple=False)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Options of `helixfold features` for building a feature store: which chains it holds, and from which files."""

    structures: Directory | None = None
    """mmCIF or PDB files (.gz too), in one directory or in subdirectories."""
    alignments: Directory | None = None
    """Directory with one directory per chain (1abc_A), as OpenProteinSet and OpenFold lay them out; without it each
    chain has only its own sequence."""
    duplicates: File | None = None
    """Chains that share an alignment (duplicate_pdb_chains.txt)."""
    chains: File | None = None
    """Take only these chains: names as in the training set (1abc_A), one on each line."""
    require_alignments: bool = False
    """Leave out chains that have no alignment."""
    templates_from: Directory | None = None
    """mmCIF files for the template hits (hhr, pdb_hits.sto, m8) of each chain."""
    templates_of_any_date: bool = False
    """Use templates that were released after a chain, too, or whose date is unknown."""
    obsolete: File | None = None
    """The PDB's obsolete.dat, for --templates-from."""
    clusters: Annotated[File | None, Parameter(show_default="mmseqs2 clusters at 40% identity")] = None
    """Clusters of chains: one cluster in each line, or a table of chain and cluster."""
    assemblies: bool = False
    """Record the first biological assembly of each mmCIF file, too, for training on complexes. The uniprot_hits
    alignments of chains pair their rows."""
    distillation: bool = False
    """The structures are predictions with pLDDT as B factors."""
    from_predictions: Directory | None = None
    """Train on the confident targets in this output directory of helixfold predict, in place of --structures."""
    least_plddt: Number = 70.0
    """Mean pLDDT of a target of --from-predictions from which on it is taken."""
    max_release_date: Day | None = None
    """Leave out structures released after this day, such as 2018-04-30."""
    resolution: Annotated[Number, Parameter(metavar="ANGSTROM")] = 9.0
    """Leave out structures whose resolution is not below this; NMR structures have none and pass."""
    min_length: Integer = 1
    """Leave out chains with fewer residues."""
    workers: Annotated[Workers | None, Parameter(show_default="one for each processor")] = None
    """Number of processes."""
    join_shards: bool = False
    """Cluster the chains of all finished shards together, and do nothing else."""
    hold_out: Annotated[Number | None, Parameter(metavar="FRACTION")] = None
    """Also write held_out.txt for --held-out, whole clusters with this fraction of the chains, and leakage.tsv: the
    nearest chain to train on of each. With --assemblies, also held_out_assemblies.txt: no assembly is divided."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `helixfold train`."""

    output: Output | None = None
    """Directory of the run; the same command again goes on with it."""
    preset: Annotated[TrainingPreset, Parameter(metavar="PRESET")] = "tiny"
    """Settings to begin with: tiny, small, initial_training, finetuning, or of complexes tiny_multimer,
    multimer_initial_training, multimer_finetuning."""
    recipe: Recipe | None = None
    """Train in several stages, each in its own directory in --output, instead of one run with a preset. small: the
    demonstration model in the package, in stages of at most 150 minutes on two cores."""
    stages: Positive | None = None
    """With --recipe: end after this many stages; the same command without it goes on."""
    settings: Settings = ()
    """Change a setting (steps=100, optimizer.learning_rate=1e-4, model.evoformer.blocks=8); may be given repeatedly."""
    show_settings: bool = False
    """Print all settings, and do nothing else."""
    dry_run: bool = False
    """Only show how much memory a rank needs by what is recomputed."""
    memory: Annotated[MemorySize | None, Parameter(show_default="what is free")] = None
    """Memory for --dry-run, such as 24GB."""
    held_out: File | None = None
    """Names of chains, or for complexes of assemblies, to evaluate the model on and not to train on."""
    weights: File | None = None
    """Start from these parameters (.npz, .pt, .safetensors). A network of complexes takes over those of one for single
    chains, too."""
    device: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """auto, cpu, cuda, cuda:N or mps; for --dry-run also a card that need not be in this machine, such as h200."""
    workers: Annotated[
        int | None, reads(whole_number(0, MAX_PROCESSES), "N"), Parameter(show_default="4 for a GPU, else 0")
    ] = None
    """Processes per device that prepare examples ahead."""
    cuda_graphs: CudaGraphs = "auto"
    """auto: an NVIDIA GPU records a training step and replays it, if example.fixed_shapes is set and ranks share no
    sample: that needs no processor. off: launch everything."""
    layout: Annotated[str | None, Parameter(metavar="LAYOUT")] = None
    """How ranks share the work, such as dp=16,bp=2,dap=2: dp groups with samples of their own, each of bp (1 or 2) x
    dap ranks that share one. Without dp, or when a run goes on: as many groups as fit. auto: measure devices and links
    and take the fastest."""
    timeout: Annotated[Number, Parameter(metavar="SECONDS")] = 600.0
    """A rank that keeps the others waiting for longer is lost, and the run ends."""
    cluster: File | None = None
    """Submit the training to the queue of a cluster, for the nodes that [train] of this file (TOML) describes."""
    patience: Annotated[Number | None, Parameter(show=False)] = None
    """The earlier name of --timeout."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of `helixfold plan`."""

    hardware: Annotated[tuple[str, ...], Parameter(metavar="KINDxN...")] = ("a100x128",)
    """Devices: a100, h100 or h200 in nodes of eight, or this machine (here), which is measured; and how many of them,
    such as h100x512 or herex2. a100x256+512 has 256 for the first stage and 512 for the second."""
    preset: Annotated[tuple[TrainingPreset, ...], Parameter(metavar="PRESET...")] = ("initial_training", "finetuning")
    """The stages of the training, one after the other."""
    settings: Settings = ()
    """Change a setting of all stages, such as batch_size=256; may be given repeatedly."""
    training_set: Annotated[Directory | None, Parameter(show_default="examples of the largest size")] = None
    """Training set whose examples this machine (here) is measured with: its chains may be shorter than the crop, and
    have fewer templates and MSA rows than the settings allow."""
    samples: Annotated[
        tuple[Positive, ...],
        Parameter(metavar="N...", show_default="10000000 of initial_training, 1500000 of finetuning, else its steps"),
    ] = ()
    """Number of samples of each stage."""
    step_seconds: Annotated[tuple[Number, ...], Parameter(metavar="SECONDS...", show_default="predicted")] = ()
    """Time of a step of each stage, as you know it; nothing is predicted then."""
    layouts: bool = False
    """Show every way to divide the ranks, not only the fastest."""
    parallel_blocks: bool = False
    """Assume that the outer product stands at the end of blocks, so that their two branches can run in parallel."""
    published_steps: bool = False
    """Predict published times of single steps, and do nothing else."""
