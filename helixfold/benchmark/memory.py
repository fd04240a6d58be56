"""Measure peak memory for `helixfold benchmark memory`, by executor, beside the forecast and the least possible."""

import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch

from data_pipeline.errors import InputError
from helixfold.annotations import Parameter
from helixfold.benchmark.memory_points import DESIGN, EVOFORMER, MemoryMeasurement, Point, measure
from helixfold.benchmark.options import Device, Model
from helixfold.execution.available import available_memory
from helixfold.execution.device import pick_device
from helixfold.options import Directory, File, Number, Positive, positive, reads
from helixfold.planning.size import gib
from helixfold.predict.options import Dtype

_FAILED = 1
_MIB = 2**20
# Number of lengths from the shortest to the longest chain of a plot for which memory is predicted.
_PREDICTIONS = 8
_HEADER = (
    f"{'residues':>8} {'dtype':8} {'executor':8} {'ranks':>5} {'floor':>9} {'peak':>9} {'/ floor':>7} {'predicted':>9} "
    f"{'/ peak':>6} {'in all':>9} {'seconds':>8}"
)


Part = Literal["prediction", "evoformer", "design"]
MeasuredExecutor = Literal["plain", "whole", "slabs", "spilled"]
# A point with its measurement.
Reading = tuple[Point, MemoryMeasurement]


def _line(point: Point, found: MemoryMeasurement) -> str:
    start = f"{point.residues:8,} {point.dtype:8} {point.executor:8} {point.ranks:5} {point.floor() / _MIB:9,.1f}"
    if found.failure is not None:
        return f"{start} {found.failure}"
    guess, ratio, predicted = "-", "-", point.predicted()
    if predicted is not None:
        guess, ratio = f"{predicted / _MIB:,.1f}", f"{predicted / found.peak:.2f}"
    peak = f"{found.peak / _MIB:9,.1f} {found.peak / point.floor():7.2f}"
    return f"{start} {peak} {guess:>9} {ratio:>6} {found.resident / _MIB:9,.1f} {found.seconds:8.1f}"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MemoryBenchmarkOptions:
    """Options of `helixfold benchmark memory`."""

    part: Part = "prediction"
    """What to measure: a part of the network, or a design step."""
    preset: Model = "model_1_ptm"
    """Model to measure."""
    blocks: Annotated[Positive | None, Parameter(show_default="all")] = None
    """Blocks of each stack; the memory of a prediction does not depend on their number."""
    residues: Annotated[tuple[Positive, ...], Parameter(metavar="N...")] = (512, 1024, 2048)
    """Numbers of residues."""
    rows: Positive = 128
    """MSA rows, not counting templates."""
    extra_rows: Positive = 1024
    """Extra MSA rows."""
    templates: Annotated[int, reads(lambda word: 0 if word == "0" else positive(word), "N")] = 1
    """Number of templates."""
    ensemble: Positive = 1
    """MSA samples averaged in each recycling iteration."""
    passes: Positive = 2
    """Recycling iterations; a design has gradients through all of them."""
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16")
    """Precisions to measure in."""
    executors: tuple[MeasuredExecutor, ...] = ("slabs", "spilled")
    """Executors to measure. plain: whole, with PyTorch's own operators."""
    ranks: Annotated[tuple[Positive, ...], Parameter(metavar="N...")] = (1,)
    """Numbers of processes that predict one target together."""
    device: Device = "cpu"
    """auto, cpu, cuda or cuda:N."""
    spill: Directory = Path(tempfile.gettempdir())
    """Directory for spilled tensors."""
    memory_limit: Annotated[Number | None, Parameter(metavar="GIB", show_default="none")] = None
    """Memory limit of the process; a measurement that needs more fails."""
    json: File | None = None
    """Also write the measurements to this file."""
    plot: File | None = None
    """Draw peaks by residues as a PNG image."""
    also: Annotated[tuple[File, ...], Parameter(metavar="FILE...")] = ()
    """JSON files of earlier runs to include in the plot."""


_USUAL = MemoryBenchmarkOptions()


def run(options: MemoryBenchmarkOptions = _USUAL) -> int:
    """Measure and print peak memory, and return 0, or 1 if a reading failed.

    Raise `InputError` if a file cannot be written or read.
    """
    for path in (options.json, options.plot):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"{path} cannot be written: {path.parent} is no directory")
    if options.part == DESIGN and ({*options.executors} - {"plain", "whole"} or {*options.ranks} != {1}):
        raise InputError("a step of a design is computed whole by one process: give --executors whole, and no --ranks")
    earlier = [reading for path in options.also for reading in _read(path)]
    limit = None if options.memory_limit is None else int(options.memory_limit * 2**30)
    points = _points(options)
    readings: list[Reading] = []
    print(f"{_title(points[0])}; MiB, beyond the loaded model\n{_HEADER}", flush=True)
    for point in points:
        free = available_memory(torch.device(point.device))
        if point.ranks * point.needs() > free:
            line = f"skipped: needs about {gib(point.ranks * point.needs())}, there are {gib(free)}"
            print(f"{point.residues:8,} {point.dtype:8} {point.executor:8} {point.ranks:5} {line}", flush=True)
            continue
        found = measure(point, options.spill, limit)
        readings.append((point, found))
        print(_line(point, found), flush=True)
        if options.json is not None:
            facts = {"torch": torch.__version__, "threads": torch.get_num_threads()}
            rows = [
                asdict(point) | {"floor": point.floor(), "predicted": point.predicted()} | asdict(found)
                for point, found in readings
            ]
            options.json.write_text(json.dumps({**facts, "readings": rows}, indent=1) + "\n")
    if options.plot is not None:
        options.plot.write_bytes(_drawn(points[0], [*earlier, *readings]))
    return _FAILED if any(found.failure is not None for _, found in readings) else 0


def _points(options: MemoryBenchmarkOptions) -> list[Point]:
    device = str(pick_device(options.device))
    given = {field.name: getattr(options, field.name) for field in fields(Point) if hasattr(options, field.name)}
    ways = itertools.product(options.residues, options.dtypes, options.executors, options.ranks)
    return [
        Point(**given | {"residues": residues, "dtype": dtype, "executor": executor, "ranks": ranks, "device": device})
        for residues, dtype, executor, ranks in ways
    ]


def _title(point: Point) -> str:
    """Return the settings that all points of a run have in common."""
    blocks = "all blocks" if point.blocks is None else f"{point.blocks} block{'' if point.blocks == 1 else 's'}"
    if point.part == EVOFORMER:
        return f"Evoformer of {point.preset}, {blocks}, {point.rows} rows"
    passes = f"{point.passes} pass{'' if point.passes == 1 else 'es'}"
    if point.part == DESIGN:
        return f"step of a hallucination with {point.preset}, {blocks} of each stack, {passes}"
    templates = f"{point.templates} template{'' if point.templates == 1 else 's'}"
    sizes = f"{point.rows} rows, {point.extra_rows:,} extra rows, {templates}"
    ensemble = f", ensemble of {point.ensemble}" if point.ensemble > 1 else ""
    return f"prediction with {point.preset}, {blocks} of each stack, {sizes}{ensemble}, {passes}"


def _common(point: Point) -> Point:
    # The memory of a prediction does not depend on the number of blocks.
    blocks = point.blocks if point.part == DESIGN else None
    return replace(point, residues=0, dtype="", executor="", blocks=blocks)


def _drawn(like: Point, readings: Sequence[Reading]) -> bytes:
    """Return a plot of all one-rank readings that differ from a point only in residues, dtype, executor and blocks."""
    # Not imported where memory is only measured.
    from helixfold.report.memory_plot import MemoryCurve, memory_plot  # noqa: PLC0415

    common = _common(replace(like, ranks=1))
    shown = {point: found.peak for point, found in readings if _common(point) == common and found.failure is None}
    if not shown:
        raise InputError("there is nothing to draw: no point was measured")
    lengths = [point.residues for point in shown]
    between = sorted({*lengths, *np.geomspace(min(lengths), max(lengths), _PREDICTIONS).astype(int).tolist()})
    curves, floors = [], {}
    for dtype, executor in dict.fromkeys((point.dtype, point.executor) for point in shown):
        own = {point: peak for point, peak in shown.items() if (point.dtype, point.executor) == (dtype, executor)}
        every = [replace(next(iter(own)), residues=residues) for residues in between]
        known = [point for point in every if point.predicted() is not None]
        floors[dtype] = {point.residues: point.floor() for point in every}
        curves.append(
            MemoryCurve(
                executor=executor,
                dtype=dtype,
                measured={point.residues: peak for point, peak in own.items()},
                predicted={point.residues: point.predicted() or 0 for point in known},
            )
        )
    return memory_plot(curves, floors, _title(like))


def _read(path: Path) -> Iterator[Reading]:
    """Yield the readings in the JSON file of an earlier run. Raise `InputError` if it is no such file."""
    try:
        for row in json.loads(path.read_text())["readings"]:
            point, found = (
                {each.name: row[each.name] for each in fields(kind) if each.name in row}
                for kind in (Point, MemoryMeasurement)
            )
            yield Point(**point), MemoryMeasurement(**found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is no JSON of `helixfold benchmark memory`: {type(error).__name__}: {error}"
        ) from error
