"""Define the command `helixfold benchmark`, which measures speed and memory on this machine."""

from cyclopts import Group

from helixfold.benchmark.options import (
    AblationOptions,
    BlockOptions,
    CommonOptions,
    KernelsOptions,
    LaunchesOptions,
    LoaderOptions,
    MemoryBenchmarkOptions,
    ModelOptions,
    OpsOptions,
    PrecisionOptions,
    StepOptions,
)
from helixfold.cli.command import Command

_COMMON, _OPS, _BLOCK, _MODEL, _STEP = CommonOptions(), OpsOptions(), BlockOptions(), ModelOptions(), StepOptions()
_KERNELS, _LAUNCHES, _MEMORY = KernelsOptions(), LaunchesOptions(), MemoryBenchmarkOptions()
_PRECISION, _ABLATION = PrecisionOptions(), AblationOptions()
app = Command(
    name="benchmark",
    usage="helixfold benchmark BENCHMARK [options]\nexample: helixfold benchmark block",
    help="Measure speed and memory on this machine.",
    group_commands=Group.create_ordered("Benchmarks"),
)


@app.command(sort_key=0)
def ops(options: OpsOptions = _OPS, common: CommonOptions = _COMMON) -> None:
    """Time every operator, for each backend and installed peer."""
    from helixfold.benchmark import ops

    ops.run(options, common)


@app.command(sort_key=1)
def block(options: BlockOptions = _BLOCK, common: CommonOptions = _COMMON) -> None:
    """Time an Evoformer block: forward, and forward with backward."""
    from helixfold.benchmark import block

    block.run(options, common)


@app.command(sort_key=2)
def model(options: ModelOptions = _MODEL, common: CommonOptions = _COMMON) -> None:
    """Time one recycling iteration of the network, and of other programs."""
    from helixfold.benchmark import model

    model.run(options, common)


@app.command(sort_key=3)
def step(options: StepOptions = _STEP, common: CommonOptions = _COMMON) -> None:
    """Time a training step: forward, backward and optimizer."""
    from helixfold.benchmark import step

    step.run(options, common)


@app.command(sort_key=4)
def kernels(options: KernelsOptions = _KERNELS) -> None:
    """Compile the GPU kernels and list their registers and spills; needs no GPU."""
    from helixfold.benchmark import kernels

    kernels.run(options)


@app.command(sort_key=5)
def launches(options: LaunchesOptions = _LAUNCHES) -> None:
    """Count kernel launches of blocks, losses and a training step; needs no GPU."""
    from helixfold.benchmark import launches

    launches.run(options)


@app.command(sort_key=6)
def memory(options: MemoryBenchmarkOptions = _MEMORY) -> int:
    """Measure peak memory of predictions for each executor, and compare with the estimate."""
    from helixfold.benchmark import memory

    return memory.run(options)


@app.command(sort_key=7)
def precision(options: PrecisionOptions = _PRECISION) -> None:
    """Measure the error of bfloat16 predictions, for each executor."""
    from helixfold.benchmark import precision

    precision.run(options)


@app.command(sort_key=8, usage="helixfold benchmark loader --store DIR [options]")
def loader(options: LoaderOptions) -> None:
    """Measure training examples per second, from a store and from raw files."""
    from helixfold.benchmark import loader

    loader.run(options)


@app.command(sort_key=9)
def ablation(options: AblationOptions = _ABLATION) -> int:
    """Measure training and prediction with one technique switched off at a time."""
    from helixfold.benchmark import ablation

    return ablation.run(options)


# Names of the benchmarks, in the order of the help.
BENCHMARKS = [name for name in app if not name.startswith("-")]
