"""Plan a training: estimate the time per step and the days of all stages on some hardware, next to published runs."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean

import torch

from data_pipeline.io.errors import InputError
from data_pipeline.training_sets.examples import ComplexDataset, TrainingDataset
from data_pipeline.training_sets.store import FeatureStore
from helixfold.execution.recompute import RecomputeConfig
from helixfold.model.presets import with_parallel_blocks
from helixfold.ops.device_properties import properties_of
from helixfold.parallel.launch import on_ranks
from helixfold.planning.estimate import Seconds, Training, TrainingEstimate
from helixfold.planning.layouts import axial_summary, best, measure_machine, predict, predictions, table
from helixfold.planning.machines import MACHINES, PUBLISHED, Machine
from helixfold.planning.size import PassSize, dtype_name, gib
from helixfold.report.page import counted
from helixfold.training.config import TrainingConfig
from helixfold.training.estimate import workload
from helixfold.training.options import PlanOptions
from helixfold.training.presets import initial_training, training_preset

SECONDS_A_DAY = 86_400
# Samples of initial training, of fine-tuning and of one step (AlphaFold 2, Suppl. Table 4). The published times below
# are for these numbers.
INITIAL_SAMPLES, FINETUNING_SAMPLES, BATCH_SIZE = 10_000_000, 1_500_000, 128


def steps_for(samples: int, batch_size: int) -> int:
    """Return the number of steps of `batch_size` samples for this many samples, rounded up."""
    return math.ceil(samples / batch_size)


# Program, hardware, and days of initial training and fine-tuning together (HelixFold, arXiv 2207.05477). The second run
# used more hardware than the others.
PUBLISHED_TRAININGS = (
    ("HelixFold", "128 A100", 7.548),
    ("HelixFold, hybrid parallelism", "256, then 512 A100", 5.295),
    ("AlphaFold 2", "128 TPUv3", 10.961),
    ("OpenFold", "128 A100", 10.849),
)


HERE = "here"  # word for this machine in `--hardware`
_MAX_RANKS = 1_000_000


@dataclass(frozen=True)
class Hardware:
    """Devices of a kind in `MACHINES`, or this machine ("here"), and the number of ranks in each stage of a training.

    `machine` is the kind or "here". The last number of ranks applies to all further stages.
    """

    machine: str
    ranks: tuple[int, ...]

    @classmethod
    def parse(cls, word: str) -> "Hardware":
        """Parse a100x128, a100x256+512 (for two stages), here or herex2. Raise `InputError` for anything else."""
        match = re.fullmatch(r"([a-z0-9-]+?)(?:x([0-9]{1,7}(?:\+[0-9]{1,7})*))?", word.lower())
        names = (*MACHINES, HERE)
        if match is None or match[1] not in names or (match[2] is None and match[1] != HERE):
            raise InputError(
                f"--hardware must be a kind of device ({', '.join(names)}) and the number of them, such as a100x128, "
                f"or a100x256+512 for two stages, got {word!r}"
            )
        ranks = tuple(map(int, (match[2] or "1").split("+")))
        if not all(1 <= count <= _MAX_RANKS for count in ranks):
            raise InputError(f"--hardware must have from 1 to {_MAX_RANKS:,} devices, got {word!r}")
        return cls(match[1], ranks)

    def ranks_of(self, stage: int) -> int:
        """Return the number of ranks of a stage; stages count from 0."""
        return self.ranks[min(stage, len(self.ranks) - 1)]

    def __str__(self) -> str:
        return f"{self.machine}x{'+'.join(map(str, self.ranks))}"


# Number of samples of a stage by preset, unless the user sets it or the number of steps.
_DEFAULT_SAMPLES = {"initial_training": INITIAL_SAMPLES, "finetuning": FINETUNING_SAMPLES}
# On this machine, all ranks of the run are measured at once, so that they share its processors as in the run. If there
# are more than `_MAX_MEASURED_RANKS`, `_PROBED_RANKS` ranks show how long a forward pass and a message take.
_MAX_MEASURED_RANKS, _PROBED_RANKS = 8, 2
# Number of examples that are drawn from a training set to compute the mean size.
_NUM_DRAWN_EXAMPLES = 32


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage of a training: its name, settings and number of samples.

    `name` is the name of the training preset. Samples count as often as they are seen.
    """

    name: str
    config: TrainingConfig
    samples: int

    @property
    def steps(self) -> int:
        """The number of steps."""
        return steps_for(self.samples, self.config.batch_size)


@dataclass(frozen=True, kw_only=True)
class StageTime:
    """Time of a stage on `ranks` ranks; `prediction` is None if the user passed the time per step.

    `step_seconds` is the mean time of a step.
    """

    stage: Stage
    ranks: int
    step_seconds: float
    prediction: TrainingEstimate | None = None

    @property
    def seconds(self) -> float:
        """The time of all steps in seconds, without start-up, evaluations and checkpoints."""
        return self.stage.steps * self.step_seconds


def stages_of(options: PlanOptions) -> list[Stage]:
    """Return the stages of a plan, one for each preset.

    By default, AlphaFold 2's stages have its published numbers of samples, and other stages the samples of all steps of
    their preset. Raise `InputError` if samples or times per step are passed, but not one for each stage, or if a time
    is not above 0.
    """
    for name, values in (("--samples", options.samples), ("--step-seconds", options.step_seconds)):
        if values and len(values) != len(options.preset):
            numbers = counted(len(values), "number")
            stages_text = f"{counted(len(options.preset), 'stage')} ({', '.join(options.preset)})"
            raise InputError(f"{name} has {numbers} for {stages_text}; pass one for each")
    if not all(0 < seconds < float("inf") for seconds in options.step_seconds):
        raise InputError("--step-seconds must be numbers of seconds greater than 0")
    stages = []
    for index, name in enumerate(options.preset):
        config = training_preset(name).with_settings(options.settings)
        if options.parallel_blocks:
            config = replace(config, model=with_parallel_blocks(config.model))
        samples = config.steps * config.batch_size
        if options.samples:
            samples = options.samples[index]
        elif name in _DEFAULT_SAMPLES and not any(setting.startswith("steps=") for setting in options.settings):
            samples = _DEFAULT_SAMPLES[name]
        stages.append(Stage(name=name, config=config, samples=samples))
    return stages


def plan_lines(options: PlanOptions) -> Iterator[str]:
    """Yield the lines of `helixfold plan`: the times of all stages on each hardware, then published trainings.

    Raise `InputError` for unknown hardware, if no layout fits, or if this machine cannot be measured.
    """
    stages, all_hardware = stages_of(options), [Hardware.parse(word) for word in options.hardware]
    if options.training_set is not None and any(hardware.machine != HERE for hardware in all_hardware):
        raise InputError("--training-set measures this machine; combine it only with --hardware here or herexN")
    store = None if options.training_set is None else FeatureStore.open(options.training_set)
    for hardware in all_hardware:
        times = []
        for index, stage in enumerate(stages):
            ranks = hardware.ranks_of(index)
            if options.step_seconds:
                times.append(StageTime(stage=stage, ranks=ranks, step_seconds=options.step_seconds[index]))
                continue
            if hardware.machine == HERE:
                yield f"measuring {ranks} {'rank' if ranks == 1 else 'ranks'} of {stage.name} on this machine ..."
            work, machine, size = _work(stage.config, ranks, hardware.machine, store)
            estimates = predictions(work, ranks, machine)
            fastest = best(estimates)
            times.append(StageTime(stage=stage, ranks=ranks, step_seconds=fastest.seconds.total, prediction=fastest))
            yield _stage_line(stage, work, machine, size)
            if hardware.machine == HERE and options.training_set is None and not stage.config.example.fixed_shapes:
                yield from _range_lines(times[-1], ranks)
            if options.layouts:
                yield from table(estimates, fastest.work.layout)
                if ranks > 1:
                    yield axial_summary(estimates)
        yield ""
        yield from _times_table(hardware, times)
        yield ""
    if not options.step_seconds and any(hardware.machine != HERE for hardware in all_hardware):
        yield "calculated, not measured: rates are from data sheets, scaled to the share that NVIDIA's program reached"
        yield "on H100 in MLPerf HPC v3.0"
    yield from _published_table()


def _work(
    config: TrainingConfig, ranks: int, machine: str, store: FeatureStore | None
) -> tuple[Training, Machine, PassSize]:
    """Return the workload of a step with the largest examples, the machine, and the example size that times are for."""
    if machine != HERE:
        # The published rates are for this dtype.
        work = workload(replace(config, dtype="auto"), MACHINES[machine].properties)
        return work, MACHINES[machine], work.size
    work = workload(config, properties_of(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
    size = work.size
    if store is not None and not config.example.fixed_shapes:
        size = _mean_size(size, config, store)
    # Memory is estimated for the largest examples, and time for average ones.
    return work, _measure(replace(work, size=size), ranks), size


def _mean_size(size: PassSize, config: TrainingConfig, store: FeatureStore) -> PassSize:
    """Return the mean size of a training set's examples, rounded up.

    Lengths are averaged as a root mean square, because the work grows with the square of the length.
    """
    dataset_of = ComplexDataset if config.model.method == "multimer" else TrainingDataset
    example = replace(config.example, max_passes=1)
    dataset = dataset_of(store=store, config=example, selection=config.selection, seed=config.seed)
    samples = [dataset.draw(step).examples[0].samples[0] for step in range(_NUM_DRAWN_EXAMPLES)]
    return replace(
        size,
        residues=math.ceil(math.sqrt(fmean(len(each.aatype) ** 2 for each in samples))),
        msa_rows=math.ceil(fmean(len(each.msa_feat) for each in samples)),
        extra_rows=math.ceil(fmean(len(each.extra_msa) for each in samples)),
        templates=math.ceil(fmean(len(each.template_mask) for each in samples)),
    )


def _measure(work: Training, ranks: int) -> Machine:
    """Measure the rates of this machine's devices and links."""
    measured_ranks = ranks if ranks <= _MAX_MEASURED_RANKS else _PROBED_RANKS
    if torch.cuda.is_available():
        if ranks > 1 and torch.cuda.device_count() < _PROBED_RANKS:
            raise InputError(
                f"measuring links between GPUs needs two GPUs, got one; pass --hardware h200x{ranks} for an estimate"
            )
        measured_ranks = min(measured_ranks, torch.cuda.device_count())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = max(1, torch.get_num_threads() // measured_ranks)
    return on_ranks(measured_ranks, measure_machine, work, ranks, device=device, threads=threads)


def _stage_line(stage: Stage, work: Training, machine: Machine, size: PassSize) -> str:
    """Return a line about a stage: examples, precision and devices that its time is for."""
    return (
        f"{stage.name}: {work.batch_size} samples per step, {size.residues} residues, {size.msa_rows} + "
        f"{size.templates} + {size.extra_rows:,} rows, {dtype_name(size.dtype)}, {work.recycling_iterations:g} "
        f"recycling iterations before the trained one; {machine.name}, {gib(machine.memory)} per rank for tensors"
    )


def _range_lines(largest: StageTime, ranks: int) -> Iterator[str]:
    """Yield the range of a stage's time, from short examples, which are measured here, to the largest examples."""
    stage, prediction = largest.stage, largest.prediction
    assert prediction is not None
    size = prediction.work.size
    short = replace(
        size,
        residues=math.ceil(size.residues / 2),
        msa_rows=math.ceil(size.msa_rows / 2),
        extra_rows=math.ceil(size.extra_rows / 2),
        templates=0,
    )
    machine = _measure(replace(prediction.work, size=short), ranks)
    seconds = min(predict(prediction.work, prediction.work.layout, machine).seconds.total, largest.step_seconds)
    yield (
        f"expect {seconds:.2f} to {largest.step_seconds:.2f} s per step, "
        f"{duration(stage.steps * seconds)} to {duration(largest.seconds)}: from examples of {short.residues} residues "
        f"with half the rows and no templates, to the largest; pass --training-set DIR to measure your examples"
    )


def _times_table(hardware: Hardware, times: Sequence[StageTime]) -> Iterator[str]:
    """Yield a line for each stage, with the parts of a step's time, and one for all stages."""
    parts = [each.name for each in fields(Seconds)]
    headings = "".join(f"{part:>11}" for part in parts)
    yield f"{hardware!s:22}{'samples':>12}{'steps':>9}{'ranks':>7}  {'layout':22}{'s a step':>10}{headings}{'time':>14}"
    for each in times:
        prediction = each.prediction
        cells = ["-" if prediction is None else f"{getattr(prediction.seconds, part):.3f}" for part in parts]
        yield (
            f"{each.stage.name:22}{each.stage.samples:12,}{each.stage.steps:9,}{each.ranks:7,}  "
            f"{'as stated' if prediction is None else str(prediction.work.layout):22}{each.step_seconds:10.3f}"
            f"{''.join(f'{cell:>11}' for cell in cells)}{duration(each.seconds):>14}"
        )
    if len(times) > 1:
        steps, seconds = sum(each.stage.steps for each in times), sum(each.seconds for each in times)
        yield (
            f"{'in all':22}{sum(each.stage.samples for each in times):12,}{steps:9,}{'':7}  {'mean':22}"
            f"{seconds / steps:10.3f}{'':{11 * len(parts)}}{duration(seconds):>14}"
        )
    yield "start-up, evaluations and checkpoints come on top"


def _published_table() -> Iterator[str]:
    """Yield the lines of a table of published trainings: hardware, mean time of a step, and duration."""
    yield ""
    yield f"{'published trainings':34}{'hardware':22}{'mean s a step':>15}{'time':>14}"
    steps = sum(steps_for(samples, BATCH_SIZE) for samples in (INITIAL_SAMPLES, FINETUNING_SAMPLES))
    for program, hardware, days in PUBLISHED_TRAININGS:
        seconds = days * SECONDS_A_DAY
        yield f"{program:34}{hardware:22}{seconds / steps:15.3f}{duration(seconds):>14}"
    yield f"of {INITIAL_SAMPLES:,} samples and {FINETUNING_SAMPLES:,} of fine-tuning, 128 a step"


def duration(seconds: float) -> str:
    """Format a time in days or, if it is shorter than a day, in hours, minutes or seconds."""
    for unit, length, digits in (("days", SECONDS_A_DAY, 3), ("h", 3600, 2), ("min", 60, 1)):
        if seconds >= length:
            return f"{seconds / length:,.{digits}f} {unit}"
    return f"{seconds:.1f} s"


def published_step_lines() -> Iterator[str]:
    """Yield a table that compares the step times of published runs with the estimated ones.

    Times are in seconds. The last column has the estimate as a multiple of the published time.
    """
    yield f"{'':34}{'layout':24}{'published, s':>14}{'predicted, s':>14}{'of it':>8}"
    for source, layout, keep, published in PUBLISHED:
        recompute = RecomputeConfig.everywhere(keep)
        config: TrainingConfig = replace(
            initial_training(), dtype="bfloat16", batch_size=layout.dp, recompute=recompute
        )
        seconds = predict(workload(config), layout, MACHINES["h100"]).seconds.total
        yield f"{source:34}{layout!s:24}{published:14.3f}{seconds:14.3f}{seconds / published:8.2f}"
    yield "The share of an H100's rates that is reached was fitted to the first run; the other times are predicted."
