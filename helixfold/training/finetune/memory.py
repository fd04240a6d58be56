"""Estimate the memory of fine-tunings that share frozen parameters and take turns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from helixfold.execution.device import dtype_on
from helixfold.model.config import ModelConfig
from helixfold.ops.constants import LINE
from helixfold.ops.device_properties import DeviceProperties
from helixfold.parallel.mesh import Layout
from helixfold.planning.estimate import RESERVE, Device, estimate
from helixfold.planning.passes import ALONE
from helixfold.training.estimate import workload
from helixfold.training.finetune.adapted import HEADS_PREFIX
from helixfold.training.finetune.settings import FinetuneConfig
from helixfold.weights.load import model_shapes
from helixfold.weights.low_rank import LORA_A, LORA_B, MAGNITUDE

_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class RunMemory:
    """Memory of one fine-tuning in bytes: its state, which is always in memory, and what a step needs in addition.

    `state` is the trained parameters and their gradients, moments and averages; `optimizer` is the part without the
    parameters. During a step, `effective` is the effective weights of LoRA and their gradients, and `activations` the
    forward and backward pass.
    """

    state: int
    optimizer: int
    effective: int
    activations: int

    @property
    def step(self) -> int:
        """Bytes that a step needs in addition to `state`, with a reserve for the estimate's error."""
        return self.effective + int(RESERVE * self.activations)


def parameter_bytes(model: ModelConfig, dtype: torch.dtype = torch.float32) -> int:
    """Return the bytes of the frozen parameters that fine-tunings share, with a copy in the trunk's dtype."""
    count = sum(math.prod(shape) for shape in model_shapes(model).values())
    return count * (_FLOAT_BYTES + (dtype.itemsize if dtype != torch.float32 else 0))


def run_memory(config: FinetuneConfig, properties: DeviceProperties, layout: Layout = ALONE) -> RunMemory:
    """Estimate the memory of a fine-tuning on a device, without the frozen parameters that it shares.

    Its checkpoint policies must not be "auto". `layout` is how ranks share a sample.
    """
    dtype = dtype_on(config.run.dtype, properties)
    trained_bytes, optimizer_bytes = state_bytes(config, dtype)
    work = workload(config.run, properties, layout, state=0, trained=_with_gradients(config))
    return RunMemory(
        state=trained_bytes + optimizer_bytes,
        optimizer=optimizer_bytes,
        effective=_effective(config, dtype),
        activations=estimate(work, Device(properties=properties, memory=0)).peak,
    )


def _effective(config: FinetuneConfig, dtype: torch.dtype) -> int:
    """Return the bytes of the effective weights, which are computed from low-rank changes, and of their gradients.

    The gradients of all effective weights are in memory at once, because autograd propagates them to A and B last. The
    product B A is in memory together with the weight that it is added to.
    """
    shapes = model_shapes(config.run.model)
    changed = [math.prod(shapes[name]) for name in _with_gradients(config) or ()] if config.adapter == "lora" else []
    return 2 * sum(changed) * dtype.itemsize + max(changed, default=0) * 2 * _FLOAT_BYTES


def state_bytes(config: FinetuneConfig, dtype: torch.dtype) -> tuple[int, int]:
    """Return the bytes of the trained parameters, and of the other buffers of `FlatOptimizer`.

    These buffers are both moments, the average, the sum of gradients and, for some settings, the gradient of a
    micro-batch. `dtype` is the trunk's precision.
    """
    count = sum(-(-math.prod(shape) // LINE) * LINE for shape in _trained_shapes(config).values())
    is_rounded = config.adapter == "full" and dtype != torch.float32
    clips_samples = config.run.optimizer.clipping == "sample"
    micro_batch_itemsize = (dtype.itemsize if is_rounded else _FLOAT_BYTES) if clips_samples or is_rounded else 0
    return count * (_FLOAT_BYTES + (dtype.itemsize if is_rounded else 0)), count * (
        4 * _FLOAT_BYTES + micro_batch_itemsize
    )


def with_settled_memory(
    config: FinetuneConfig, properties: DeviceProperties, memory: int, layout: Layout = ALONE
) -> FinetuneConfig:
    """Replace every "auto" in `recompute` with the fastest checkpoint policy that fits into `memory` bytes.

    The run is assumed to be the only one on the device. Raise `ConfigError` if no policy fits.
    """
    if config.run.recompute.is_settled:
        return config
    dtype = dtype_on(config.run.dtype, properties)
    shared = 0 if config.adapter == "full" else parameter_bytes(config.run.model, dtype)
    state = shared + sum(state_bytes(config, dtype)) + _effective(config, dtype)
    work = workload(config.run, properties, layout, state=state, trained=_with_gradients(config))
    recompute = estimate(work, Device(properties=properties, memory=memory)).settled()
    return replace(config, run=replace(config.run, recompute=recompute))


def fitting(waiting: Sequence[RunMemory], running: Sequence[RunMemory], shared: int, memory: int) -> int:
    """Return how many of the `waiting` fine-tunings, in order, fit into `memory` bytes together with `running` ones.

    All of them share `shared` bytes of frozen parameters, and only one runs a step at a time.
    """
    for count in range(len(waiting), 0, -1):
        together = [*running, *waiting[:count]]
        if shared + sum(each.state for each in together) + max(each.step for each in together) <= memory:
            return count
    return 0


@cache
def _with_gradients(config: FinetuneConfig) -> frozenset[str] | None:
    """Return the names of the model's parameters that have gradients; None means all of them.

    For low-rank changes, these are the weights that they change.
    """
    if config.adapter == "lora":
        return frozenset(f"{name}.weight" for name in config.low_rank.matching_maps(model_shapes(config.run.model)))
    return frozenset(_trained_shapes(config)) if config.adapter == "heads" else None


@cache
def _trained_shapes(config: FinetuneConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters that the optimizer trains, by name."""
    shapes = dict(model_shapes(config.run.model))
    if config.adapter == "full":
        return shapes
    if config.adapter == "heads":
        return {name: shape for name, shape in shapes.items() if name.startswith(HEADS_PREFIX)}
    rank = config.low_rank.rank
    trained: dict[str, tuple[int, ...]] = {}
    for name in config.low_rank.matching_maps(shapes):
        outputs, inputs = shapes[f"{name}.weight"]
        trained |= {f"{name}.{LORA_A}": (rank, inputs), f"{name}.{LORA_B}": (outputs, rank)}
        if config.low_rank.decomposed:
            trained[f"{name}.{MAGNITUDE}"] = (outputs,)
    return trained
