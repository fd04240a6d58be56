"""Without a GPU, kernels run in Triton's interpreter, which computes in bfloat16 as a GPU does."""

import gc
from collections.abc import Iterator

import pytest
import torch

from tests.ops.triton import conftest

bfloat16_as_on_a_gpu = conftest.bfloat16_as_on_a_gpu


@pytest.fixture(autouse=True)
def gpu_memory_for_others() -> Iterator[None]:
    """Give freed memory back after each test, so that several processes can share a GPU."""
    yield
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


@pytest.fixture(autouse=True, scope="module")
def operators(operators_on_small_tensors: None) -> None:
    """Compare operators, not plain PyTorch with itself."""
