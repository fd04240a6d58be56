"""`helixfold benchmark memory`: peak memory of predictions by executor, beside the floor and what is predicted."""

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import torch

from data_pipeline.errors import InputError
from helixfold.benchmark.memory_points import EVOFORMER, PARTS, PREDICTION, Found, Point, measure
from helixfold.benchmark.timing import PLAIN
from helixfold.execution.available import available_memory
from helixfold.execution.device import pick_device
from helixfold.inference import DTYPES
from helixfold.planning.prediction import EXECUTORS
from helixfold.planning.size import gib
from helixfold.predict.sizes import positive
from helixfold.presets import PRESETS
from helixfold.report.memory_plot import MemoryCurve, memory_plot

_FAILED = 1
_MIB = 2**20
# Between the shortest and the longest chain of a plot.
_PREDICTIONS = 8
_HEADER = (
    f"{'residues':>8} {'dtype':8} {'executor':8} {'ranks':>5} {'floor':>9} {'peak':>9} {'/ floor':>7} {'predicted':>9} "
    f"{'/ peak':>6} {'in all':>9} {'seconds':>8}"
)


# A point with what was found there.
Reading = tuple[Point, Found]


def _line(point: Point, found: Found) -> str:
    start = f"{point.residues:8,} {point.dtype:8} {point.executor:8} {point.ranks:5} {point.floor() / _MIB:9,.1f}"
    if found.failure is not None:
        return f"{start} {found.failure}"
    guess, ratio, predicted = "-", "-", point.predicted()
    if predicted is not None:
        guess, ratio = f"{predicted / _MIB:,.1f}", f"{predicted / found.peak:.2f}"
    peak = f"{found.peak / _MIB:9,.1f} {found.peak / point.floor():7.2f}"
    return f"{start} {peak} {guess:>9} {ratio:>6} {found.resident / _MIB:9,.1f} {found.seconds:8.1f}"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", choices=PARTS, default=PREDICTION, help="of the network")
    parser.add_argument("--preset", choices=list(PRESETS), default="model_1_ptm")
    parser.add_argument(
        "--blocks", type=positive, metavar="N", help="of each stack, on which memory does not depend; default: all"
    )
    parser.add_argument("--residues", type=positive, nargs="+", default=[512, 1024, 2048], metavar="N")
    parser.add_argument("--rows", type=positive, default=128, metavar="N", help="of the MSA without templates")
    parser.add_argument("--extra-rows", type=positive, default=1024, metavar="N", help="of the extra MSA")
    parser.add_argument("--templates", type=lambda word: 0 if word == "0" else positive(word), default=1, metavar="N")
    parser.add_argument("--ensemble", type=positive, default=1, metavar="N", help="draws for each pass")
    parser.add_argument("--passes", type=positive, default=2, metavar="N", help="with what the one before leaves")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument(
        "--executors",
        nargs="+",
        choices=[PLAIN, *EXECUTORS],
        default=["slabs", "spilled"],
        help="plain: everything whole, by PyTorch's own operators",
    )
    parser.add_argument(
        "--ranks", type=positive, nargs="+", default=[1], metavar="N", help="processes that carry it out together"
    )
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--spill", type=Path, default=Path(tempfile.gettempdir()), metavar="DIR", help="for what is spilled"
    )
    parser.add_argument(
        "--memory-limit", type=float, metavar="GIB", help="that the process may hold in all; more is a failure"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured there, too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw peaks by residues as a PNG image")
    parser.add_argument(
        "--also", type=Path, nargs="+", default=[], metavar="FILE", help="JSON of earlier runs to be drawn, too"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    for path in (options.json, options.plot):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"{path} cannot be written: {path.parent} is no directory")
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


def _points(options: argparse.Namespace) -> list[Point]:
    device = str(pick_device(options.device))
    given = {field.name: getattr(options, field.name) for field in fields(Point) if hasattr(options, field.name)}
    ways = itertools.product(options.residues, options.dtypes, options.executors, options.ranks)
    return [
        Point(**given | {"residues": residues, "dtype": dtype, "executor": executor, "ranks": ranks, "device": device})
        for residues, dtype, executor, ranks in ways
    ]


def _title(point: Point) -> str:
    """Return what all points of a run have in common."""
    blocks = "all blocks" if point.blocks is None else f"{point.blocks} block{'' if point.blocks == 1 else 's'}"
    if point.part == EVOFORMER:
        return f"Evoformer of {point.preset}, {blocks}, {point.rows} rows"
    templates = f"{point.templates} template{'' if point.templates == 1 else 's'}"
    sizes = f"{point.rows} rows, {point.extra_rows:,} extra rows, {templates}"
    ensemble = f", ensemble of {point.ensemble}" if point.ensemble > 1 else ""
    passes = f"{point.passes} pass{'' if point.passes == 1 else 'es'}"
    return f"prediction with {point.preset}, {blocks} of each stack, {sizes}{ensemble}, {passes}"


def _common(point: Point) -> Point:
    # Memory does not depend on the number of blocks.
    return replace(point, residues=0, dtype="", executor="", blocks=None)


def _drawn(like: Point, readings: Sequence[Reading]) -> bytes:
    """Draw all readings on one rank that differ from a point only in residues, dtype and executor."""
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
    """Yield the readings of an earlier run."""
    try:
        for row in json.loads(path.read_text())["readings"]:
            point, found = (
                {each.name: row[each.name] for each in fields(kind) if each.name in row} for kind in (Point, Found)
            )
            yield Point(**point), Found(**found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is no JSON of `helixfold benchmark memory`: {type(error).__name__}: {error}"
        ) from error
