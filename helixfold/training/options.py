"""Options of `helixfold train`, of `helixfold plan`, and of `helixfold features` for training sets.

The docstring of an option is its line in the help. Nothing is imported here that takes long to load.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from helixfold.runtime.annotations import Group, Parameter
from helixfold.runtime.options import (
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
    option_group,
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


@option_group(Group.create_ordered("Training sets"))
@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Options of `helixfold features` for building a feature store: which chains it holds, and from which files."""

    structures: Directory | None = None
    """mmCIF or PDB files (.gz too), in a directory or its subdirectories."""
    alignments: Directory | None = None
    """Directory with one subdirectory of alignments per chain (1abc_A), laid out as in OpenProteinSet and OpenFold, or
    OpenFold's alignment_db (.db files with a .index for each). Without it, each chain has only its own sequence."""
    duplicates: File | None = None
    """Chains that share an alignment (duplicate_pdb_chains.txt)."""
    chains: File | None = None
    """Use only the chains listed in this file, one name per line (1abc_A)."""
    require_alignments: bool = False
    """Skip chains without an alignment."""
    templates_from: Directory | None = None
    """mmCIF files for each chain's template hits (hhr, pdb_hits.sto, m8)."""
    templates_of_any_date: bool = False
    """Also use templates that were released after the chain or have no date."""
    obsolete: File | None = None
    """The PDB's obsolete.dat, for --templates-from."""
    clusters: Annotated[File | None, Parameter(show_default="mmseqs2 clusters at 40% identity")] = None
    """Clusters of chains: one cluster per line, or a table of chain and cluster."""
    assemblies: bool = False
    """Also store the first biological assembly of each mmCIF file, for training on complexes. Rows are paired from the
    chains' uniprot_hits alignments."""
    distillation: bool = False
    """The structures are predictions with pLDDT in the B-factor column."""
    from_predictions: Directory | None = None
    """Instead of --structures: train on the confident targets in this output directory of `helixfold predict`."""
    min_plddt: Annotated[Number, Parameter(alias="--least-plddt")] = 70.0
    """Minimum mean pLDDT of a target for --from-predictions."""
    max_release_date: Day | None = None
    """Skip structures released after this day, such as 2018-04-30."""
    max_resolution: Annotated[Number, Parameter(metavar="ANGSTROM", alias="--resolution")] = 9.0
    """Skip structures with a resolution of this value or worse; NMR structures are kept."""
    min_length: Integer = 1
    """Skip chains with fewer residues."""
    workers: Annotated[Workers | None, Parameter(show_default="one for each processor")] = None
    """Number of processes."""
    join_shards: bool = False
    """Cluster the chains of all finished shards together, and stop."""
    hold_out: Annotated[Number | None, Parameter(metavar="FRACTION")] = None
    """Also write held_out.txt, whole clusters with this fraction of the chains, for --held-out; held_out.fasta, to
    predict them; and leakage.tsv, the nearest training chain of each. With --assemblies, also
    held_out_assemblies.txt."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `helixfold train`."""

    output: Output | None = None
    """Output directory of the run. Run the same command again to resume."""
    preset: Annotated[TrainingPreset, Parameter(metavar="PRESET")] = "tiny"
    """Settings to start from: tiny, small, initial_training, finetuning; for complexes tiny_multimer,
    multimer_initial_training, multimer_finetuning."""
    recipe: Recipe | None = None
    """Train in several stages, each in its own subdirectory, instead of one run with a preset. small: the packaged
    demonstration model, in stages of at most 150 minutes on two cores."""
    stages: Positive | None = None
    """With --recipe: stop after this many stages. Run the command again without it to continue."""
    settings: Settings = ()
    """Change a setting, such as steps=100, optimizer.learning_rate=1e-4 or model.evoformer.blocks=8. May be
    repeated."""
    show_settings: bool = False
    """Print all settings and stop."""
    dry_run: bool = False
    """Show the estimated memory per rank for each checkpoint policy, and stop."""
    memory: Annotated[MemorySize | None, Parameter(show_default="the free memory")] = None
    """Memory limit for --dry-run, such as 24GB."""
    held_out: File | None = None
    """File of chain names (assembly names for complexes) that are evaluated, not trained on."""
    weights: File | None = None
    """Start from these parameters (.npz, .pt, .safetensors). Complexes can start from monomer parameters."""
    new_parameters: Annotated[tuple[str, ...], Parameter(metavar="PATTERN...", show_default="none")] = ()
    """With --weights: parameters of a changed network that the file may lack, or have in another shape, such as
    'evoformer.*.my_update.*'. They start with the network's own initial values."""
    device: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """auto, cpu, cuda, cuda:N or mps; for --dry-run also a GPU that this machine need not have, such as h200."""
    workers: Annotated[
        int | None, reads(whole_number(0, MAX_PROCESSES), "N"), Parameter(show_default="4 for a GPU, else 0")
    ] = None
    """Loader processes per device."""
    cuda_graphs: CudaGraphs = "auto"
    """auto: capture a CUDA graph of the training step on an NVIDIA GPU and replay it, which takes load off the CPU.
    Requires example.fixed_shapes and one sample per rank. off: launch every kernel."""
    layout: Annotated[str | None, Parameter(metavar="LAYOUT")] = None
    """How ranks divide the work, such as dp=16,bp=2,dap=2: dp groups of bp x dap ranks; each group trains on its own
    samples (bp: branches, 1 or 2; dap: axial parts). Without dp, or on resuming: as many groups as fit. auto: measure
    devices and links, and use the fastest layout."""
    timeout: Annotated[Number, Parameter(metavar="SECONDS", alias="--patience")] = 600.0
    """End the run if a rank does not respond for this long."""
    cluster: File | None = None
    """Submit the training to a cluster's queue, using [train] of this TOML file."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of `helixfold plan`."""

    hardware: Annotated[tuple[str, ...], Parameter(metavar="KINDxN...")] = ("a100x128",)
    """GPUs in nodes of eight, and their count, such as h100x512: t4, v100, rtx3090, rtx4090, l4, a100, a100-80, h100,
    h200; or this machine (here, herex2), which is measured. a100x256+512: 256 GPUs in the first stage, 512 in the
    second."""
    preset: Annotated[tuple[TrainingPreset, ...], Parameter(metavar="PRESET...")] = ("initial_training", "finetuning")
    """The stages of the training, in order."""
    settings: Settings = ()
    """Change a setting of all stages, such as batch_size=256. May be repeated."""
    training_set: Annotated[Directory | None, Parameter(show_default="examples of the largest size")] = None
    """Measure this machine (here) with examples of this training set. Its chains may be shorter than the crop, with
    fewer templates and MSA rows than the settings allow."""
    samples: Annotated[
        tuple[Positive, ...],
        Parameter(
            metavar="N...", show_default="10000000 for initial_training, 1500000 for finetuning, else the preset's"
        ),
    ] = ()
    """Number of samples of each stage."""
    step_seconds: Annotated[tuple[Number, ...], Parameter(metavar="SECONDS...", show_default="estimated")] = ()
    """Measured time per step of each stage, used instead of an estimate."""
    layouts: bool = False
    """Show all layouts, not only the fastest."""
    parallel_blocks: bool = False
    """Assume the outer product mean at the end of each block, so that its two branches can run in parallel."""
    published_steps: bool = False
    """Compare estimated step times with published ones, and stop."""
