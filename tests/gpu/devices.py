"""The devices that tests run on: a CPU at small sizes, and a GPU at a network's sizes where there is one."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

# Only machines with a GPU have the parameters for one: elsewhere hundreds of tests would be collected and skipped.
HAS_GPU = torch.cuda.is_available()
DEVICES = ["cpu", *([pytest.param("cuda", marks=pytest.mark.gpu)] if HAS_GPU else [])]


def on_devices(
    small: Sequence[Any], real: Sequence[Any], *, cpu_marks: Sequence[pytest.MarkDecorator] = ()
) -> list[Any]:
    """Return parameters (device, size): the CPU with small sizes, and a GPU, if there is one, with real ones."""
    on_gpu = real if HAS_GPU else ()
    return [
        *(pytest.param("cpu", size, id=f"cpu-{size}", marks=cpu_marks) for size in small),
        *(pytest.param("cuda", size, id=f"cuda-{size}", marks=pytest.mark.gpu) for size in on_gpu),
    ]
