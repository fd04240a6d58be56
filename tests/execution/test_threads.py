"""A peptide is computed in one thread, and all else in as many as there were."""

import pytest
import torch

from helixfold.execution.device import _ELEMENTS_OF_ONE_THREAD, in_threads, threads_for


def test_few_elements_are_for_one_thread_of_a_cpu() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    with in_threads(3):
        assert threads_for(_ELEMENTS_OF_ONE_THREAD, cpu) == 1
        assert threads_for(_ELEMENTS_OF_ONE_THREAD + 1, cpu) == 3
        assert threads_for(1, gpu) == 3


def test_the_threads_are_as_before_in_the_end() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="inside"), in_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ValueError("inside")
    assert torch.get_num_threads() == before
