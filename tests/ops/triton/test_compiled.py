"""Launches on meta tensors are seen with their arguments, and compiled only where kernels are not interpreted."""

from typing import Any

import pytest
import torch

from helixfold.ops.device_properties import DEVICE_MODELS, simulated_device
from helixfold.ops.linear import layer_norm
from helixfold.ops.triton.compiled import compiled_launches
from helixfold.ops.triton.language import watched
from helixfold.ops.weights import Affine


def normalise(x: torch.Tensor) -> torch.Tensor:
    norm = Affine(*(x.new_empty(x.shape[-1], dtype=torch.float32) for _ in range(2)))
    with simulated_device(DEVICE_MODELS["h200"]):
        return layer_norm(x, norm)


def test_launches_are_seen_inside_the_context_only() -> None:
    x = torch.empty(1, 6, 7, 128, dtype=torch.bfloat16, device="meta")
    seen: list[tuple[str, tuple[int, ...], Any]] = []
    outer: list[str] = []
    with watched(lambda kernel, *_: outer.append(kernel.name)):
        with watched(lambda kernel, grid, args, _: seen.append((kernel.name, grid, args[0]))):
            normalise(x)
        assert not outer
        normalise(x)
    normalise(x)
    ((name, grid, first),) = seen
    assert (name, first.shape, len(outer)) == ("_forward", x.shape, 1)
    assert grid[0] > 0


def test_interpreted_kernels_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="cannot be compiled because TRITON_INTERPRET is set"), compiled_launches(90):
        pass
