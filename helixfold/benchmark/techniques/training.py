"""A training step as a setup says: forward passes, losses, backward passes, reduction over ranks, and update."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from helixfold.benchmark.optimizer import AdamByTensor
from helixfold.benchmark.techniques.exactness import Results
from helixfold.benchmark.techniques.setups import TrainingSetup
from helixfold.config import ModelConfig
from helixfold.execution.graphs import GraphRecorder, Recordings
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.losses.config import LossConfig
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import IN_FLOAT32, AlphaFold
from helixfold.model.outputs import Recycled
from helixfold.ops.dispatch import forced
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel.collectives import Message, waiting_at_once
from helixfold.parallel.gradients import BUCKET_ELEMENTS, GradientReducer, buckets
from helixfold.parallel.mesh import Mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.training.recorded_gradients import RecordedGradients
from helixfold.weights.untrained import untrained_model

_RATE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The network and the sizes of its random inputs.

    `recycles` is the number of passes before the last one, and `draw` the number of the draw of the inputs.
    """

    model: ModelConfig
    losses: LossConfig
    residues: int
    rows: int
    extra_rows: int
    templates: int
    recycles: int
    draw: int = 0

    def begin_draw(self, sample: int) -> None:
        """Seed PyTorch's random stream, from which the inputs and then the dropout of a sample are drawn."""
        torch.manual_seed(1000 * self.draw + sample)


class TrainingRun:
    """A training step of a setup, as the rank of a mesh computes it; parameters and inputs are the same in all setups.

    Collectives among the ranks of a sample are added to `messages`.
    """

    def __init__(self, problem: Problem, setup: TrainingSetup, mesh: Mesh) -> None:
        self._problem, self._setup, self._mesh = problem, setup, mesh
        self.messages: list[Message] = []
        self._model = _network(problem.model, mesh.device).train()
        self._run = parallelize(self._model, mesh, setup.recompute, messages=self.messages)
        self._optimizer: FlatOptimizer | AdamByTensor
        if setup.flat_optimizer:
            config = OptimizerConfig(clipping="global")
            self._optimizer = FlatOptimizer(self._model, config, working_dtype=setup.dtype, keep_float32=IN_FLOAT32)
        else:
            self._optimizer = AdamByTensor(self._model, "global", setup.dtype, IN_FLOAT32)
        self._own = mesh.micro_batches(setup.samples)
        self._inputs = []
        for index in self._own:
            problem.begin_draw(index)
            sizes = problem.residues, problem.rows, problem.extra_rows, problem.templates
            batch = random_batch(*sizes, mesh.device)
            self._inputs.append((batch, random_labels(batch)))
        self._loss: list[Tensor] = []
        self._recorded: RecordedGradients | None = None
        if setup.recorded:
            recordings = Recordings(GraphRecorder(mesh.device))
            self._recorded = RecordedGradients(self._model, self._run, self._reducer, problem.losses, recordings)
            # What is launched first, and recorded next; only replays are steps.
            for _ in range(2):
                self.gradients()
                self._flat.zero_gradients()

    def step(self) -> None:
        """Make one whole step."""
        self.gradients()
        self.update()

    def results(self) -> Results:
        """Make one step and return the mean loss, its gradient, and the update of the parameters, as vectors."""
        before = self._masters()
        self.gradients()
        loss = torch.stack(self._loss).sum()[None]
        self._mesh.all_reduce(loss)
        count = self._setup.samples * self._replicas
        found = {"loss": loss / count, "gradient": self._gradient() / count}
        self.update()
        return {name: each.cpu() for name, each in {**found, "update": self._masters() - before}.items()}

    def gradients(self) -> None:
        """Compute the sum of the gradients of all samples, on every rank."""
        self._loss = []
        with operators(self._setup.plain), nullcontext() if self._setup.overlaps_messages else waiting_at_once():
            for index, (batch, labels) in zip(self._own, self._inputs, strict=True):
                self._problem.begin_draw(index)
                is_last = index == self._own[-1]
                if self._recorded is not None:
                    inputs = [batch] * (self._problem.recycles + 1)
                    self._loss.append(self._recorded(inputs, labels, self._setup.dtype)["total"].mean())
                    self._reducer.collect(last=is_last)
                    continue
                previous: Recycled | None = None
                with torch.no_grad():
                    for _ in range(self._problem.recycles):
                        previous = self._model.fold(self._run, [batch], previous, self._setup.dtype).recycled()
                outputs = self._model(self._run, [batch], previous, self._setup.dtype)
                loss = total_loss(outputs, batch, labels, self._problem.losses).total.mean()
                del outputs
                self._loss.append(loss.detach())
                self._backward(loss, last=is_last)

    def update(self) -> None:
        """Update the parameters by the mean gradient, and clear it."""
        if isinstance(self._optimizer, FlatOptimizer):
            self._optimizer.step(_RATE, micro_batches=self._setup.samples * self._replicas)
            return
        for master in self._optimizer.masters:
            if master.grad is not None and self._setup.samples > 1:
                master.grad.div_(self._setup.samples)
        self._optimizer.step(_RATE)

    def bytes_sent(self) -> int:
        """Return the bytes that this rank has sent since the last call, and in one reduction of gradients in a ring."""
        sent = sum(size for _, size in self.messages)
        self.messages.clear()
        ranks = self._mesh.world.size
        if isinstance(self._optimizer, FlatOptimizer) and ranks > 1:
            sent += 2 * (ranks - 1) * self._optimizer.gradient_sum.nbytes // ranks
        return sent

    @cached_property
    def _reducer(self) -> GradientReducer:
        return GradientReducer(self._flat, self._mesh)

    @property
    def _flat(self) -> FlatOptimizer:
        assert isinstance(self._optimizer, FlatOptimizer)
        return self._optimizer

    @property
    def _replicas(self) -> int:
        """Return how many ranks compute each sample."""
        return self._mesh.sample.size if self._mesh.world.has_collectives else 1

    def _backward(self, loss: Tensor, *, last: bool) -> None:
        optimizer = self._optimizer
        if isinstance(optimizer, AdamByTensor):
            loss.backward()
            optimizer.collect()
            return
        if self._setup.reduction == "overlapped":
            self._reducer.backward(loss, last=last)
            return
        optimizer.backward(loss)
        optimizer.collect()
        if last:
            total = optimizer.gradient_sum
            if self._setup.reduction == "by tensor":
                parts = [total[start:stop] for _, start, stop in optimizer.trained]
            else:
                parts = [bucket.values for bucket in buckets(total, 0, BUCKET_ELEMENTS)]
            for part in parts:
                self._mesh.all_reduce(part)

    def _gradient(self) -> Tensor:
        """Return the sum of the gradients as one vector, in the order of the model's parameters."""
        if isinstance(self._optimizer, AdamByTensor):
            return torch.cat([_flat(each.grad, each) for each in self._optimizer.masters])
        return self._in_order(self._optimizer, self._optimizer.gradient_sum)

    def _masters(self) -> Tensor:
        """Return a copy of the parameters in float32 as one vector, in the order of the model's parameters."""
        if isinstance(self._optimizer, AdamByTensor):
            return torch.cat([each.detach().flatten() for each in self._optimizer.masters])
        return self._in_order(self._optimizer, self._optimizer.tensors()["master"])

    def _in_order(self, optimizer: FlatOptimizer, flat: Tensor) -> Tensor:
        places = {id(parameter): start for parameter, start, _ in optimizer.trained}
        return torch.cat([flat[places[id(each)] :][: each.numel()] for each in self._model.parameters()])


def _flat(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like).flatten() if gradient is None else gradient.flatten()


def _network(config: ModelConfig, device: torch.device) -> AlphaFold:
    if device.type == "meta":
        with device:
            return AlphaFold(config)
    return untrained_model(config, seed=0).to(device)


@contextmanager
def operators(plain: frozenset[str]) -> Iterator[None]:
    """Compute these operators by PyTorch's own functions inside."""
    if not plain:
        yield
        return
    with forced("reference", plain):
        yield
