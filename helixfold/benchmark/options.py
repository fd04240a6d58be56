"""Options of the benchmarks.

The docstring of an option is its help text. This module imports nothing that loads slowly. `MODELS`, `GPUS` and
`DTYPES` are choices of options, and `WHAT` and `HOW` groups of options in the help.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from helixfold.apps.options import EXAMPLE
from helixfold.runtime.annotations import Group, Parameter
from helixfold.runtime.options import (
    MAX_PROCESSES,
    Directory,
    Dtype,
    File,
    Integer,
    Number,
    Positive,
    positive,
    reads,
    whole_number,
)

_MULTIMER_SUFFIXES = ("_multimer_v3", "_multimer_v2", "_multimer")
# These constants repeat names of modules that load slowly. The models are `helixfold.model.presets.PRESETS`.
MODELS = (
    *(f"model_{index}{suffix}" for suffix in ("", "_ptm", *_MULTIMER_SUFFIXES) for index in range(1, 6)),
    *("alphalink_contacts", "alphalink_distances", "small", "tiny", "tiny_multimer"),
)
# The GPUs in `helixfold.ops.device_properties.DEVICE_MODELS`.
GPUS = ("t4", "v100", "rtx3090", "rtx4090", "l4", "a100", "a100-80", "h100", "h200")
# Equal to `helixfold.execution.recompute.Keep`.
CheckpointPolicy = Literal["none", "operators", "inputs", "block"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
Model = Annotated[str, Parameter(choices=MODELS, show_choices=False, metavar="MODEL")]
Device = Annotated[str, Parameter(metavar="NAME")]
WHAT, HOW = Group.create_ordered("What to measure"), Group.create_ordered("How to measure")

Way = Literal["plain", "whole", "slabs"]
_EarlierWay = Literal["Whole", "Slabs"]  # names in version 0.1
Size = Literal["tiny", "initial_training", "finetuning"]
Arch = Literal["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
MemoryPart = Literal["prediction", "evoformer", "design"]
MeasuredExecutor = Literal["plain", "whole", "slabs", "spilled"]
ShortDtype = Literal["bfloat16", "float16"]
AblationPart = Literal["training", "prediction"]


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """Options that several benchmarks have in common."""

    device: Device = "cpu"
    """auto, cpu, cuda or cuda:N."""
    dtypes: tuple[Dtype, ...] = DTYPES
    """Precisions to measure in."""
    threads: Annotated[Positive | None, Parameter(show_default="PyTorch's")] = None
    """CPU threads."""
    repeats: Annotated[Positive | None, Parameter(show_default="1 to 7, by the benchmark")] = None
    """Number of measurements; the median is reported."""
    neighbours: Annotated[int, reads(whole_number(0, MAX_PROCESSES), "N")] = 0
    """Single-threaded processes that compute at the same time, as on a shared machine."""
    json: File | None = None
    """Also write the measurements to this file."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OpsOptions:
    """Options of `helixfold benchmark ops`."""

    preset: Model = "model_1"
    """Model that sets the numbers of channels and heads."""
    residues: Annotated[tuple[Positive, ...], Parameter(metavar="N...")] = (256,)
    """Numbers of residues."""
    rows: Positive = 128
    """MSA rows."""
    extra_rows: Positive = 1024
    """Extra MSA rows."""
    only: Annotated[str, Parameter(metavar="WORDS", show_default="all")] = ""
    """Measure only operators whose name contains this text."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BlockOptions:
    """Options of `helixfold benchmark block`."""

    preset: Model = "model_1"
    """Model whose block is measured."""
    residues: Positive = 256
    """Number of residues."""
    rows: Positive = 128
    """MSA rows."""
    peer: tuple[Literal["jax", "openfold", "open-omics"], ...] = ()
    """Other programs to measure: DeepMind's, OpenFold, Intel's."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options of `helixfold benchmark model`."""

    preset: Model = "model_1"
    """Model to measure."""
    residues: Positive = 256
    """Number of residues."""
    rows: Annotated[Positive | None, Parameter(show_default="the model's")] = None
    """MSA rows, not counting templates."""
    extra_rows: Annotated[Positive | None, Parameter(show_default="the model's")] = None
    """Extra MSA rows."""
    executors: Annotated[
        tuple[Way | _EarlierWay, ...],
        Parameter(consume_multiple=(0, None), show_choices=False, metavar="EXECUTOR...", alias="--ways"),
    ] = get_args(Way)
    """Executors of our network to measure: whole, slabs. plain: whole, with PyTorch's own operators."""
    peer: tuple[Literal["jax", "colabfold", "openfold"], ...] = ()
    """Other programs to measure: DeepMind's, as published or with ColabFold's GPU kernels, OpenFold."""
    jax_python: Annotated[File, Parameter(show_default="this one")] = Path(sys.executable)
    """Python interpreter that has jax and alphafold."""
    jax_subbatch: Integer = 4
    """Rows that DeepMind's program computes at a time: 4 as published, 0 for all."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of `helixfold benchmark step`."""

    size: Annotated[Size | None, Parameter(show_default="initial_training on a GPU, else tiny")] = None
    """Network and examples."""
    residues: Annotated[Positive | None, Parameter(show_default="the stage's")] = None
    """Residues of the crop."""
    rows: Annotated[Positive | None, Parameter(show_default="the stage's")] = None
    """MSA rows."""
    checkpoint_policy: Annotated[CheckpointPolicy | None, Parameter(show_default="the stage's", alias="--keep")] = None
    """Checkpoint policy: what the backward pass recomputes."""
    num_recycles: Annotated[Literal[0, 1, 2, 3], Parameter(alias="--recycles")] = 0
    """Recycling iterations without gradients before the last one."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PassOptions:
    """Options of the benchmarks that count the launches of a forward or backward pass instead of timing it."""

    preset: Model = "model_1"
    """Model that sets the numbers of channels and heads."""
    residues: Positive = 256
    """Number of residues."""
    rows: Positive = 128
    """MSA rows."""
    extra_rows: Positive = 1024
    """Extra MSA rows."""
    only: Annotated[str, Parameter(metavar="WORDS", show_default="all")] = ""
    """Take only parts whose name contains this text."""
    json: File | None = None
    """Also write the table to this file."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class KernelsOptions(PassOptions):
    """Options of `helixfold benchmark kernels`."""

    static: Annotated[bool, Parameter(negative=())] = False
    """Compile only; nothing is run, so no GPU is needed."""
    arch: tuple[Arch, ...] = ("sm_90",)
    """Architectures to compile for."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Precision of streams and parameters."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LaunchesOptions(PassOptions):
    """Options of `helixfold benchmark launches`."""

    gpu: Annotated[str, Parameter(alias="--card", choices=GPUS)] = "h200"
    """GPU to count for; this machine need not have it."""
    names: Annotated[bool, Parameter(negative=())] = False
    """Also list the launches by name."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Computation:
    """The computation that `helixfold benchmark memory` measures, without the number of residues and the executor."""

    part: MemoryPart = "prediction"
    """The part of the network to measure, or a design step."""
    preset: Model = "model_1_ptm"
    """Model to measure."""
    blocks: Annotated[Positive | None, Parameter(show_default="all")] = None
    """Number of blocks in each stack. It does not change the memory of a prediction."""
    rows: Positive = 128
    """MSA rows, not counting templates."""
    extra_rows: Positive = 1024
    """Extra MSA rows."""
    templates: Annotated[int, reads(lambda word: 0 if word == "0" else positive(word), "N")] = 1
    """Number of templates."""
    ensemble: Positive = 1
    """MSA samples averaged in each recycling iteration."""
    recycling_iterations: Annotated[Positive, Parameter(alias="--passes")] = 2
    """Number of recycling iterations; a design has gradients through all of them."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MemoryBenchmarkOptions(Computation):
    """Options of `helixfold benchmark memory`."""

    residues: Annotated[tuple[Positive, ...], Parameter(metavar="N...")] = (512, 1024, 2048)
    """Numbers of residues."""
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16")
    """Precisions to measure in."""
    executors: tuple[MeasuredExecutor, ...] = ("slabs", "spilled")
    """Executors to measure. plain: whole, with PyTorch's own operators."""
    ranks: Annotated[tuple[Positive, ...], Parameter(metavar="N...")] = (1,)
    """Numbers of processes that predict one target together."""
    device: Device = "cpu"
    """auto, cpu, cuda or cuda:N."""
    spill_directory: Annotated[
        Directory, Parameter(alias="--spill", show_default="the directory for temporary files")
    ] = Path(tempfile.gettempdir())
    """Directory for spilled tensors."""
    memory_limit: Annotated[Number | None, Parameter(metavar="GIB", show_default="none")] = None
    """Memory limit of the process; a measurement that needs more fails."""
    json: File | None = None
    """Also write the measurements to this file."""
    plot: File | None = None
    """Draw peaks by residues as a PNG image."""
    include: Annotated[tuple[File, ...], Parameter(metavar="FILE...", alias="--also")] = ()
    """JSON files of earlier runs to include in the plot."""


@Parameter(name="*", group=WHAT)
@dataclass(frozen=True, kw_only=True)
class PrecisionOptions:
    """Options of `helixfold benchmark precision`."""

    targets: Annotated[tuple[Path, ...], Parameter(metavar="FASTA|A3M...", show_default="the packaged example")] = (
        EXAMPLE,
    )
    """Sequences or alignments to predict."""
    weights: Annotated[Path | None, Parameter(show_default="the demonstration model")] = None
    """Parameter file of the model."""
    models: Annotated[tuple[str, ...], Parameter(metavar="MODEL")] = ("small",)
    """Model to measure, as for predict."""
    num_recycles: Annotated[Positive | None, Parameter(show_default="the model's")] = None
    """Recycling iterations after the first one."""
    max_residues: Positive = 2048
    """Maximum number of residues; longer targets are left out."""
    dtypes: tuple[ShortDtype, ...] = ("bfloat16",)
    """Precisions to compare with float32."""
    by_part: bool = False
    """Also compute one part of the network at a time in these precisions, and the rest in float32."""
    device: Device = "cpu"
    """auto, cpu, cuda or cuda:N."""
    json: File | None = None
    """Also write the numbers of every target to this file."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Options of `helixfold benchmark loader`."""

    store: Directory
    """Feature store made by `helixfold features`."""
    structures: Directory | None = None
    """Structure files of the store, to compare with."""
    alignments: Directory | None = None
    """Alignments of the store."""
    workers: Integer = 2
    """Loader processes."""
    crop: Integer = 256
    """Residues of an example."""
    steps: Integer = 60
    """Steps per measurement."""
    repeats: Integer = 5
    """Number of measurements; the median is reported."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AblationOptions:
    """Options of `helixfold benchmark ablation`."""

    preset: Model = "tiny"
    """Model to measure."""
    blocks: Annotated[Positive | None, Parameter(show_default="the model's")] = None
    """Number of Evoformer blocks; the extra-MSA stack then has one block."""
    stage: Literal["initial", "finetuning"] = "initial"
    """Stage of AlphaFold's training, for the losses and default sizes."""
    crop: Annotated[Positive | None, Parameter(show_default="the stage's, 64 for tiny")] = None
    """Number of residues."""
    rows: Annotated[Positive | None, Parameter(show_default="the stage's, at most the model's")] = None
    """MSA rows, not counting templates."""
    extra_rows: Annotated[Positive | None, Parameter(show_default="the stage's, at most the model's")] = None
    """Extra MSA rows."""
    num_recycles: Annotated[Literal[0, 1, 2, 3], Parameter(alias="--recycles")] = 1
    """Recycling iterations without gradients before the last one."""
    parts: tuple[AblationPart, ...] = ("training", "prediction")
    """Parts to measure: a training step, a prediction."""
    dtype: Dtype = "bfloat16"
    """Precision. With float32, bfloat16 is not one of the techniques."""
    only: Annotated[str, Parameter(metavar="WORDS", show_default="all")] = ""
    """Measure only techniques whose name contains this text."""
    device: Device = "cpu"
    """auto, cpu, cuda or cuda:N."""
    threads: Annotated[Positive | None, Parameter(show_default="PyTorch's")] = None
    """CPU threads."""
    repeats: Positive = 3
    """Number of measurements; the median is reported."""
    json: File | None = None
    """Also write the measurements to this file."""
