"""Measure an optimizer step for `helixfold benchmark optimizer`, beside PyTorch's Adam with clipping and average."""

import os
import platform
import statistics
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from cyclopts import Parameter
from torch import nn

from helixfold.benchmark.machine import device_name
from helixfold.benchmark.options import Device, Model
from helixfold.execution.device import pick_device
from helixfold.execution.stages import mean_seconds
from helixfold.inference import DTYPES
from helixfold.model.alphafold import AlphaFold
from helixfold.optim.config import AdaGCConfig, Clipping, OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.options import Positive
from helixfold.predict.options import Dtype
from helixfold.presets import preset

_GRADIENT = 1e-4


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of each measured step of clipping, Adam and moving average together.

    `traffic` are the least bytes that a step must read and write.
    """

    seconds: tuple[float, ...]
    traffic: int


def measure_flat(model: nn.Module, clipping: Clipping, dtype: torch.dtype, repeats: int) -> StepTime:
    """Measure collecting the gradients of one micro-batch and a step of `FlatOptimizer`.

    Time runs from gradients that are there to gradients that are cleared. `dtype` is that of the working copy of the
    parameters.
    """
    # With one step of warm-up, the adaptive part of AdaGC is measured.
    config = OptimizerConfig(clipping=clipping, adagc=AdaGCConfig(warmup_steps=1))
    keep = [name for name in ("structure_module", "heads") if hasattr(model, name)]
    optimizer = FlatOptimizer(model, config, working_dtype=dtype, keep_float32=keep)
    parameters = list(model.parameters())

    def step() -> None:
        optimizer.collect()
        if optimizer.step(1e-3, parts=1).skipped:
            raise AssertionError("the gradients are finite")

    seconds = _measure(parameters, step, repeats)
    elements = len(optimizer.gradient_sum)
    # Norms read the gradients once and the update makes ten passes; a micro-batch with its own buffer is read, added to
    # the sum (read and written), and cleared.
    traffic = (4 + 10 * 4) * elements + sum(2 * p.numel() for p in parameters if p.dtype == torch.bfloat16)
    norm = clipping == "sample"
    own = (p for p in parameters if norm or p.dtype == torch.bfloat16)
    traffic += sum(p.numel() * ((2 + norm) * p.element_size() + 8) for p in own)
    return StepTime(seconds=seconds, traffic=traffic)


def measure_by_tensor(model: nn.Module, clipping: Clipping, dtype: torch.dtype, repeats: int) -> tuple[float, ...]:
    """Return the seconds of each step of the same work done tensor by tensor, with `torch.optim.Adam`."""
    parameters = list(model.parameters())
    masters = [nn.Parameter(parameter.detach()) for parameter in parameters]
    averages = [master.detach().clone() for master in masters]
    norms = [torch.ones((), device=master.device) for master in masters]
    for parameter in parameters:
        parameter.data = parameter.detach().to(dtype)
    apart = clipping == "sample" or dtype != torch.float32
    if apart:
        for master in masters:
            master.grad = torch.zeros_like(master)
    adam = torch.optim.Adam(masters, eps=1e-6, foreach=False)

    @torch.no_grad()
    def step() -> None:
        if clipping == "sample":
            nn.utils.clip_grad_norm_(parameters, 0.1, foreach=False)
        for parameter, master in zip(parameters, masters, strict=True):
            if apart:
                _gradient(master).add_(_gradient(parameter))
                _gradient(parameter).zero_()
            else:
                master.grad = parameter.grad
        if clipping == "global":
            nn.utils.clip_grad_norm_(masters, 0.1, foreach=False)
        elif clipping == "adagc":
            for master, norm in zip(masters, norms, strict=True):
                size = torch.linalg.vector_norm(_gradient(master))
                limited = torch.minimum(size, 1.05 * norm)
                _gradient(master).mul_(limited / size)
                norm.lerp_(limited, 0.02)
        adam.step()
        for parameter, master, average in zip(parameters, masters, averages, strict=True):
            average.lerp_(master, 1e-3)
            if parameter.dtype != master.dtype:
                parameter.copy_(master)
        adam.zero_grad(set_to_none=False)

    return _measure(parameters, step, repeats)


def measure_torch(model: nn.Module, repeats: int, **way: bool) -> tuple[float, ...]:
    """Return the seconds of each step of `torch.optim.Adam` in float32, with global clipping and a moving average.

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


def _measure(parameters: list[nn.Parameter], step: Callable[[], None], repeats: int) -> tuple[float, ...]:
    """Return the seconds of each of `repeats` steps, after a first one that is not counted."""
    seconds = []
    for _ in range(repeats + 1):
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.fill_(_GRADIENT)
        seconds.append(mean_seconds(step, device=parameters[0].device))
    return tuple(seconds[1:])


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
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16")
    """Precisions of the working copy."""
    device: Device = "cpu"
    """auto, cpu, cuda or cuda:N."""
    threads: Annotated[Positive | None, Parameter(show_default="PyTorch's")] = None
    """Threads of a CPU."""
    repeats: Positive = 9
    """Number of steps that are timed; the table has their median."""


_USUAL = OptimizerBenchmarkOptions()


def run(options: OptimizerBenchmarkOptions = _USUAL) -> None:
    """Measure optimizer steps and print the readings."""
    threads = options.threads or torch.get_num_threads()
    torch.set_num_threads(threads)
    device = pick_device(options.device)
    parameters = list(network(options.preset, torch.device("meta")).parameters())
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{device_name(device)}, {threads} threads, {versions}")
    print(f"{options.preset}: {sum(p.numel() for p in parameters):,} parameters in {len(parameters):,} tensors")
    if hasattr(os, "getloadavg"):
        print(f"load average when it began: {os.getloadavg()[0]:.2f}")
    print(f"{'milliseconds':20} {'flat':>7} {'least':>7} {'most':>7} {'GB/s':>6} {'by tensor':>10} {'faster':>7}")
    for dtype in options.dtypes:
        for clipping in typing.get_args(Clipping):
            flat = measure_flat(network(options.preset, device), clipping, DTYPES[dtype], options.repeats)
            tensors = measure_by_tensor(network(options.preset, device), clipping, DTYPES[dtype], options.repeats)
            median = statistics.median(flat.seconds)
            times = " ".join(f"{1e3 * value:7.1f}" for value in (median, min(flat.seconds), max(flat.seconds)))
            other = statistics.median(tensors)
            ratio = f"{1e3 * other:10.1f} {other / median:6.1f}x"
            print(f"{clipping + ', ' + dtype:20} {times} {flat.traffic / median / 1e9:6.1f} {ratio}", flush=True)
    for way in ("foreach", "fused"):
        seconds = statistics.median(measure_torch(network(options.preset, device), options.repeats, **{way: True}))
        print(f"torch.optim.Adam({way}=True), global, float32: {1e3 * seconds:.1f}")
