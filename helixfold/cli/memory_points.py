"""Peak memory of a prediction, or of an Evoformer alone, measured in a process of its own."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from helixfold import confidence
from helixfold.batch import Batch
from helixfold.cli.benchmark_block import evoformer
from helixfold.cli.benchmark_timing import held_memory, settle, wait
from helixfold.config import ModelConfig
from helixfold.device import pick_device
from helixfold.execution import allocator, policy
from helixfold.execution.available import available_memory, held_to
from helixfold.execution.memory import PassSize, floor, predicted
from helixfold.execution.random_inputs import random_batch
from helixfold.inference import DTYPES, recycle
from helixfold.model.outputs import Folded, Recycled
from helixfold.model.update import Executor, row_numbers
from helixfold.ops.dispatch import forced
from helixfold.presets import preset
from helixfold.stages import peak_memory, reset_peak_memory
from helixfold.weights.untrained import untrained_model

PLAIN = "plain"
PREDICTION, EVOFORMER = PARTS = ("prediction", "evoformer")
# Float32 numbers that plain attention holds for each of its logits, at most.
_PLAIN_LOGITS = 4
_LINE_LENGTH = 200
Run = Callable[["Point", Executor], None]


@dataclass(frozen=True, kw_only=True)
class Point:
    """What is run, of which size and how. `blocks` cuts every stack to so many blocks; None leaves them whole."""

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

    @property
    def config(self) -> ModelConfig:
        """The network, cut."""
        model = preset(self.preset).model
        most = self.blocks or model.evoformer.blocks
        return replace(
            model,
            evoformer=replace(model.evoformer, blocks=min(most, model.evoformer.blocks)),
            extra_msa=replace(model.extra_msa, blocks=min(most, model.extra_msa.blocks)),
            template=model.template and replace(model.template, blocks=min(most, model.template.blocks)),
        )

    @property
    def size(self) -> PassSize:
        """For the memory model; an Evoformer alone reads nothing but its streams."""
        alone = self.part == EVOFORMER
        return PassSize(
            residues=self.residues,
            msa_rows=self.rows,
            extra_rows=0 if alone else self.extra_rows,
            templates=0 if alone else self.templates,
            dtype=DTYPES[self.dtype],
            ensemble=1 if alone else self.ensemble,
        )

    def floor(self) -> int:
        """Bytes of two pair tensors, the MSA and, in a prediction, the extra MSA."""
        return floor(self.config, self.size)

    def predicted(self) -> int | None:
        """The memory model's peak; there is none for plain PyTorch."""
        return None if self.executor == PLAIN else self._predicted(self.executor)

    def needs(self) -> int:
        """Roughly, for not trying what will not fit."""
        if self.executor != PLAIN:
            return self._predicted(self.executor)
        model, size = self.config, self.size
        rows = [model.evoformer.pair_heads * size.residues, model.evoformer.msa_heads * size.msa_rows]
        logits = max(*rows, model.extra_msa.msa_heads * size.extra_rows) * size.residues**2
        return self._predicted("whole") + _PLAIN_LOGITS * torch.float32.itemsize * logits

    def _predicted(self, executor: str) -> int:
        found = predicted(self.config, self.size, executor, torch.device(self.device).type)
        return found.stages["Evoformer"] if self.part == EVOFORMER else found.peak


@dataclass(frozen=True, kw_only=True)
class Found:
    """Bytes beyond what was held with the model loaded, bytes held in all at the peak, and seconds; or a failure."""

    peak: int = 0
    resident: int = 0
    seconds: float = 0.0
    failure: str | None = None


def measure(point: Point, spill: Path, limit: int | None = None) -> Found:
    """Run it in a fresh process, which may hold `limit` bytes in all, or what there is."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_measure, point, spill, limit, torch.get_num_threads()).result()
        except BrokenProcessPool:
            return Found(failure="its process was ended from outside, as systems do when memory runs out")


def _measure(point: Point, spill: Path, limit: int | None, threads: int) -> Found:
    allocator.keep_few_kernels()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    device = pick_device(point.device)
    with (
        policy.memory_kept(_kind(point)),
        torch.no_grad(),
        forced("reference") if point.executor == PLAIN else nullcontext(),
    ):
        run = _evoformer(point, device) if point.part == EVOFORMER else _prediction(point, device)
        # What libraries allocate once, such as the threads' buffers, is not part of the cost.
        run(replace(point, residues=8), policy.executor(_kind(point), spill, device))
        settle()
        loaded = peak_memory(device)
        reset_peak_memory(device)
        start, began = held_memory(device), time.perf_counter()
        try:
            with _limited(device, start, limit):
                run(point, policy.executor(_kind(point), spill, device))
            wait(device)
        except (RuntimeError, MemoryError, OSError) as error:
            message = f"{type(error).__name__}: {str(error).strip()[:_LINE_LENGTH]}"
            return Found(failure="out of memory" if policy.is_out_of_memory(error) else message)
        seconds, peak = time.perf_counter() - began, peak_memory(device)
        resident = max(loaded, peak)
        failure = f"took {policy.gib(resident)} in all" if limit is not None and resident > limit else None
        return Found(peak=peak - start, resident=resident, seconds=seconds, failure=failure)


def _kind(point: Point) -> str:
    return "whole" if point.executor == PLAIN else point.executor


def _limited(device: torch.device, held: int, limit: int | None) -> AbstractContextManager[None]:
    """On a CPU, let allocations fail that would go beyond; a GPU's fail by themselves."""
    free = available_memory(device)
    left = free if limit is None else min(free, max(0, limit - held))
    return held_to(left) if device.type == "cpu" else nullcontext()


def _prediction(point: Point, device: torch.device) -> Run:
    """Passes as `predict` makes them, on random samples, and the confidences of the last."""
    model = untrained_model(point.config, seed=0).requires_grad_(False).to(device)

    def run(point: Point, executor: Executor) -> None:
        def draw(_: int) -> list[Batch]:
            sizes = point.residues, point.rows, point.extra_rows, point.templates
            return [random_batch(*sizes, device) for _ in range(point.ensemble)]

        def step(ensemble: Sequence[Batch], previous: Recycled | None) -> Folded:
            return model.fold(executor, ensemble, previous, DTYPES[point.dtype])

        folded = recycle(step, draw, point.passes - 1).folded
        confidence.plddt(model.heads.lddt(folded.structure.single))
        head = model.heads.aligned_error
        if head is not None:
            mask = torch.ones_like(folded.structure.mask[..., 0])
            confidence.aligned_error(executor, head, folded.representations.pair, mask)

    return run


def _evoformer(point: Point, device: torch.device) -> Run:
    """The Evoformer alone, between random streams."""
    config = point.config
    stack = evoformer(point.preset, config.evoformer.blocks, device)

    def run(point: Point, executor: Executor) -> None:
        kind, residues = DTYPES[point.dtype], point.residues

        def stream(rows: int, channels: int) -> Tensor:
            def make(numbers: Tensor) -> Tensor:
                return torch.randn(1, numbers.shape[1], residues, channels, dtype=kind, device=device)

            return executor.each(make, row_numbers(rows), workspace=residues * channels)

        msa, pair = stream(point.rows, config.evoformer.c_m), stream(residues, config.c_z)
        stack(executor, msa, pair, *(torch.ones(1, rows, residues, device=device) for rows in (point.rows, residues)))

    return run
