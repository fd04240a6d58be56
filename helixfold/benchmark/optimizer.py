"""Measure an optimizer step for `helixfold benchmark optimizer`, beside PyTorch's Adam with clipping and average."""

import statistics
import typing
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from helixfold.annotations import Parameter
from helixfold.benchmark.machine import BenchmarkDevice
from helixfold.benchmark.op_cases import Work
from helixfold.benchmark.options import CommonOptions, Model
from helixfold.benchmark.table import Readings, show
from helixfold.benchmark.timing import PLAIN, Cost, peak_of
from helixfold.execution.stages import mean_seconds
from helixfold.model.alphafold import AlphaFold
from helixfold.optim.config import AdaGCConfig, Clipping, OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.planning.prediction import META
from helixfold.presets import preset

_GRADIENT = 1e-4


def measure_flat(model: nn.Module, clipping: Clipping, dtype: torch.dtype, repeats: int) -> tuple[Cost, Work]:
    """Measure collecting the gradients of one micro-batch and a step of `FlatOptimizer`, with clipping and average.

    Time runs from gradients that are there to gradients that are cleared. `dtype` is that of the working copy of the
    parameters. Also return the least bytes that a step must read and write.
    """
    # With one step of warm-up, the adaptive part of AdaGC is measured.
    config = OptimizerConfig(clipping=clipping, adagc=AdaGCConfig(warmup_steps=1))
    keep = [name for name in ("structure_module", "heads") if hasattr(model, name)]
    optimizer = FlatOptimizer(model, config, working_dtype=dtype, keep_float32=keep)
    parameters = list(model.parameters())

    def step() -> None:
        optimizer.collect(last=True)
        if optimizer.step(1e-3, micro_batches=1).skipped:
            raise AssertionError("the gradients are finite")

    cost = _measure(parameters, step, repeats)
    elements = len(optimizer.gradient_sum)
    # Norms read the gradients once and the update makes ten passes; a micro-batch with its own buffer is read, added to
    # the sum (read and written), and cleared.
    traffic = (4 + 10 * 4) * elements + sum(2 * p.numel() for p in parameters if p.dtype == torch.bfloat16)
    norm = clipping == "sample"
    own = (p for p in parameters if norm or p.dtype == torch.bfloat16)
    traffic += sum(p.numel() * ((2 + norm) * p.element_size() + 8) for p in own)
    return cost, Work(flops=0, bytes=traffic)


class AdamByTensor:
    """The optimizer's work done tensor by tensor with `torch.optim.Adam`: clipping, update, moving average, rounding.

    Gradients are those of the model's parameters, which `dtype` rounds outside the submodules `keep_float32`.
    """

    def __init__(
        self, model: nn.Module, clipping: Clipping, dtype: torch.dtype, keep_float32: Collection[str] = ()
    ) -> None:
        self.parameters = list(model.parameters())
        self.masters = [nn.Parameter(parameter.detach()) for parameter in self.parameters]
        self.averages = [master.detach().clone() for master in self.masters]
        self._norms = [torch.ones((), device=master.device) for master in self.masters]
        self._clipping = clipping
        exact = {id(each) for name in keep_float32 for each in model.get_submodule(name).parameters()}
        for parameter in self.parameters:
            parameter.data = parameter.detach() if id(parameter) in exact else parameter.detach().to(dtype)
        self._apart = clipping == "sample" or dtype != torch.float32
        if self._apart:
            for master in self.masters:
                master.grad = torch.zeros_like(master)
        self._adam = torch.optim.Adam(self.masters, eps=1e-6, foreach=False)

    @torch.no_grad()
    def collect(self) -> None:
        """Add the gradient of a micro-batch to that of the masters, and clear it."""
        if self._clipping == "sample":
            nn.utils.clip_grad_norm_(self.parameters, 0.1, foreach=False)
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if not self._apart:
                master.grad = parameter.grad
            elif parameter.grad is not None:
                _gradient(master).add_(parameter.grad)
                parameter.grad.zero_()

    @torch.no_grad()
    def step(self, learning_rate: float = 1e-3) -> None:
        """Update the parameters from the gradients of the masters, and clear these."""
        if self._clipping == "global":
            nn.utils.clip_grad_norm_(self.masters, 0.1, foreach=False)
        elif self._clipping == "adagc":
            for master, norm in zip(self.masters, self._norms, strict=True):
                size = torch.linalg.vector_norm(_gradient(master))
                limited = torch.minimum(size, 1.05 * norm)
                _gradient(master).mul_(limited / size)
                norm.lerp_(limited, 0.02)
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        self._adam.step()
        for parameter, master, average in zip(self.parameters, self.masters, self.averages, strict=True):
            average.lerp_(master, 1e-3)
            if parameter.dtype != master.dtype:
                parameter.copy_(master)
        self._adam.zero_grad(set_to_none=False)


def measure_by_tensor(model: nn.Module, clipping: Clipping, dtype: torch.dtype, repeats: int) -> Cost:
    """Return the cost of a step of `AdamByTensor`, from gradients that are there to gradients that are cleared."""
    optimizer = AdamByTensor(model, clipping, dtype)

    def step() -> None:
        optimizer.collect()
        optimizer.step()

    return _measure(optimizer.parameters, step, repeats)


def measure_torch(model: nn.Module, repeats: int, **way: bool) -> Cost:
    """Return the cost of a step of `torch.optim.Adam` in float32, with global clipping and a moving average.

    `way` chooses one of its faster implementations: foreach=True or fused=True.
    """
    parameters = list(model.parameters())
    weights = [parameter.detach() for parameter in parameters]
    averages = [weight.clone() for weight in weights]
    adam = torch.optim.Adam(parameters, eps=1e-6, **way)  # type: ignore[arg-type]

    @torch.no_grad()
    def step() -> None:
        nn.utils.clip_grad_norm_(parameters, 0.1, foreach=True)
        adam.step()
        torch._foreach_lerp_(averages, weights, 1e-3)
        adam.zero_grad(set_to_none=False)

    return _measure(parameters, step, repeats)


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _measure(parameters: list[nn.Parameter], step: Callable[[], None], repeats: int) -> Cost:
    """Return the median seconds of `repeats` steps and the peak memory of a last one; a first one is not counted."""
    device, seconds = parameters[0].device, []

    def fill_gradients() -> None:
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.fill_(_GRADIENT)

    for _ in range(repeats + 1):
        fill_gradients()
        seconds.append(mean_seconds(step, device=device))
    fill_gradients()
    return Cost(seconds=statistics.median(seconds[1:]), memory=peak_of(step, device))


def network(name: str, device: torch.device) -> AlphaFold:
    """Return the network of a preset with the parameters with which training starts."""
    with device:
        return AlphaFold(preset(name).model)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OptimizerBenchmarkOptions:
    """Options of `helixfold benchmark optimizer`."""

    preset: Model = "model_1_ptm"
    """Model whose parameters are updated."""


_USUAL, _COMMON = OptimizerBenchmarkOptions(), CommonOptions()


def run(options: OptimizerBenchmarkOptions = _USUAL, common: CommonOptions = _COMMON) -> None:
    """Measure optimizer steps and print the readings."""
    show(partial(readings, options, common), common)


def readings(options: OptimizerBenchmarkOptions, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of a step with each way of clipping in every dtype, then of PyTorch's faster steps."""
    repeats, new = common.repeats or 9, partial(network, options.preset, machine.device)
    parameters = list(network(options.preset, META).parameters())
    name = f"{options.preset}, {sum(p.numel() for p in parameters):,} parameters in {len(parameters):,} tensors"

    def reading(dtype: torch.dtype, clipping: str, costs: dict[str, Cost], work: Work | None = None) -> Readings:
        return Readings(part="optimizer", name=name, dtype=dtype, passes=clipping, costs=costs, work=work)

    for dtype in (getattr(torch, each) for each in common.dtypes):
        for clipping in typing.get_args(Clipping):
            flat, work = measure_flat(new(), clipping, dtype, repeats)
            tensors = measure_by_tensor(new(), clipping, dtype, repeats)
            yield reading(dtype, f"clipping {clipping}", {PLAIN: tensors, "ours": flat}, work)
    ways = {f"torch, {way}": measure_torch(new(), repeats, **{way: True}) for way in ("foreach", "fused")}
    yield reading(torch.float32, "clipping global", ways)
