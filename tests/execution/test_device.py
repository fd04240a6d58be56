"""Choosing a device."""

import pytest
import torch

from data_pipeline.errors import InputError
from helixfold.execution.device import pick_device


def test_auto_finds_something_that_computes() -> None:
    assert torch.ones(2, device=pick_device()).sum() == 2


@pytest.mark.parametrize("name", ["abacus", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="device"):
        pick_device(name)
