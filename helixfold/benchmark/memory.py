"""Measure peak memory by executor for `helixfold benchmark memory`, next to the estimate and the minimum possible.

`PREDICTION`, `EVOFORMER` and `DESIGN` are the values of the option --part: what is measured.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from data_pipeline.io.errors import InputError
from helixfold.apps.design.memory import workload
from helixfold.apps.design.options import DesignDtype, DesignOptions
from helixfold.apps.design.task import hallucination
from helixfold.benchmark.block import evoformer
from helixfold.benchmark.measurement import PLAIN, held_memory, reason_of_failure, settle, write_json
from helixfold.benchmark.options import Computation, MemoryBenchmarkOptions, MemoryPart
from helixfold.execution import allocator
from helixfold.execution.available import available_memory, is_out_of_memory, limit_memory
from helixfold.execution.device import DTYPES, pick_device
from helixfold.execution.random_inputs import random_batch
from helixfold.execution.stages import peak_memory, reset_peak_memory, synchronize
from helixfold.model import confidence
from helixfold.model.config import ModelConfig, of_blocks
from helixfold.model.presets import Preset, preset
from helixfold.model.update import Executor, Stream
from helixfold.ops.device_properties import properties_of
from helixfold.ops.dispatch import forced
from helixfold.parallel.launch import on_ranks
from helixfold.parallel.mesh import Layout, Mesh, make_mesh
from helixfold.parallel.parallelize import mesh_executor
from helixfold.planning import executors as policy
from helixfold.planning.estimate import Device, Training, estimate
from helixfold.planning.passes import KEPT_BLOCKS, prediction_memory
from helixfold.planning.size import PassSize, floor, gib
from helixfold.weights.untrained import untrained_model

# Kinds of measurement: a whole prediction, only its Evoformer, or a step of a design.
PREDICTION: MemoryPart = "prediction"
EVOFORMER: MemoryPart = "evoformer"
DESIGN: MemoryPart = "design"
# Plain attention holds at most this number of float32 values per logit.
_PLAIN_VALUES_PER_LOGIT = 4
# Function that carries out the computation of a point with an executor.
Run = Callable[["Point", Executor], None]


@dataclass(frozen=True, kw_only=True)
class Point(Computation):
    """A point to measure: the computation, its size, and the executor.

    `blocks` is the number of blocks of each stack, or None for all. `executor` may also be "plain": whole, with
    PyTorch's own operators. `ranks` processes compute it together. A design is a hallucination, which has one MSA row
    and no template; gradients are computed through all of its iterations.
    """

    residues: int
    dtype: str
    executor: str
    device: str
    ranks: int = 1

    @property
    def config(self) -> ModelConfig:
        """The configuration of the network, with the number of blocks of the measurement."""
        model = preset(self.preset).model
        return of_blocks(model, self.blocks or model.evoformer.blocks)

    @property
    def network(self) -> Preset:
        """The preset of the network, with the number of blocks of the measurement."""
        return replace(preset(self.preset), model=self.config)

    @property
    def design_options(self) -> DesignOptions:
        """The options of a design whose step is measured."""
        dtype = cast(DesignDtype, self.dtype)  # Other dtypes raise `InputError`.
        return DesignOptions(num_recycles=self.recycling_iterations - 1, dtype=dtype)

    @property
    def design_step(self) -> Training:
        """The step of a design as a workload to estimate."""
        properties = properties_of(torch.device(self.device))
        return workload(hallucination(self.residues), self.network, self.design_options, properties)

    @property
    def size(self) -> PassSize:
        """The size of a forward pass for estimates; an Evoformer has no extra MSA, templates or ensemble."""
        if self.part == DESIGN:
            return self.design_step.size
        is_evoformer = self.part == EVOFORMER
        return PassSize(
            residues=self.residues,
            msa_rows=self.rows,
            extra_rows=0 if is_evoformer else self.extra_rows,
            templates=0 if is_evoformer else self.templates,
            dtype=DTYPES[self.dtype],
            ensemble=1 if is_evoformer else self.ensemble,
            ranks=self.ranks,
        )

    def floor(self) -> int:
        """Return the minimum memory in bytes: a rank's share of two pair tensors, the MSA and the extra MSA, if any."""
        return floor(self.config, self.size)

    def predicted(self) -> int | None:
        """Return the estimated peak memory of a rank in bytes; None for plain PyTorch, which has no estimate."""
        return None if self.executor == PLAIN else self._predicted(self.executor)

    def needs(self) -> int:
        """Return roughly the bytes that the measurement takes on each rank, to skip measurements that do not fit.

        Unlike `predicted`, it also has a value for plain PyTorch.
        """
        if self.executor != PLAIN:
            return self._predicted(self.executor)
        model, size = self.config, self.size
        rows = [model.evoformer.pair_heads * size.residues, model.evoformer.msa_heads * size.msa_rows]
        logits = max(*rows, model.extra_msa.msa_heads * size.extra_rows) * size.residues**2
        return self._predicted("whole") + _PLAIN_VALUES_PER_LOGIT * torch.float32.itemsize * logits

    def _predicted(self, executor: str) -> int:
        properties = properties_of(torch.device(self.device))
        if self.part == DESIGN:
            return estimate(self.design_step, Device(properties=properties, memory=0)).peak
        memory = prediction_memory(self.config, self.size, executor, properties)
        return memory.stages["Evoformer"] if self.part == EVOFORMER else memory.peak


@dataclass(frozen=True, kw_only=True)
class MemoryMeasurement:
    """Result of a measurement: memory in bytes and time in seconds, or the reason of a failure.

    `peak` is the memory beyond the loaded model, and `resident` all memory at the peak. With several ranks, the results
    are from the rank with the largest peak.
    """

    peak: int = 0
    resident: int = 0
    seconds: float = 0.0
    failure: str | None = None


def measure(point: Point, spill: Path, limit: int | None = None) -> MemoryMeasurement:
    """Measure a point in new processes.

    `spill` is the directory for spilled tensors. Each process may use `limit` bytes, by default the available memory. A
    process that runs out of memory or is killed gives a measurement with the failure.
    """
    threads = max(1, torch.get_num_threads() // point.ranks)
    try:
        return on_ranks(point.ranks, measure_in_process, point, spill, limit, device=point.device, threads=threads)
    except RuntimeError as error:
        return MemoryMeasurement(failure=f"{error}, or was killed, which the system does when memory runs out")


def measure_in_process(mesh: Mesh, point: Point, spill: Path, limit: int | None) -> MemoryMeasurement:
    """Measure a point in this process, as one of the ranks of a mesh; every rank must call this function.

    `spill` and `limit` are as in `measure`. All ranks return the measurement of the rank with the largest peak.
    """
    allocator.keep_few_kernels()
    torch.manual_seed(0)
    if mesh.size > 1:
        mesh = make_mesh(Layout(dap=mesh.size), mesh.device)
    measurement = _measure(mesh, point, spill, limit)
    by_rank = [MemoryMeasurement(**each) for each in mesh.all_gather(asdict(measurement))]
    return max(by_rank, key=lambda each: each.peak)


def _measure(mesh: Mesh, point: Point, spill: Path, limit: int | None) -> MemoryMeasurement:
    device, kind = mesh.device, "whole" if point.executor == PLAIN else point.executor

    def executor() -> Executor:
        return mesh_executor(mesh, policy.executor(kind, spill, device))

    with (
        allocator.keeping_freed_memory(KEPT_BLOCKS) if point.part == DESIGN else policy.memory_kept(kind, mesh.size),
        torch.no_grad(),
        forced("reference") if point.executor == PLAIN else nullcontext(),
    ):
        run = {PREDICTION: _prediction, EVOFORMER: _evoformer, DESIGN: _design}[point.part](point, device)
        # A small run comes first, so that memory that libraries allocate once, such as thread buffers, does not count.
        run(replace(point, residues=8), executor())
        settle()
        mesh.barrier()
        loaded = peak_memory(device)
        reset_peak_memory(device)
        start, began = held_memory(device), time.perf_counter()
        try:
            # On a CPU, a limit makes allocations fail that are too large; on a GPU they fail without one.
            left = available_memory(device) if limit is None else min(available_memory(device), max(0, limit - start))
            with limit_memory(left) if device.type == "cpu" else nullcontext():
                run(point, executor())
            synchronize(device)
        except (RuntimeError, MemoryError, OSError) as error:
            if mesh.size > 1:
                raise  # All ranks must end, because the others wait for this one.
            return MemoryMeasurement(failure="out of memory" if is_out_of_memory(error) else reason_of_failure(error))
        seconds, peak = time.perf_counter() - began, peak_memory(device)
        resident = max(loaded, peak)
        failure = f"took {gib(resident)} in total" if limit is not None and resident > limit else None
        return MemoryMeasurement(peak=peak - start, resident=resident, seconds=seconds, failure=failure)


def _prediction(point: Point, device: torch.device) -> Run:
    """Return a function that predicts like `predict`, with recycling and confidences, from random samples."""
    model = untrained_model(point.config, seed=0).requires_grad_(False).to(device)

    def run(point: Point, executor: Executor) -> None:
        sizes, dtype = (point.residues, point.rows, point.extra_rows, point.templates), DTYPES[point.dtype]
        draws = (
            [random_batch(*sizes, device, method=point.config.method) for _ in range(point.ensemble)]
            for _ in range(point.recycling_iterations)
        )
        previous = model.recycle(executor, itertools.islice(draws, point.recycling_iterations - 1), dtype)
        folded = model.fold(executor, next(draws), previous, dtype)
        del previous
        confidence.plddt(model.heads.lddt_logits(folded.structure))
        head = model.heads.aligned_error
        if head is not None:
            mask = torch.ones_like(folded.structure.mask[..., 0])
            confidence.aligned_error(executor, head, folded.representations.pair, mask)

    return run


def _evoformer(point: Point, device: torch.device) -> Run:
    """Return a function that runs only the Evoformer, on random streams."""
    config = point.config
    stack = evoformer(point.preset, config.evoformer.blocks, device)

    def run(point: Point, executor: Executor) -> None:
        kind, residues = DTYPES[point.dtype], point.residues

        def stream(rows: int, channels: int) -> Stream:
            def random_rows(_: slice, ones: Tensor) -> Tensor:
                return torch.randn(1, ones.shape[1], residues, channels, dtype=kind, device=device)

            return executor.map_rows(random_rows, torch.ones(1, rows, device=device))

        msa, pair = stream(point.rows, config.evoformer.c_m), stream(residues, config.c_z)
        stack(executor, msa, pair, *(torch.ones(1, rows, residues, device=device) for rows in (point.rows, residues)))

    return run


def _design(point: Point, device: torch.device) -> Run:
    """Return a function that runs the first step of a hallucination, like `helixfold design`."""
    # These modules are imported here, because they need packages that a rented GPU machine may not have.
    from helixfold.apps.design.designer import Designer  # noqa: PLC0415
    from helixfold.weights.find import ReadyModel  # noqa: PLC0415

    model = ReadyModel(preset=point.network, network=untrained_model(point.config, seed=0), digest="")

    def run(point: Point, _: Executor) -> None:
        designer = Designer(hallucination(point.residues), [model], point.design_options, device=device)
        with torch.enable_grad():
            designer.advance(designer.begin(0), 0)

    return run


_EXIT_CODE_OF_FAILURE = 1
_MIB = 2**20
# Number of lengths, from the shortest to the longest chain of a plot, for which memory is estimated.
_ESTIMATED_LENGTHS = 8
_TABLE_HEADER = (
    f"{'residues':>8} {'dtype':8} {'executor':8} {'ranks':>5} {'floor':>9} {'peak':>9} {'/ floor':>7} {'estimate':>9} "
    f"{'/ peak':>6} {'total':>9} {'seconds':>8}"
)


# A point with its measurement.
Reading = tuple[Point, MemoryMeasurement]


def _line(point: Point, measurement: MemoryMeasurement) -> str:
    start = f"{point.residues:8,} {point.dtype:8} {point.executor:8} {point.ranks:5} {point.floor() / _MIB:9,.1f}"
    if measurement.failure is not None:
        return f"{start} {measurement.failure}"
    estimated, ratio, predicted = "-", "-", point.predicted()
    if predicted is not None:
        estimated, ratio = f"{predicted / _MIB:,.1f}", f"{predicted / measurement.peak:.2f}"
    peak = f"{measurement.peak / _MIB:9,.1f} {measurement.peak / point.floor():7.2f}"
    total = f"{measurement.resident / _MIB:9,.1f} {measurement.seconds:8.1f}"
    return f"{start} {peak} {estimated:>9} {ratio:>6} {total}"


def run(options: MemoryBenchmarkOptions) -> int:
    """Measure and print peak memory. Return 0, or 1 if a measurement failed.

    Points that need more than the free memory are skipped, which is not a failure. With `--json` and `--plot`, the
    measurements are also written to files. Raise `InputError` if a file cannot be written or read, or if the options do
    not suit a design.
    """
    for path in (options.json, options.plot):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"{path} cannot be written: {path.parent} is not a directory")
    if options.part == DESIGN and ({*options.executors} - {"plain", "whole"} or {*options.ranks} != {1}):
        raise InputError("a design step is computed whole by one process; pass --executors whole and no --ranks")
    earlier = [reading for path in options.include for reading in _read(path)]
    limit = None if options.memory_limit is None else int(options.memory_limit * 2**30)
    points = _points(options)
    readings: list[Reading] = []
    print(f"{_title(points[0])}; MiB, beyond the loaded model\n{_TABLE_HEADER}", flush=True)
    for point in points:
        free = available_memory(torch.device(point.device))
        if point.ranks * point.needs() > free:
            line = f"skipped: needs about {gib(point.ranks * point.needs())}, but {gib(free)} are free"
            print(f"{point.residues:8,} {point.dtype:8} {point.executor:8} {point.ranks:5} {line}", flush=True)
            continue
        measurement = measure(point, options.spill_directory, limit)
        readings.append((point, measurement))
        print(_line(point, measurement), flush=True)
        rows = [
            asdict(each) | {"floor": each.floor(), "predicted": each.predicted()} | asdict(result)
            for each, result in readings
        ]
        facts = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        write_json(options.json, {**facts, "readings": rows})
    if options.plot is not None:
        options.plot.write_bytes(_plot(points[0], [*earlier, *readings]))
    return _EXIT_CODE_OF_FAILURE if any(measurement.failure is not None for _, measurement in readings) else 0


def _points(options: MemoryBenchmarkOptions) -> list[Point]:
    device = str(pick_device(options.device))
    common = {field.name: getattr(options, field.name) for field in fields(Point) if hasattr(options, field.name)}
    combinations = itertools.product(options.residues, options.dtypes, options.executors, options.ranks)
    return [
        Point(**common | {"residues": residues, "dtype": dtype, "executor": executor, "ranks": ranks, "device": device})
        for residues, dtype, executor, ranks in combinations
    ]


def _title(point: Point) -> str:
    """Describe the settings that all points of a run have in common."""
    blocks = "all blocks" if point.blocks is None else f"{point.blocks} block{'' if point.blocks == 1 else 's'}"
    if point.part == EVOFORMER:
        return f"Evoformer of {point.preset}, {blocks}, {point.rows} rows"
    iterations = f"{point.recycling_iterations} recycling iteration{'' if point.recycling_iterations == 1 else 's'}"
    if point.part == DESIGN:
        return f"step of a hallucination with {point.preset}, {blocks} of each stack, {iterations}"
    templates = f"{point.templates} template{'' if point.templates == 1 else 's'}"
    sizes = f"{point.rows} rows, {point.extra_rows:,} extra rows, {templates}"
    ensemble = f", ensemble of {point.ensemble}" if point.ensemble > 1 else ""
    return f"prediction with {point.preset}, {blocks} of each stack, {sizes}{ensemble}, {iterations}"


def _common(point: Point) -> Point:
    # Blocks are ignored for predictions, because their memory does not depend on the number of blocks.
    blocks = point.blocks if point.part == DESIGN else None
    return replace(point, residues=0, dtype="", executor="", blocks=blocks)


def _plot(like: Point, readings: Sequence[Reading]) -> bytes:
    """Plot all one-rank readings that differ from the point `like` only in residues, dtype, executor and blocks."""
    # matplotlib is imported here, because measurements without a plot do not need it.
    from helixfold.report.memory_plot import MemoryCurve, memory_plot  # noqa: PLC0415

    common = _common(replace(like, ranks=1))
    peaks = {point: result.peak for point, result in readings if _common(point) == common and result.failure is None}
    if not peaks:
        raise InputError("there is nothing to plot: no measurement succeeded")
    lengths = [point.residues for point in peaks]
    between = sorted({*lengths, *np.geomspace(min(lengths), max(lengths), _ESTIMATED_LENGTHS).astype(int).tolist()})
    curves, floors = [], {}
    for dtype, executor in dict.fromkeys((point.dtype, point.executor) for point in peaks):
        measured = {point: peak for point, peak in peaks.items() if (point.dtype, point.executor) == (dtype, executor)}
        every = [replace(next(iter(measured)), residues=residues) for residues in between]
        estimated = [point for point in every if point.predicted() is not None]
        floors[dtype] = {point.residues: point.floor() for point in every}
        curves.append(
            MemoryCurve(
                executor=executor,
                dtype=dtype,
                measured={point.residues: peak for point, peak in measured.items()},
                predicted={point.residues: point.predicted() or 0 for point in estimated},
            )
        )
    return memory_plot(curves, floors, _title(like))


def _read(path: Path) -> Iterator[Reading]:
    """Yield the readings in the JSON file of an earlier run. Raise `InputError` for another file."""
    try:
        for row in json.loads(path.read_text())["readings"]:
            row.setdefault("recycling_iterations", row.get("passes", 2))  # Version 0.2 wrote the key "passes".
            point, measurement = (
                {each.name: row[each.name] for each in fields(kind) if each.name in row}
                for kind in (Point, MemoryMeasurement)
            )
            yield Point(**point), MemoryMeasurement(**measurement)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not a JSON file of `helixfold benchmark memory`: {type(error).__name__}: {error}"
        ) from error
