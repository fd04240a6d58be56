"""Operators at small sizes, with gradients."""

from importlib import import_module

import pytest


@pytest.fixture(autouse=True, scope="module")
def operators(operators_on_small_tensors: None) -> None:
    """Compare operators, not plain PyTorch with itself."""


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks even of small arguments on a CPU, with remainders."""
    for module, name, size in (
        ("attention", "_LOGITS_BYTES", 2**13),
        ("attention", "_ROWS_BYTES", 2**15),
        ("attention", "_BIAS_ELEMENTS", 0),
        ("fused_norm", "POSITIONS", 40),
        ("global_attention", "_BLOCK_BYTES", 2**13),
        ("invariant_point", "_BLOCK_ELEMENTS", 2**10),
        ("outer_product", "_TILE_ELEMENTS", 2**13),
        ("outer_product", "_TILE_ROWS", 6),
        ("self_attention", "_BLOCK_BYTES", 2**16),
        ("transition", "_HIDDEN_ELEMENTS", 2**12),
        ("transition", "_LARGE_HIDDEN_ELEMENTS", 2**12),
        ("transition", "_LARGE_STREAM", 2**12),
        ("triangle", "_BYTES", 1),
        ("triangle", "_MIN_ROWS", 6),
        ("triangle", "_PRODUCT_BYTES", 2**12),
    ):
        monkeypatch.setattr(import_module(f"helixfold.ops.cpu.{module}"), name, size)


@pytest.fixture
def small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of gradients over several programs and blocks of rows of Triton's kernels."""
    for name, size in (
        ("attention_gradients._PROGRAMS", 3),
        ("attention_tiles._GROUP", 2),
        ("layer_norm._PROGRAMS", 3),
        ("outer_product_backward._PROGRAMS", 3),
        ("transition._BYTES", 2 * 128 * 4 * 64),
    ):
        monkeypatch.setattr(f"helixfold.ops.triton.{name}", size)
