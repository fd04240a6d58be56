"""Freed memory is kept or given back as asked, and the setting from before comes back."""

import ctypes
import os
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from helixfold.execution import allocator
from helixfold.execution.allocator import OF_SLABS, keeping_freed_memory, return_free_memory, returning_freed_memory

SIZE = 48 * 2**20
# More than any block that was freed before and lies in the heap still.
LARGE = 192 * 2**20
PAGE = resource.getpagesize()

needs_glibc = pytest.mark.skipif(allocator.refusal() is not None, reason=str(allocator.refusal()))


def faults(size: int) -> int:
    """How many pages the system has to give for a tensor of a size of which many were freed before."""
    for _ in range(12):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(size // 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def held() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@needs_glibc
def test_a_tensor_takes_the_memory_that_another_left() -> None:
    with keeping_freed_memory():
        assert faults(SIZE) < 100
        with returning_freed_memory():
            assert faults(LARGE) > LARGE / PAGE / 2
        assert faults(SIZE) < 100


@needs_glibc
def test_only_blocks_up_to_the_largest_are_kept() -> None:
    with keeping_freed_memory(largest=OF_SLABS):
        before = held()
        torch.ones(LARGE // 4)
        assert held() < before + LARGE / 4
        small = [torch.ones(OF_SLABS // 8) for _ in range(12)]
        del small
        assert held() > before + LARGE / 4


@needs_glibc
def test_a_larger_block_finds_room_where_a_heap_grew_ahead() -> None:
    # In a process whose heap has no holes from other tests.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        assert not fresh.submit(is_kept_of_a_larger_block, 0).result()
        assert fresh.submit(is_kept_of_a_larger_block, 4 * SIZE).result()


def is_kept_of_a_larger_block(ahead: int) -> bool:
    with keeping_freed_memory(largest=2**20, ahead=ahead):
        grown = [torch.ones(2**16) for _ in range(64)]
        before = held()
        torch.ones(SIZE // 4)
        return held() > before + SIZE / 2 and len(grown) == 64


@needs_glibc
def test_what_was_kept_is_given_back_at_the_end() -> None:
    return_free_memory()
    before = held()
    with keeping_freed_memory():
        torch.ones(SIZE // 4)
        assert held() > before + SIZE / 2
        return_free_memory()
        assert held() < before + SIZE / 2
        torch.ones(SIZE // 4)
    assert held() < before + SIZE / 2


def test_elsewhere_nothing_is_done_and_a_reason_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: pytest.fail("it was told"))
    assert allocator.refusal() == "darwin has no glibc"
    with keeping_freed_memory():
        return_free_memory()


def test_few_kernels_are_kept_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "77")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    allocator.keep_few_kernels()
    assert os.environ["LRU_CACHE_CAPACITY"] == "77"
    assert os.environ.pop("ONEDNN_PRIMITIVE_CACHE_CAPACITY") == "48"
