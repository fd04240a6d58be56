"""Measure the peak memory of a prediction, of an Evoformer alone, or of a design's step, in fresh processes."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from helixfold.batch import Batch
from helixfold.benchmark.block import evoformer
from helixfold.benchmark.timing import PLAIN, held_memory, settle
from helixfold.config import ModelConfig
from helixfold.design.memory import StepNeeds, step_needs
from helixfold.design.options import DesignOptions
from helixfold.design.task import hallucination
from helixfold.execution import allocator
from helixfold.execution.available import available_memory, is_out_of_memory, limit_memory
from helixfold.execution.dtypes import DTYPES
from helixfold.execution.random_inputs import random_batch
from helixfold.execution.stages import peak_memory, reset_peak_memory, synchronize
from helixfold.folding import recycle
from helixfold.model import confidence
from helixfold.model.outputs import Folded, Recycled
from helixfold.model.update import Executor, Stream
from helixfold.ops.card import card_of
from helixfold.ops.dispatch import forced
from helixfold.parallel.launch import on_ranks
from helixfold.parallel.layout import Layout
from helixfold.parallel.mesh import Mesh, make_mesh
from helixfold.parallel.parallelize import mesh_executor
from helixfold.planning import executors as policy
from helixfold.planning.prediction import forecast_prediction
from helixfold.planning.size import PassSize, floor, gib, of_blocks
from helixfold.planning.training import KEPT_BLOCKS
from helixfold.presets import Preset, preset
from helixfold.weights.untrained import untrained_model

PREDICTION, EVOFORMER, DESIGN = PARTS = ("prediction", "evoformer", "design")
# Plain attention holds at most so many float32 numbers for each of its logits.
_PLAIN_LOGITS = 4
_LINE_LENGTH = 200
Run = Callable[["Point", Executor], None]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A measurement to make: the computation, its size, and the executor.

    `blocks` is the number of blocks of each stack, or None for all. `ranks` processes compute it together. A design is
    a hallucination, which has one row and no template; gradients pass through all of its `passes`.
    """

    part: str
    preset: str
    blocks: int | None
    residues: int
    rows: int
    extra_rows: int
    templates: int
    ensemble: int
    passes: int
    dtype: str
    executor: str
    device: str
    ranks: int = 1

    @property
    def config(self) -> ModelConfig:
        """Return the configuration of the network, with as many blocks as are run."""
        model = preset(self.preset).model
        return of_blocks(model, self.blocks or model.evoformer.blocks)

    @property
    def network(self) -> Preset:
        """Return the preset with as many blocks as are run."""
        return replace(preset(self.preset), model=self.config)

    @property
    def design_options(self) -> DesignOptions:
        """Return the options of a design whose step is measured."""
        return DesignOptions(num_recycles=self.passes - 1, dtype=self.dtype)

    @property
    def design_needs(self) -> StepNeeds:
        """Return everything on which the memory of a design's step depends."""
        card = card_of(torch.device(self.device))
        return step_needs(hallucination(self.residues), self.network, self.design_options, card)

    @property
    def size(self) -> PassSize:
        """Return the size of a pass for forecasts; an Evoformer alone has no extra MSA, templates or ensemble."""
        if self.part == DESIGN:
            return self.design_needs.size
        alone = self.part == EVOFORMER
        return PassSize(
            residues=self.residues,
            msa_rows=self.rows,
            extra_rows=0 if alone else self.extra_rows,
            templates=0 if alone else self.templates,
            dtype=DTYPES[self.dtype],
            ensemble=1 if alone else self.ensemble,
            ranks=self.ranks,
        )

    def floor(self) -> int:
        """Return the bytes of a rank's part of two pair tensors, the MSA and, in a prediction, the extra MSA."""
        return floor(self.config, self.size)

    def predicted(self) -> int | None:
        """Return the forecast of peak memory in bytes; None for plain PyTorch, which has no forecast."""
        return None if self.executor == PLAIN else self._predicted(self.executor)

    def needs(self) -> int:
        """Return roughly the bytes that the measurement takes, so that one that will not fit is not tried."""
        if self.executor != PLAIN:
            return self._predicted(self.executor)
        model, size = self.config, self.size
        rows = [model.evoformer.pair_heads * size.residues, model.evoformer.msa_heads * size.msa_rows]
        logits = max(*rows, model.extra_msa.msa_heads * size.extra_rows) * size.residues**2
        return self._predicted("whole") + _PLAIN_LOGITS * torch.float32.itemsize * logits

    def _predicted(self, executor: str) -> int:
        card = card_of(torch.device(self.device))
        if self.part == DESIGN:
            return self.design_needs.forecast(card)
        found = forecast_prediction(self.config, self.size, executor, card)
        return found.stages["Evoformer"] if self.part == EVOFORMER else found.peak


@dataclass(frozen=True, kw_only=True)
class MemoryMeasurement:
    """Result of a measurement: memory in bytes and seconds, or the reason of a failure.

    `peak` is beyond the memory with the model loaded, `resident` is all memory at the peak. With several ranks, the
    rank with the largest peak counts.
    """

    peak: int = 0
    resident: int = 0
    seconds: float = 0.0
    failure: str | None = None


def measure(point: Point, spill: Path, limit: int | None = None) -> MemoryMeasurement:
    """Measure a point in fresh processes.

    `spill` is the directory of the spilled executor. Each process may hold `limit` bytes in all, or what is available.
    """
    threads = max(1, torch.get_num_threads() // point.ranks)
    try:
        return on_ranks(point.ranks, measured_here, point, spill, limit, device=point.device, threads=threads)
    except RuntimeError as error:
        return MemoryMeasurement(failure=f"{error}, or was ended from outside, as systems do when memory runs out")


def measured_here(mesh: Mesh, point: Point, spill: Path, limit: int | None) -> MemoryMeasurement:
    """Measure a point in this process, as one of the ranks of a mesh; every rank must call this function."""
    allocator.keep_few_kernels()
    torch.manual_seed(0)
    if mesh.size > 1:
        mesh = make_mesh(Layout(dap=mesh.size), mesh.device)
    found = _measure(mesh, point, spill, limit)
    everyone = [MemoryMeasurement(**each) for each in mesh.all_gather(asdict(found))]
    return max(everyone, key=lambda each: each.peak)


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
        # A small run first, for what libraries allocate once, such as the threads' buffers, is not part of the cost.
        run(replace(point, residues=8), executor())
        settle()
        mesh.barrier()
        loaded = peak_memory(device)
        reset_peak_memory(device)
        start, began = held_memory(device), time.perf_counter()
        try:
            # On a CPU, allocations beyond the limit must be made to fail; on a GPU they fail by themselves.
            left = available_memory(device) if limit is None else min(available_memory(device), max(0, limit - start))
            with limit_memory(left) if device.type == "cpu" else nullcontext():
                run(point, executor())
            synchronize(device)
        except (RuntimeError, MemoryError, OSError) as error:
            if mesh.size > 1:
                raise  # the others wait for this rank: all end with it
            message = f"{type(error).__name__}: {str(error).strip()[:_LINE_LENGTH]}"
            return MemoryMeasurement(failure="out of memory" if is_out_of_memory(error) else message)
        seconds, peak = time.perf_counter() - began, peak_memory(device)
        resident = max(loaded, peak)
        failure = f"took {gib(resident)} in all" if limit is not None and resident > limit else None
        return MemoryMeasurement(peak=peak - start, resident=resident, seconds=seconds, failure=failure)


def _prediction(point: Point, device: torch.device) -> Run:
    """Return a function that makes passes as `predict` does, on random samples, and confidences after the last."""
    model = untrained_model(point.config, seed=0).requires_grad_(False).to(device)

    def run(point: Point, executor: Executor) -> None:
        def draw(_: int) -> list[Batch]:
            sizes = point.residues, point.rows, point.extra_rows, point.templates
            return [random_batch(*sizes, device, method=point.config.method) for _ in range(point.ensemble)]

        def step(ensemble: Sequence[Batch], previous: Recycled | None) -> Folded:
            return model.fold(executor, ensemble, previous, DTYPES[point.dtype])

        folded = recycle(step, draw, point.passes - 1).folded
        confidence.plddt(model.heads.lddt_logits(folded.structure))
        head = model.heads.aligned_error
        if head is not None:
            mask = torch.ones_like(folded.structure.mask[..., 0])
            confidence.aligned_error(executor, head, folded.representations.pair, mask)

    return run


def _evoformer(point: Point, device: torch.device) -> Run:
    """Return a function that runs the Evoformer alone on random streams."""
    config = point.config
    stack = evoformer(point.preset, config.evoformer.blocks, device)

    def run(point: Point, executor: Executor) -> None:
        kind, residues = DTYPES[point.dtype], point.residues

        def stream(rows: int, channels: int) -> Stream:
            def make(_: slice, some: Tensor) -> Tensor:
                return torch.randn(1, some.shape[1], residues, channels, dtype=kind, device=device)

            return executor.map_rows(make, torch.ones(1, rows, device=device))

        msa, pair = stream(point.rows, config.evoformer.c_m), stream(residues, config.c_z)
        stack(executor, msa, pair, *(torch.ones(1, rows, residues, device=device) for rows in (point.rows, residues)))

    return run


def _design(point: Point, device: torch.device) -> Run:
    """Return a function that makes the first step of a hallucination, as `helixfold design` does."""
    # These read structures and know where parameters are, for which a machine that is lent has no packages.
    from helixfold.design.designer import Designer  # noqa: PLC0415
    from helixfold.weights.find import ReadyModel  # noqa: PLC0415

    model = ReadyModel(preset=point.network, network=untrained_model(point.config, seed=0), digest="")

    def run(point: Point, _: Executor) -> None:
        designer = Designer(hallucination(point.residues), [model], point.design_options, device=device)
        with torch.enable_grad():
            designer.advance(designer.begin(0), 0)

    return run
