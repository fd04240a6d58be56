"""Estimate of the memory of fine-tunings that share frozen parameters and take turns."""

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
from helixfold.training.finetune.adapted import HEADS
from helixfold.training.finetune.settings import FinetuneConfig
from helixfold.weights.load import model_shapes
from helixfold.weights.low_rank import LORA_A, LORA_B, MAGNITUDE

_FLOAT = 4


@dataclass(frozen=True, kw_only=True)
class RunMemory:
    """Bytes of one fine-tuning: `numbers` of what is trained, its gradients, moments and averages, which stay between
    its turns; `effective` weights with their gradients and the `passes`, which only a running step has.

    `optimizer` is the part of `numbers` beyond the values themselves: gradients, moments, and moving averages.
    """

    numbers: int
    optimizer: int
    effective: int
    passes: int

    @property
    def running(self) -> int:
        """Return the bytes that a running step takes beside `numbers`, with a reserve for the estimate's error."""
        return self.effective + int(RESERVE * self.passes)


def parameter_bytes(model: ModelConfig, dtype: torch.dtype = torch.float32) -> int:
    """Return the bytes of the frozen parameters that fine-tunings share, with a copy in the dtype of the trunk."""
    count = sum(math.prod(shape) for shape in model_shapes(model).values())
    return count * (_FLOAT + (dtype.itemsize if dtype != torch.float32 else 0))


def run_memory(config: FinetuneConfig, properties: DeviceProperties, layout: Layout = ALONE) -> RunMemory:
    """Return the memory of a fine-tuning on a card whose settings of recompute are settled."""
    dtype = dtype_on(config.run.dtype, properties)
    values, optimizer = number_bytes(config, dtype)
    work = workload(config.run, properties, layout, state=0, trained=_with_gradients(config))
    return RunMemory(
        numbers=values + optimizer,
        optimizer=optimizer,
        effective=_effective(config, dtype),
        passes=estimate(work, Device(properties=properties, memory=0)).peak,
    )


def _effective(config: FinetuneConfig, dtype: torch.dtype) -> int:
    """Return the bytes of weights that are computed from low-rank changes, and of their gradients.

    Gradients of all effective weights are there at once: autograd carries them on to A and B last, since it made these
    weights first. The product B A is there together with the weights that it is added to.
    """
    shapes = model_shapes(config.run.model)
    changed = [math.prod(shapes[name]) for name in _with_gradients(config) or ()] if config.adapter == "lora" else []
    return 2 * sum(changed) * dtype.itemsize + max(changed, default=0) * 2 * _FLOAT


def number_bytes(config: FinetuneConfig, dtype: torch.dtype) -> tuple[int, int]:
    """Return the bytes of what is trained, and those of its gradients, moments and averages (`FlatOptimizer`).

    They are both moments, the average, the sum of gradients and, for some settings, the gradient of a micro-batch.
    """
    numbers = sum(-(-math.prod(shape) // LINE) * LINE for shape in _trained_shapes(config).values())
    rounded = config.adapter == "full" and dtype != torch.float32
    by_sample = config.run.optimizer.clipping == "sample"
    of_micro_batch = (dtype.itemsize if rounded else _FLOAT) if by_sample or rounded else 0
    return numbers * (_FLOAT + (dtype.itemsize if rounded else 0)), numbers * (4 * _FLOAT + of_micro_batch)


def with_settled_memory(
    config: FinetuneConfig, properties: DeviceProperties, memory: int, layout: Layout = ALONE
) -> FinetuneConfig:
    """Replace every "auto" of recompute by the fastest policy with which the run fits alone into `memory` bytes.

    Raise `ConfigError` if no policy fits.
    """
    if config.run.recompute.is_settled:
        return config
    dtype = dtype_on(config.run.dtype, properties)
    shared = 0 if config.adapter == "full" else parameter_bytes(config.run.model, dtype)
    state = shared + sum(number_bytes(config, dtype)) + _effective(config, dtype)
    work = workload(config.run, properties, layout, state=state, trained=_with_gradients(config))
    recompute = estimate(work, Device(properties=properties, memory=memory)).settled()
    return replace(config, run=replace(config.run, recompute=recompute))


def fitting(waiting: Sequence[RunMemory], running: Sequence[RunMemory], shared: int, memory: int) -> int:
    """Return how many of the `waiting` fine-tunings, in their order, fit into `memory` bytes beside the `running` ones.

    All share `shared` bytes, and only one makes a step at a time.
    """
    for count in range(len(waiting), 0, -1):
        together = [*running, *waiting[:count]]
        if shared + sum(each.numbers for each in together) + max(each.running for each in together) <= memory:
            return count
    return 0


@cache
def _with_gradients(config: FinetuneConfig) -> frozenset[str] | None:
    """Return the names of the parameters of the model that have gradients, None for all of them.

    Low-rank changes have those of the weights that they change.
    """
    if config.adapter == "lora":
        return frozenset(f"{name}.weight" for name in config.low_rank.matching_maps(model_shapes(config.run.model)))
    return frozenset(_trained_shapes(config)) if config.adapter == "heads" else None


@cache
def _trained_shapes(config: FinetuneConfig) -> dict[str, tuple[int, ...]]:
    shapes = dict(model_shapes(config.run.model))
    if config.adapter == "full":
        return shapes
    if config.adapter == "heads":
        return {name: shape for name, shape in shapes.items() if name.startswith(HEADS)}
    rank = config.low_rank.rank
    trained: dict[str, tuple[int, ...]] = {}
    for name in config.low_rank.matching_maps(shapes):
        outputs, inputs = shapes[f"{name}.weight"]
        trained |= {f"{name}.{LORA_A}": (rank, inputs), f"{name}.{LORA_B}": (outputs, rank)}
        if config.low_rank.decomposed:
            trained[f"{name}.{MAGNITUDE}"] = (outputs,)
    return trained
