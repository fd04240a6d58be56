"""Gradients of small networks."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def operators(operators_on_small_tensors: None) -> None:
    """Compare operators, not plain PyTorch with itself."""
