"""Measure setups in turn: time, peak memory, bytes moved and sent, and whether their results are right."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from helixfold.benchmark.techniques.exactness import (
    Deviation,
    Results,
    deviations,
    faults,
    faults_of_lower_precision,
)
from helixfold.benchmark.techniques.prediction import PredictionRun
from helixfold.benchmark.techniques.setups import PredictionSetup, Setup
from helixfold.benchmark.techniques.training import Problem, TrainingRun
from helixfold.benchmark.timing import peak_of, settle
from helixfold.execution.allocator import keep_few_kernels, keeping_freed_memory
from helixfold.execution.counter import Counter
from helixfold.execution.stages import mean_seconds
from helixfold.parallel.mesh import Mesh, make_mesh

# A reading lasts at least so long; shorter steps are repeated.
_LEAST_SECONDS = 0.3
# Random inputs of which a setup must get one right: where a hidden value is all but 0, rounding decides whether ReLU
# passes it on, and a gradient then jumps. Wrong code is wrong for all of them.
_DRAWS = 2


@dataclass(kw_only=True)
class Reading:
    """Measurements of one setup, and how exact its results are.

    `seconds` has the time of a step in each round. `memory` is the peak in bytes of a rank beyond what the program
    itself takes: parameters, moments and inputs too. `moved` is the bytes that PyTorch's operators read and wrote in a
    step, caches included, and `sent` those that a rank sends. `deviations` are from plain PyTorch in float32, and
    `faults` says what deviates more than rounding explains.
    """

    setup: Setup
    seconds: list[float] = field(default_factory=list)
    memory: int = 0
    moved: int | None = None
    sent: int = 0
    deviations: dict[str, Deviation] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def judge(mesh: Mesh, problem: Problem, setups: Sequence[Setup]) -> list[Reading]:
    """Return a reading of each setup that says how exact its results are, on the first rank of a mesh.

    All ranks call this together; setups of one rank are for the first, while the others wait.
    """
    found = _Judge(problem, mesh.device)
    readings = [Reading(setup=setup) for setup in setups]
    for reading in readings:
        own = _mesh_of(reading.setup, mesh)
        if own is not None:
            found.add(reading, own)
        mesh.barrier()
    return readings


def measure(mesh: Mesh, problem: Problem, setups: Sequence[Setup], repeats: int) -> list[Reading]:
    """Return a whole reading of each setup, on the first rank of a mesh; all ranks call this together.

    In each of the rounds every setup is built anew and read once, so that none of them alone has the times in which
    the machine is faster.
    """
    if all(isinstance(setup, PredictionSetup) for setup in setups):
        keep_few_kernels()  # as `helixfold predict` does, and `helixfold train` does not
    readings = judge(mesh, problem, setups)
    for reading in readings:
        own = _mesh_of(reading.setup, mesh)
        if own is not None:
            settle()
            reading.memory = peak_of(partial(_twice, problem, reading.setup, own), own.device)
            run = _run(problem, reading.setup, own)
            run.step()
            run.bytes_sent()
            run.step()
            reading.sent = run.bytes_sent()
            reading.moved = _moved(run, own)
        mesh.barrier()
    with keeping_freed_memory():
        for _ in range(repeats):
            for reading in readings:
                own = _mesh_of(reading.setup, mesh)
                if own is not None:
                    reading.seconds.append(_seconds(_run(problem, reading.setup, own), own))
                mesh.barrier()
    return readings


class _Judge:
    """Judge of results; it keeps those of plain PyTorch, in float32 and in the setups' own precision."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self._device = device
        # Recycled distances are sorted into bins, where rounding may decide; one pass has no such steps.
        self._problem = replace(problem, recycles=0)
        self._true: dict[tuple[int, Setup], Results] = {}
        self._plain: dict[tuple[int, Setup], dict[str, Deviation]] = {}

    def add(self, reading: Reading, mesh: Mesh) -> None:
        """Add deviations and faults to a reading; all ranks of the setup's mesh call this together."""
        for draw in range(_DRAWS):
            reading.deviations, reading.faults = self._judged(reading.setup, mesh, draw)
            if not mesh.broadcast(reading.faults):
                return

    def _judged(self, setup: Setup, mesh: Mesh, draw: int) -> tuple[dict[str, Deviation], list[str]]:
        problem, exact = replace(self._problem, draw=draw), replace(setup, dtype=torch.float32)
        found = _run(problem, exact, mesh).results()
        own = found if setup == exact else _run(problem, setup, mesh).results()
        if not mesh.is_first:
            return {}, []
        true = self._computed(exact.plainest(), draw)
        deviation, wrong = deviations(own, true), [*faults(deviations(found, true))]
        if setup != exact:
            plainest = setup.plainest()
            if (draw, plainest) not in self._plain:
                self._plain[draw, plainest] = deviations(self._computed(plainest, draw), true)
            name = str(setup.dtype).removeprefix("torch.")
            low = faults_of_lower_precision(deviation, self._plain[draw, plainest])
            wrong += [f"{fault} in {name}" for fault in low]
        return deviation, wrong

    def _computed(self, plainest: Setup, draw: int) -> Results:
        if (draw, plainest) not in self._true:
            problem = replace(self._problem, draw=draw)
            self._true[draw, plainest] = _run(problem, plainest, Mesh.alone(self._device)).results()
        return self._true[draw, plainest]


def _run(problem: Problem, setup: Setup, mesh: Mesh) -> TrainingRun | PredictionRun:
    if isinstance(setup, PredictionSetup):
        return PredictionRun(problem, setup, mesh)
    return TrainingRun(problem, setup, mesh)


def _mesh_of(setup: Setup, mesh: Mesh) -> Mesh | None:
    """Return this rank's mesh for a setup, or None if it has no part in it."""
    if setup.layout.ranks == mesh.size:
        return mesh if mesh.size == 1 else make_mesh(setup.layout, mesh.device)
    return Mesh.alone(mesh.device) if mesh.is_first else None


def _twice(problem: Problem, setup: Setup, mesh: Mesh) -> None:
    """Make two steps: in the second one, moments and buffers are all there."""
    run = _run(problem, setup, mesh)
    run.step()
    run.step()


def _seconds(run: TrainingRun | PredictionRun, mesh: Mesh) -> float:
    mean_seconds(run.step, device=mesh.device)
    mesh.barrier()
    once = mean_seconds(run.step, device=mesh.device)
    # The same number on all ranks.
    times = mesh.broadcast(math.ceil(_LEAST_SECONDS / once)) - 1
    if times == 0:
        return once
    mesh.barrier()
    return mean_seconds(run.step, times, mesh.device)


def _moved(run: TrainingRun | PredictionRun, mesh: Mesh) -> int | None:
    """Return the bytes that operators move in a step; None on a GPU, where PyTorch does not see our kernels."""
    with Counter() if mesh.device.type == "cpu" else nullcontext() as counter:
        run.step()
    return None if counter is None else counter.moved
