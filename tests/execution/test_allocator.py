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
from helixfold.execution.allocator import (
    SLABS_MMAP_THRESHOLD,
    keeping_freed_memory,
    return_free_memory,
    returning_freed_memory,
)

# Tests that read the memory and page faults of the process are in the long tier.
SIZE = 48 * 2**20
# More than any block that was freed before and lies in the heap still.
LARGE = 192 * 2**20
PAGE = resource.getpagesize()

needs_glibc = pytest.mark.skipif(allocator.unsupported_reason() is not None, reason=str(allocator.unsupported_reason()))


def faults(size: int) -> int:
    """How many pages the system has to give for a tensor of a size of which many were freed before."""
    for _ in range(12):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(size // 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def held() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


class Malloc:
    """The C library as far as settings of its allocator are concerned: it records them, and allows large blocks or not.

    `largest` is the highest threshold that it accepts.
    """

    def __init__(self, largest: int = 2**40) -> None:
        self.largest, self.trims, self.settings = largest, 0, dict[str, int]()

    def mallopt(self, parameter: int, value: int) -> int:
        (name,) = (name for name, number in allocator._PARAMETERS.items() if number == parameter)
        if name == "mmap_threshold" and value > self.largest:
            return 0
        self.settings[name] = value
        return 1

    def malloc_trim(self, pad: int) -> int:
        assert pad == 0
        self.trims += 1
        return 1


@pytest.fixture
def malloc(monkeypatch: pytest.MonkeyPatch) -> Malloc:
    found = Malloc()
    monkeypatch.setattr(allocator, "unsupported_reason", lambda: None)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: found)
    return found


def test_the_innermost_setting_is_in_force_and_the_earlier_one_comes_back(malloc: Malloc) -> None:
    never = -1
    with keeping_freed_memory():
        kept = dict(malloc.settings)
        assert kept["trim_threshold"] == never
        assert (kept["mmap_threshold"], kept["top_pad"]) == (allocator.WHOLE_MMAP_THRESHOLD, allocator.TOP_PAD)
        with returning_freed_memory():
            assert 0 <= malloc.settings["trim_threshold"] <= 2**16
            assert malloc.settings["mmap_threshold"] <= 2**16
            assert malloc.settings["top_pad"] == 0
        assert malloc.settings == kept
        with keeping_freed_memory(mmap_threshold=SLABS_MMAP_THRESHOLD, top_pad=0):
            assert (malloc.settings["mmap_threshold"], malloc.settings["top_pad"]) == (SLABS_MMAP_THRESHOLD, 0)
        assert malloc.settings == kept
    assert malloc.settings["mmap_threshold"] == 32 * 2**20
    assert malloc.settings["trim_threshold"] == 64 * 2**20


def test_an_error_inside_restores_the_earlier_setting(malloc: Malloc) -> None:
    with pytest.raises(KeyError), keeping_freed_memory():
        raise KeyError
    assert malloc.settings["mmap_threshold"] == 32 * 2**20


def test_free_memory_is_returned_when_a_context_ends_and_when_asked_for(malloc: Malloc) -> None:
    with keeping_freed_memory():
        before = malloc.trims
        return_free_memory()
        assert malloc.trims == before + 1
    assert malloc.trims == before + 2


def test_where_large_blocks_must_be_mapped_alone_none_are(malloc: Malloc) -> None:
    malloc.largest = 32 * 2**20
    with keeping_freed_memory():
        assert malloc.settings["mmap_max"] == 0
    assert malloc.settings["mmap_max"] > 0


@needs_glibc
@pytest.mark.long
def test_a_tensor_takes_the_memory_that_another_left() -> None:
    with keeping_freed_memory():
        assert faults(SIZE) < 100
        with returning_freed_memory():
            assert faults(LARGE) > LARGE / PAGE / 2
        assert faults(SIZE) < 100


@needs_glibc
@pytest.mark.long
def test_only_blocks_up_to_the_largest_are_kept() -> None:
    with keeping_freed_memory(mmap_threshold=SLABS_MMAP_THRESHOLD):
        before = held()
        torch.ones(LARGE // 4)
        assert held() < before + LARGE / 4
        small = [torch.ones(SLABS_MMAP_THRESHOLD // 8) for _ in range(12)]
        del small
        assert held() > before + LARGE / 4


@needs_glibc
@pytest.mark.long
def test_a_larger_block_finds_room_where_a_heap_grew_ahead() -> None:
    # In a process whose heap has no holes from other tests.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        assert not fresh.submit(is_kept_of_a_larger_block, 0).result()
        assert fresh.submit(is_kept_of_a_larger_block, 4 * SIZE).result()


def is_kept_of_a_larger_block(top_pad: int) -> bool:
    with keeping_freed_memory(mmap_threshold=2**20, top_pad=top_pad):
        grown = [torch.ones(2**16) for _ in range(64)]
        before = held()
        torch.ones(SIZE // 4)
        return held() > before + SIZE / 2 and len(grown) == 64


@needs_glibc
@pytest.mark.long
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
    assert allocator.unsupported_reason() == "darwin has no glibc"
    with keeping_freed_memory():
        return_free_memory()


def test_few_kernels_are_kept_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "77")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    allocator.keep_few_kernels()
    assert os.environ["LRU_CACHE_CAPACITY"] == "77"
    assert os.environ.pop("ONEDNN_PRIMITIVE_CACHE_CAPACITY") == "48"
