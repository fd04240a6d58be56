"""Loops compute what they take where streams are large; no loop is compiled here."""

import pytest
import torch

from helixfold.ops import sizes
from helixfold.ops.cpu import loops
from helixfold.ops.cpu.loops import compiled, numba_bytes
from helixfold.ops.device_properties import DEVICE_MODELS, simulated_device
from helixfold.ops.sizes import loops_if_large


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a module of loops, its name; streams of a hundred elements are large."""
    monkeypatch.setattr(loops, "unsupported_reason", lambda: None)
    monkeypatch.setattr(loops, "_module", lambda name: name)
    monkeypatch.setattr(sizes, "LARGE_STREAM", 100)


def test_loops_take_float32_and_bfloat16_whose_last_dim_is_dense() -> None:
    x = torch.ones(3, 4)
    with loops_if_large(7, 100):
        assert compiled("sums", x, None, x.bfloat16(), x[:, :2]) == "sums"
        for other in (x.double(), x.half(), x.mT, x[:, ::2], x[:0], x.to("meta")):
            assert compiled("sums", x, other) is None
        assert compiled("sums", x, x.bfloat16(), one_dtype=True) is None
        assert compiled("sums", x, None, x, one_dtype=True) == "sums"


def test_nothing_is_compiled_for_small_streams_described_cards_or_without_numba(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.ones(3, 4)
    with loops_if_large(99):
        assert compiled("sums", x) is None
    with loops_if_large(100):
        with loops_if_large(1):  # a slab of the large stream
            assert compiled("sums", x) == "sums"
        with simulated_device(DEVICE_MODELS["cpu"]):
            assert compiled("sums", x) is None
        monkeypatch.setattr(loops, "unsupported_reason", lambda: "Numba is not installed")
        assert compiled("sums", x) is None
    assert not sizes.loops_may_compute()


def test_numba_takes_memory_only_where_loops_may_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "find_spec", lambda _: object())
    assert (numba_bytes(99), numba_bytes(7, 100)) == (0, 124 * 2**20)
    monkeypatch.setattr(loops, "find_spec", lambda _: None)
    assert numba_bytes(100) == 0
