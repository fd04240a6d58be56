"""The techniques that make HelixFold cheap, and a training step and a prediction with and without each of them.

Wang et al. 2022 (arXiv 2207.05477) name most of them: fused operators, fused tensors, recomputation, bfloat16 and
updates in place.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from helixfold.config import ModelConfig
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import RecomputeConfig, recompute
from helixfold.execution.slabs import Held, Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.whole import Whole
from helixfold.losses.config import LossConfig
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import IN_FLOAT32
from helixfold.model.outputs import Outputs, Recycled
from helixfold.model.update import Context, ContextInput, Stream, Update
from helixfold.ops.dispatch import forced
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.planning.size import dtype_name
from helixfold.weights.untrained import untrained_model

Results = Mapping[str, Tensor]
# The fused operators by kind.
KINDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "attention": frozenset({"attention", "self_attention", "global_attention"}),
        "triangle multiplication": frozenset({"triangle_operand", "triangle_multiplication", "triangle_update"}),
        "outer product mean": frozenset({"outer_product_operand", "outer_product_operands", "outer_product_mean"}),
        "transition": frozenset({"transition"}),
        "norms and linear layers": frozenset({"layer_norm", "norm_linear", "linear", "multiply"}),
        "residual addition": frozenset({"add_change"}),
        "invariant point attention": frozenset({"point_attention", "invariant_point_attention"}),
    }
)
ALL_OPERATORS = frozenset().union(*KINDS.values())
_LEARNING_RATE = 1e-3
_NOTHING = RecomputeConfig.everywhere("none")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The network and the sizes of its random inputs, which `draw` seeds.

    `recycles` is the number of recycling iterations before the last one.
    """

    model: ModelConfig
    losses: LossConfig
    residues: int
    rows: int
    extra_rows: int
    templates: int
    recycles: int
    draw: int = 0

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.residues, self.rows, self.extra_rows, self.templates


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """Way to compute a training step.

    `plain` names the operators that PyTorch's own functions compute. `flat_optimizer` says whether parameters,
    gradients and moments are in a few flat buffers.
    """

    dtype: torch.dtype
    plain: frozenset[str] = frozenset()
    recompute: RecomputeConfig = field(default_factory=RecomputeConfig)
    flat_optimizer: bool = True

    def plainest(self) -> "TrainingSetup":
        """Return the setup in this dtype with every technique switched off."""
        return TrainingSetup(dtype=self.dtype, plain=ALL_OPERATORS, recompute=_NOTHING, flat_optimizer=False)

    def run(self, problem: Problem, device: torch.device) -> "TrainingRun":
        return TrainingRun(problem, self, device)


@dataclass(frozen=True, kw_only=True)
class PredictionSetup:
    """Way to compute a prediction; `plain` names the operators that PyTorch's own functions compute."""

    dtype: torch.dtype
    plain: frozenset[str] = frozenset()
    way: Literal["whole", "slabs", "slabs, not in place", "spilled"] = "slabs"

    def plainest(self) -> "PredictionSetup":
        """Return the setup in this dtype with every technique switched off."""
        return PredictionSetup(dtype=self.dtype, plain=ALL_OPERATORS, way="whole")

    def run(self, problem: Problem, device: torch.device) -> "PredictionRun":
        return PredictionRun(problem, self, device)


Setup = TrainingSetup | PredictionSetup


@dataclass(frozen=True, kw_only=True)
class Technique:
    """A technique, and the setups with and without it."""

    name: str
    on: Setup
    off: Setup


def training_techniques(dtype: torch.dtype) -> list[Technique]:
    """Return the techniques of a training step."""
    on = TrainingSetup(dtype=dtype)
    return [
        *_operators_and_dtype(on),
        Technique(name="flat buffers of the optimizer", on=on, off=replace(on, flat_optimizer=False)),
        Technique(name="recomputed blocks", on=on, off=replace(on, recompute=_NOTHING)),
    ]


def prediction_techniques(dtype: torch.dtype) -> list[Technique]:
    """Return the techniques of a prediction."""
    on = PredictionSetup(dtype=dtype)
    return [
        *_operators_and_dtype(on),
        Technique(name="slabs", on=on, off=replace(on, way="whole")),
        Technique(name="updates in place", on=on, off=replace(on, way="slabs, not in place")),
        Technique(name="spilled streams", on=replace(on, way="spilled"), off=on),
    ]


def _operators_and_dtype(on: Setup) -> Iterator[Technique]:
    for kind, names in {"operators, all": ALL_OPERATORS, **KINDS}.items():
        yield Technique(name=f"fused {kind}", on=on, off=replace(on, plain=names))
    if on.dtype != torch.float32:
        yield Technique(name=dtype_name(on.dtype), on=on, off=replace(on, dtype=torch.float32))


class AdamByTensor:
    """The optimizer's work done tensor by tensor with `torch.optim.Adam`: clipping, update, moving average, rounding.

    Gradients are with respect to the model's parameters. `dtype` applies to all submodules that do not stay in float32.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._parameters = list(model.parameters())
        self.masters = [nn.Parameter(parameter.detach()) for parameter in self._parameters]
        self._averages = [master.detach().clone() for master in self.masters]
        exact = {id(each) for name in IN_FLOAT32 for each in model.get_submodule(name).parameters()}
        for parameter in self._parameters:
            parameter.data = parameter.detach() if id(parameter) in exact else parameter.detach().to(dtype)
        self._adam = torch.optim.Adam(self.masters, lr=_LEARNING_RATE, eps=1e-6, foreach=False)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the masters."""
        loss.backward()
        for parameter, master in zip(self._parameters, self.masters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.to(master.dtype)
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters and clear the gradients."""
        nn.utils.clip_grad_norm_(self.masters, 0.1, foreach=False)
        self._adam.step()
        for parameter, master, average in zip(self._parameters, self.masters, self._averages, strict=True):
            average.lerp_(master, 1e-3)
            parameter.copy_(master)
        self._adam.zero_grad()

    def gradient(self) -> Tensor:
        """Return the gradients as one vector, in the order of the model's parameters."""
        return torch.cat(
            [(torch.zeros_like(each) if each.grad is None else each.grad).flatten() for each in self.masters]
        )


class FlatAdam:
    """The same work done by `FlatOptimizer`, which keeps numbers in flat buffers."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._model = model
        config = OptimizerConfig(clipping="global")
        self._optimizer = FlatOptimizer(model, config, working_dtype=dtype, keep_float32=IN_FLOAT32)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the parameters."""
        self._optimizer.backward(loss)
        self._optimizer.collect(last=True)

    def step(self) -> None:
        """Update the parameters and clear the gradients."""
        self._optimizer.step(_LEARNING_RATE, micro_batches=1)

    def gradient(self) -> Tensor:
        """Return the gradients as one vector, in the order of the model's parameters."""
        places = {id(parameter): start for parameter, start, _ in self._optimizer.trained}
        values = self._optimizer.gradient_sum
        return torch.cat([values[places[id(each)] :][: each.numel()] for each in self._model.parameters()])


class TrainingRun:
    """A training step of a setup; parameters and inputs are the same in all setups."""

    def __init__(self, problem: Problem, setup: TrainingSetup, device: torch.device) -> None:
        self._problem, self._setup = problem, setup
        self._model = untrained_model(problem.model, seed=0).to(device).train()
        recompute(self._model, setup.recompute)
        self._optimizer = (FlatAdam if setup.flat_optimizer else AdamByTensor)(self._model, setup.dtype)
        torch.manual_seed(problem.draw)
        self._batch = random_batch(*problem.sizes, device)
        self._labels = random_labels(self._batch)

    def step(self) -> None:
        """Make one whole step."""
        self._gradients()
        self._optimizer.step()

    def results(self) -> Results:
        """Return the loss and its gradient as vectors."""
        loss = self._gradients()
        return {"loss": loss.cpu()[None], "gradient": self._optimizer.gradient().cpu()}

    def _gradients(self) -> Tensor:
        """Compute the gradients and return the loss."""
        torch.manual_seed(self._problem.draw)  # of dropout
        inputs, dtype = [self._batch], self._setup.dtype
        with _operators(self._setup.plain):
            previous: Recycled | None = None
            with torch.no_grad():
                for _ in range(self._problem.recycles):
                    previous = self._model.fold(Whole(), inputs, previous, dtype).recycled()
            outputs = self._model(Whole(), inputs, previous, dtype)
            loss = total_loss(outputs, self._batch, self._labels, self._problem.losses).total.mean()
            del outputs
            self._optimizer.backward(loss)
        return loss.detach()


class PredictionRun:
    """A prediction of a setup; parameters and inputs are the same in all setups."""

    def __init__(self, problem: Problem, setup: PredictionSetup, device: torch.device) -> None:
        self._problem, self._setup = problem, setup
        self._model = untrained_model(problem.model, seed=0).requires_grad_(False).to(device)
        executors: Mapping[str, Callable[[], Whole | Slabs]] = {
            "whole": Whole,
            "slabs": Slabs,
            "slabs, not in place": NotInPlace,
            "spilled": lambda: Spilled(tempfile.gettempdir(), device=device),
        }
        self._executor = executors[setup.way]()
        torch.manual_seed(problem.draw)
        self._batch = random_batch(*problem.sizes, device)

    def step(self) -> Outputs:
        """Make one prediction."""
        previous: Recycled | None = None
        with torch.no_grad(), _operators(self._setup.plain):
            for _ in range(self._problem.recycles):
                previous = self._model.fold(self._executor, [self._batch], previous, self._setup.dtype).recycled()
            return self._model(self._executor, [self._batch], previous, self._setup.dtype)

    def results(self) -> Results:
        """Make one prediction and return the pair stream, the atoms and all logits."""
        outputs = self.step()
        logits = {each.name: getattr(outputs.logits, each.name) for each in fields(outputs.logits)}
        return {
            "pair stream": self._executor.gather(outputs.representations.pair).float().cpu(),
            "atoms": outputs.structure.positions.cpu(),
            **{name.replace("_", " "): each.cpu() for name, each in logits.items() if each is not None},
        }


class NotInPlace(Slabs):
    """`Slabs`, but each update's result is written to new memory."""

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
        own = self.gather(stream).clone()
        return super().apply(update, own, mask, context_input, context=context, dropout_mask=dropout_mask)


def _operators(plain: frozenset[str]) -> AbstractContextManager[object]:
    """Compute these operators by PyTorch's own functions inside."""
    return forced("reference", plain) if plain else nullcontext()
