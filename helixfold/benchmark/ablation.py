"""Measure what each technique is worth for `helixfold benchmark ablation`, by switching off one at a time."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import torch

from data_pipeline.errors import InputError
from data_pipeline.processors import available_processors
from data_pipeline.transforms import training as examples
from helixfold.annotations import Parameter
from helixfold.benchmark.machine import measured_device
from helixfold.benchmark.options import Device, Model
from helixfold.benchmark.techniques.measure import Reading, measure
from helixfold.benchmark.techniques.setups import Setup, Technique, prediction_techniques, training_techniques
from helixfold.benchmark.techniques.training import Problem
from helixfold.config import ModelConfig
from helixfold.execution.device import pick_device
from helixfold.execution.dtypes import DTYPES
from helixfold.losses import config as losses
from helixfold.ops.card import card_of
from helixfold.options import File, Positive
from helixfold.parallel.launch import on_ranks
from helixfold.planning.size import dtype_name
from helixfold.predict.options import Dtype
from helixfold.presets import Preset, preset, with_parallel_blocks

Stage = Literal["initial", "finetuning"]
Part = Literal["training", "prediction"]
STAGES = {
    "initial": (examples.initial_training(), losses.initial_training()),
    "finetuning": (examples.finetuning(), losses.finetuning()),
}
_WRONG = 1
_MIB = 2**20
# A smaller difference of peaks is the allocator's.
_LEAST_GAIN = 1.02
_WORDS = {"time": "faster", "memory": "less memory"}
_HEADER = (
    f"{'':38} {'with, ms':>10} {'without':>10} {'faster':>8} {'(range)':>13}  {'with, MiB':>10} {'without':>10} "
    f"{'less':>6}  {'moved, GiB':>10} {'without':>8} {'sent, MiB':>9} {'without':>8}"
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AblationOptions:
    """Options of `helixfold benchmark ablation`."""

    preset: Model = "tiny"
    """Model to measure."""
    blocks: Annotated[Positive | None, Parameter(show_default="the model's")] = None
    """Blocks of the Evoformer; the extra-MSA stack then has one."""
    stage: Stage = "initial"
    """Stage of AlphaFold's training, for the losses and default sizes."""
    crop: Annotated[Positive | None, Parameter(show_default="the stage's, 64 for tiny")] = None
    """Number of residues."""
    rows: Annotated[Positive | None, Parameter(show_default="the stage's, at most the model's")] = None
    """MSA rows, not counting templates."""
    extra_rows: Annotated[Positive | None, Parameter(show_default="the stage's, at most the model's")] = None
    """Extra MSA rows."""
    recycles: Literal[0, 1, 2, 3] = 1
    """Recycling iterations without gradients before the last one."""
    parts: tuple[Part, ...] = ("training", "prediction")
    """Parts to measure: a training step, a prediction."""
    dtype: Dtype = "bfloat16"
    """Precision. With float32, bfloat16 is not one of the techniques."""
    ranks: Annotated[tuple[Positive, ...], Parameter(metavar="N...")] = (1,)
    """Numbers of processes. With more than one, parallelism is measured, with blocks in HelixFold's order."""
    only: Annotated[str, Parameter(metavar="WORDS", show_default="all")] = ""
    """Measure only techniques whose name contains this text."""
    device: Device = "cpu"
    """auto, cpu, cuda or cuda:N."""
    threads: Annotated[Positive | None, Parameter(show_default="PyTorch's")] = None
    """CPU threads, shared by the ranks."""
    repeats: Positive = 3
    """Number of measurements; the median is reported."""
    json: File | None = None
    """Also write the measurements to this file."""
    plot: File | None = None
    """Draw the gains as a PNG image."""


_USUAL = AblationOptions()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A technique with the readings with and without it, on a number of ranks."""

    technique: Technique
    ranks: int
    on: Reading
    off: Reading

    def ratios(self) -> list[float]:
        """Return how much longer a step takes without the technique, in each round."""
        return [off / on for on, off in zip(self.on.seconds, self.off.seconds, strict=True)]

    @property
    def faster(self) -> float:
        return statistics.median(self.ratios())

    @property
    def less_memory(self) -> float:
        return self.off.memory / max(self.on.memory, 1)

    @property
    def gains(self) -> bool:
        """Return whether the technique saves what it is claimed to save, in every round."""
        if self.technique.claim == "memory":
            return self.less_memory >= _LEAST_GAIN
        return min(self.ratios()) > 1

    @property
    def faults(self) -> list[str]:
        return [
            f"{name}: {fault}" for name, each in (("with", self.on), ("without", self.off)) for fault in each.faults
        ]

    def lines(self) -> Iterator[str]:
        """Yield the row of the table, and what is to be said of it."""
        on, off, ratios = self.on, self.off, self.ratios()
        spread = f"({min(ratios):.2f}-{max(ratios):.2f})"
        yield (
            f"{self.technique.name:38} {1e3 * statistics.median(on.seconds):10,.1f} "
            f"{1e3 * statistics.median(off.seconds):10,.1f} {self.faster:7.2f}x {spread:>13}  "
            f"{on.memory / _MIB:10,.1f} {off.memory / _MIB:10,.1f} {self.less_memory:5.2f}x  "
            f"{_gib(on.moved):>10} {_gib(off.moved):>8} {on.sent / _MIB:9,.1f} {off.sent / _MIB:8,.1f}"
        )
        if not self.gains:
            yield f"    not {_WORDS[self.technique.claim]} here: {self.technique.otherwise}"
        yield from (f"    WRONG, {fault}" for fault in self.faults)

    def row(self) -> dict[str, Any]:
        """Return the comparison as a dict for JSON."""
        return {
            "technique": self.technique.name,
            "part": "training" if self.technique.is_training else "prediction",
            "ranks": self.ranks,
            "claim": self.technique.claim,
            "gains": self.gains,
            "faults": self.faults,
            "with": _row(self.on),
            "without": _row(self.off),
        }


def run(options: AblationOptions = _USUAL) -> int:
    """Print what each technique saves, and return 0, or 1 if any result is wrong.

    Raise `InputError` if a file cannot be written, there are too few GPUs, or no technique has the name asked for.
    """
    for path in (options.json, options.plot):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"{path} cannot be written: {path.parent} is no directory")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = pick_device(options.device)
    _check_ranks(options.ranks, device)
    dtype, graphs = DTYPES[options.dtype], card_of(device).kind == "cuda"
    machine = measured_device(device, list(dict.fromkeys([torch.float32, dtype])), options.repeats)
    problem, name = _problem(options)
    print("\n".join(machine.lines()))
    print(f"\n{name}; medians of {options.repeats}, memory of a rank beside what the program itself takes")
    made: list[Comparison] = []
    for ranks in options.ranks:
        for part in options.parts:
            if part == "training":
                every = training_techniques(dtype, ranks, available_processors(), graphs=graphs)
            else:
                every = prediction_techniques(dtype, ranks, graphs=graphs)
            techniques = [each for each in every if options.only in each.name]
            if not techniques:
                continue
            print(f"\n{_heading(part, ranks, options.dtype)}\n{_HEADER}", flush=True)
            for comparison in comparisons(techniques, problem, ranks, options.repeats, str(device)):
                made.append(comparison)
                print("\n".join(comparison.lines()), flush=True)
    if not made:
        raise InputError(f"--only {options.only!r}: no technique has this in its name")
    if options.json is not None:
        rows = [each.row() for each in made]
        written = {"machine": machine.to_dict(), "name": name, "options": _plain(asdict(options)), "techniques": rows}
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    if options.plot is not None:
        # Not imported where nothing is drawn.
        from helixfold.report.ablation_plot import Gain, ablation_plot  # noqa: PLC0415

        gains = [
            Gain(
                panel=_heading("training" if each.technique.is_training else "prediction", each.ranks, options.dtype),
                name=each.technique.name,
                faster=each.faster,
                spread=(min(each.ratios()), max(each.ratios())),
                less_memory=each.less_memory,
            )
            for each in made
        ]
        options.plot.write_bytes(ablation_plot(gains, f"{name}\n{machine.name}"))
    return _WRONG if any(each.faults for each in made) else 0


def _check_ranks(ranks: Sequence[int], device: torch.device) -> None:
    """Raise `InputError` if so many ranks cannot have a GPU each."""
    most = max(ranks)
    if device.type != "cuda" or most == 1:
        return
    if device != torch.device("cuda"):
        raise InputError(f"each of {most} ranks takes a GPU of its own; give --device cuda instead of {device}")
    if most > torch.cuda.device_count():
        raise InputError(f"{most} ranks need a GPU each, and there are {torch.cuda.device_count()}; give fewer --ranks")


def comparisons(
    techniques: Sequence[Technique], problem: Problem, ranks: int, repeats: int, device: str
) -> list[Comparison]:
    """Measure all setups of these techniques on a number of ranks, and return a comparison for each technique."""
    setups = list(dict.fromkeys(setup for each in techniques for setup in (each.on, each.off)))
    if ranks > 1:
        problem = replace(problem, model=with_parallel_blocks(problem.model))
    threads = max(1, torch.get_num_threads() // ranks)
    readings: list[Reading] = on_ranks(ranks, measure, problem, setups, repeats, device=device, threads=threads)
    by_setup: Mapping[Setup, Reading] = dict(zip(setups, readings, strict=True))
    return [
        Comparison(technique=each, ranks=ranks, on=by_setup[each.on], off=by_setup[each.off]) for each in techniques
    ]


def _problem(options: AblationOptions) -> tuple[Problem, str]:
    """Return the problem that the options describe, and its description."""
    chosen, (example, loss) = preset(options.preset), STAGES[options.stage]
    sampling = chosen.sampling
    crop = options.crop or (64 if options.preset == "tiny" else example.crop_size)
    rows = options.rows or min(example.sampling.max_msa_clusters, sampling.max_msa_clusters)
    extra_rows = options.extra_rows or min(example.sampling.max_extra_msa, sampling.max_extra_msa)
    model = _model(chosen, options.blocks)
    templates = sampling.max_templates if model.template else 0
    blocks = "" if options.blocks is None else f" with {options.blocks} + 1 blocks"
    name = (
        f"{options.preset}{blocks}, {crop} residues, {rows} + {templates} rows, {extra_rows} extra rows, "
        f"{options.recycles} recycles, losses of {'initial training' if options.stage == 'initial' else 'fine-tuning'}"
    )
    problem = Problem(
        model=model,
        losses=loss,
        residues=crop,
        rows=rows,
        extra_rows=extra_rows,
        templates=templates,
        recycles=options.recycles,
    )
    return problem, name


def _model(chosen: Preset, blocks: int | None) -> ModelConfig:
    model = chosen.model
    if blocks is None:
        return model
    return replace(
        model, evoformer=replace(model.evoformer, blocks=blocks), extra_msa=replace(model.extra_msa, blocks=1)
    )


def _heading(part: Part, ranks: int, dtype: str) -> str:
    what = "a training step" if part == "training" else "a prediction"
    return f"{what}, {dtype}, {ranks} rank{'' if ranks == 1 else 's'}"


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**30:,.2f}"


def _row(reading: Reading) -> dict[str, Any]:
    setup = {name: str(value) for name, value in vars(reading.setup).items()}
    setup["dtype"] = dtype_name(reading.setup.dtype)
    setup["plain"] = " ".join(sorted(reading.setup.plain))
    return {"setup": setup} | {name: value for name, value in asdict(reading).items() if name != "setup"}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int | str | tuple | None) else str(value) for name, value in values.items()
    }
