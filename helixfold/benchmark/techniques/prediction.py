"""A prediction as a setup says: passes without gradients, each from the results of the one before."""

import tempfile
from dataclasses import fields

import torch
from torch import Tensor

from helixfold.benchmark.techniques.exactness import Results
from helixfold.benchmark.techniques.setups import PredictionSetup
from helixfold.benchmark.techniques.training import Problem, operators
from helixfold.execution.graphs import GraphRecorder, Recordings
from helixfold.execution.random_inputs import random_batch
from helixfold.execution.recorded_passes import LAUNCHED, Passes
from helixfold.execution.slabs import Held, Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.whole import Whole
from helixfold.model.outputs import Outputs, Recycled
from helixfold.model.update import Context, ContextInput, Stream, Update
from helixfold.parallel.collectives import Message
from helixfold.parallel.mesh import Mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.weights.untrained import untrained_model


class NotInPlace(Slabs):
    """Executor that works as `Slabs` does, and writes each update's result into memory of its own."""

    @torch.no_grad()
    def apply(
        self,
        update: Update,
        stream: Stream,
        mask: Tensor,
        context_input: ContextInput,
        *,
        context: Context,
        dropout_mask: Tensor | None,
    ) -> Held:
        return super().apply(
            update,
            self.gather(stream).clone(),
            mask,
            context_input,
            context=context,
            dropout_mask=dropout_mask,
        )


class PredictionRun:
    """A prediction of a setup, as the rank of a mesh computes it; parameters and inputs are the same in all setups."""

    def __init__(self, problem: Problem, setup: PredictionSetup, mesh: Mesh) -> None:
        self._problem, self._setup, self._mesh = problem, setup, mesh
        self.messages: list[Message] = []
        self._model = untrained_model(problem.model, seed=0).requires_grad_(False).to(mesh.device)
        self._run = parallelize(self._model, mesh, within=_executor(setup, mesh.device), messages=self.messages)
        problem.begin_draw(0)
        sizes = problem.residues, problem.rows, problem.extra_rows, problem.templates
        self._batch = random_batch(*sizes, mesh.device)
        self._passes = LAUNCHED
        if setup.recorded:
            self._passes = Passes(Recordings(GraphRecorder(mesh.device)))
            # What is launched first, and recorded next; only replays are predictions.
            for _ in range(2):
                self.step()

    def step(self) -> Outputs:
        """Make one prediction."""
        previous: Recycled | None = None
        with torch.no_grad(), operators(self._setup.plain):
            for cycle in range(self._problem.recycles + 1):
                folded = self._passes(self._model, self._run, [self._batch], previous, self._setup.dtype)
                previous = folded.recycled() if cycle < self._problem.recycles else None
            return Outputs(
                representations=folded.representations,
                structure=folded.structure,
                logits=self._model.heads(self._run, folded),
            )

    def results(self) -> Results:
        """Make one prediction and return the pair stream, the atoms and all logits."""
        found = self.step()
        logits = {field.name: getattr(found.logits, field.name) for field in fields(found.logits)}
        return {
            "pair stream": self._run.gather(found.representations.pair).float().cpu(),
            "atoms": found.structure.positions.cpu(),
            **{name.replace("_", " "): each.cpu() for name, each in logits.items() if each is not None},
        }

    def bytes_sent(self) -> int:
        """Return the bytes that this rank has sent since the last call."""
        sent = sum(size for _, size in self.messages)
        self.messages.clear()
        return sent


def _executor(setup: PredictionSetup, device: torch.device) -> Whole | Slabs:
    if setup.way == "whole":
        return Whole()
    if setup.way == "spilled":
        return Spilled(tempfile.gettempdir(), device=device)
    return Slabs() if setup.way == "slabs" else NotInPlace()
