"""What an operator's case allocates and returns, counted on real tensors or on meta tensors."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from helixfold.benchmark.op_cases import OpCase
from helixfold.execution.counter import Counter
from helixfold.execution.nested import tensors


@dataclass(frozen=True)
class Metered:
    """Bytes held after each pass and at most during it, and shape, strides and dtype of all results."""

    live: list[int]
    peak: list[int]
    results: list[tuple[torch.Size, tuple[int, ...], torch.dtype]]
    launches: int


def metered(case: OpCase, place: AbstractContextManager[object], *, gradients: bool) -> Metered:
    """Run a case, and its backward pass if gradients are wanted, inside `place`.

    It is run once before that, so that tables which operators keep are not counted.
    """
    with place, torch.set_grad_enabled(gradients):
        if not case.in_place:
            case()
        with Counter() as counter:
            return _counted(case, counter, gradients=gradients)


def _counted(case: OpCase, counter: Counter, *, gradients: bool) -> Metered:
    outputs = case()
    live, peak, found = [counter.live], [counter.peak], list(outputs)
    if gradients:
        counter.begin("backward")
        incoming = [torch.ones_like(each) for each in outputs]
        found += torch.autograd.grad(outputs, case.leaves(), incoming)
        live.append(counter.live)
        peak.append(counter.peak)
    return Metered(live, peak, [(each.shape, each.stride(), each.dtype) for each in found], counter.launches)


def with_some_masked(case: OpCase) -> OpCase:
    """The same case with zeros in its masks: on meta tensors some are assumed."""
    for mask in masks(case):
        mask[..., 0] = 0
    return case


def masks(case: OpCase) -> list[Tensor]:
    return [
        each for _, given in case.calls for each in tensors(given) if not each.requires_grad and each.ndim in (2, 3)
    ]
