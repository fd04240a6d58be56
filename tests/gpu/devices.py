"""Where the tests of this folder run: at small sizes on a CPU, at a network's on a GPU, by the same functions."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

WITHOUT = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, WITHOUT])]


def on_devices(small: Sequence[Any], real: Sequence[Any]) -> list[Any]:
    """Parameters (device, size): the CPU with small sizes, a GPU with real ones."""
    return [
        *(pytest.param("cpu", size, id=f"cpu-{size}") for size in small),
        *(pytest.param("cuda", size, id=f"cuda-{size}", marks=[pytest.mark.gpu, WITHOUT]) for size in real),
    ]
