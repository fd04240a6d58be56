"""Loops that Numba compiles: when they compute, what they compute at the edges, and where they are kept."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.resources import files
from itertools import product as product_of
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helixfold.execution.slabs import Slabs
from helixfold.model.layers import Transition
from helixfold.ops import sizes
from helixfold.ops.cpu import loops
from helixfold.ops.cpu.attention import AttentionBlock
from helixfold.ops.cpu.blocks import Scratch
from helixfold.ops.cpu.loops import compiled
from helixfold.ops.device_properties import DEVICE_MODELS, simulated_device
from helixfold.ops.sizes import loops_if_large

if (reason := loops.unsupported_reason()) is not None:
    pytest.skip(reason, allow_module_level=True)

from helixfold.ops.cpu.compiled import (
    channels_first,
    elements,
    norm_map,
    products,
    softmax,
    sums,
    threads,
)
from helixfold.ops.cpu.compiled.elements import FEATURES
from helixfold.ops.cpu.compiled.register_products import narrow_product, wide_product

DTYPES = (torch.float32, torch.bfloat16)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def passes() -> None:
    """In place of the folder's fixture: these tests choose by themselves."""


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def relative(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def test_only_large_streams_and_their_slabs_are_computed_by_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "LARGE_STREAM", 100)
    x = torch.ones(3, 4)
    assert compiled("sums", x) is None
    with loops_if_large(99):
        assert compiled("sums", x) is None
        with loops_if_large(7, 100):
            assert compiled("sums", x) is sums
            with loops_if_large(1):
                assert compiled("sums", x) is sums
        assert compiled("sums", x) is None
    monkeypatch.setattr(sizes, "LARGE_STREAM", None)
    with loops_if_large(10**9):
        assert compiled("sums", x) is None


def test_what_loops_do_not_take_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "LARGE_STREAM", 0)
    x = torch.ones(3, 4)
    with loops_if_large(1):
        assert compiled("sums", x.double()) is None
        assert compiled("sums", x.half()) is None
        assert compiled("sums", x.mT) is None
        assert compiled("sums", x[:0]) is None
        assert compiled("sums", x, x.bfloat16(), one_dtype=True) is None
        assert compiled("sums", x, None, x.bfloat16()) is sums
        with simulated_device(DEVICE_MODELS["cpu"]):
            assert compiled("sums", x) is None
        monkeypatch.setattr(loops, "unsupported_reason", lambda: "Numba is not installed")
        assert compiled("sums", x) is None


def test_a_slab_is_computed_as_its_whole_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def remember(name: str, *_: object, **__: object) -> None:
        taken.append((name, sizes.loops_may_compute()))

    monkeypatch.setattr("helixfold.ops.cpu.fused_norm.compiled", remember)
    update, stream = Transition(8, 4), torch.randn(1, 6, 50, 8)
    for least in (stream.numel(), stream.numel() + 1):
        monkeypatch.setattr(sizes, "LARGE_STREAM", least)
        with torch.no_grad():
            Slabs(rows=2)(update, stream, torch.ones(1, 6, 50))
    assert taken == [("norm_map", True)] * 3 + [("norm_map", False)] * 3


def test_exponentials_and_sigmoids_are_exact_to_float32_and_finite_everywhere() -> None:
    x = np.concatenate([np.linspace(-87, 88, 20_001), [0.0, -1e9, -np.inf]]).astype(np.float32)
    found = np.array([elements.exp(each) for each in x])
    exact = np.exp(x.astype(np.float64))
    assert np.all(np.abs(found - exact) <= 2e-7 * exact + 2e-38)
    wide = np.concatenate([x, [1e9, np.inf]]).astype(np.float32)
    found = np.array([elements.sigmoid(each) for each in wide])
    exact = 1 / (1 + np.exp(-np.clip(wide.astype(np.float64), -700, 700)))
    assert np.all(np.abs(found - exact) <= 2e-7 * exact + 2e-38)
    assert np.isnan(elements.exp(np.float32(np.nan)))
    assert np.isnan(elements.sigmoid(np.float32(np.nan)))


def test_what_loops_call_is_compiled_alike_whoever_compiles_it_first() -> None:
    """Without options of its own a function has those of its first caller: a gate took ten times as long after one call
    from Python, with the check for a division by zero.
    """
    found = [
        (name, value.targetoptions)
        for file in files("helixfold.ops.cpu.compiled").iterdir()
        if file.name.endswith(".py") and not file.name.startswith("_")
        for name, value in vars(import_module(f"helixfold.ops.cpu.compiled.{file.name[:-3]}")).items()
        if hasattr(value, "targetoptions")
    ]
    assert {"read", "write", "exp", "sigmoid", "product"} <= {name for name, _ in found}
    for name, options in found:
        assert options.get("error_model") == "numpy", name
        assert "fastmath" in options, name


def test_a_numba_that_cannot_be_used_is_a_reason_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError("Numba needs NumPy 1.21 or less")

    unsupported_reason = loops.unsupported_reason.__wrapped__
    assert unsupported_reason() is None
    with monkeypatch.context() as patch:
        patch.setattr(loops, "import_module", fail)
        assert unsupported_reason() == "Numba cannot be imported: Numba needs NumPy 1.21 or less"
    with monkeypatch.context() as patch:
        patch.setattr(loops, "find_spec", lambda _: None)
        assert unsupported_reason() == "Numba is not installed (pip install 'helixfold[fast]')"
    with monkeypatch.context() as patch:
        patch.setattr("numba.config.DISABLE_JIT", 1)
        assert unsupported_reason() == "NUMBA_DISABLE_JIT is set"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (16, 16), (15, 40), (33, 17), (300, 8)])
def test_transposed_matrices_are_exact(dtype: torch.dtype, height: int, width: int) -> None:
    x = torch.randn(height, width + 3).to(dtype)[:, :width]
    assert torch.equal(products.transposed(x), x.mT)


# Odd numbers of columns, several blocks of rows, terms in several parts.
@pytest.mark.skipif(not products.MULTIPLIES, reason="this processor multiplies by PyTorch's products")
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 8), (130, 129, 72), (5, 1_300, 104), (131, 1, 61), (97, 40, 3)])
def test_products_of_any_strides_are_those_of_pytorch(
    turned: tuple[bool, bool], m: int, k: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = torch.randn(2, k, m).mT if turned[0] else torch.randn(2, m, k)
    right = torch.randn(2, n, k).mT if turned[1] else torch.randn(2, k, n)
    # Rows farther apart than their length.
    out = torch.full((2, m, n + 3), float("nan"))[..., :n]
    exact = left.double() @ right.double()
    for packed in (2**20, 2**16):
        monkeypatch.setattr(products, "_PACKED_ELEMENTS", packed)
        products.write_products(left, right, out)
        assert torch.allclose(out.double(), exact, atol=2e-4)
        products.write_products(left, right, out, add=True)
        assert torch.allclose(out.double(), 2 * exact, atol=4e-4)
        bias = torch.randn(n, 2)[:, 0]
        products.write_products(left, right, out, bias=bias)
        assert torch.allclose(out.double(), exact + bias, atol=2e-4)
        products.write_products(left, right, out, bias=bias, relu=True)
        assert torch.allclose(out.double(), (exact + bias).relu(), atol=2e-4)


@pytest.mark.skipif("fma" not in FEATURES, reason="vectors of this width are for x86-64")
@pytest.mark.parametrize("make", [narrow_product, lambda: wide_product(4)], ids=["8 wide", "16 wide"])
def test_products_in_registers_have_every_row_and_column(make: Callable[[], Any]) -> None:
    product = make()
    for rows, columns in product_of(range(1, 16), (8, 16, 24, 56, 120)):
        left, right = torch.randn(rows, 9), torch.randn(5, columns)
        out = torch.full((rows, columns), float("nan"))
        # Every second column of the left matrix.
        places = left.data_ptr(), 9, 2, right.data_ptr(), columns, 5, out.data_ptr(), columns
        product(*places, rows, columns, 0, 0, 0)
        exact = left.double()[:, ::2] @ right.double()
        assert torch.allclose(out.double(), exact, atol=1e-5)
        product(*places, rows, columns, out.data_ptr(), columns, 0)
        assert torch.allclose(out.double(), 2 * exact, atol=2e-5)
        row = torch.randn(columns)
        product(*places, rows, columns, row.data_ptr(), 0, 1)
        assert torch.allclose(out.double(), (exact + row).relu(), atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 70), (65, 129)])
@pytest.mark.parametrize("turned", [False, True])
def test_sums_of_rows_are_added_in_float32(dtype: torch.dtype, height: int, width: int, turned: bool) -> None:
    x = (torch.randn(width, height).mT if turned else torch.randn(height, width)).to(dtype)
    found = torch.ones(height)
    sums.add_row_sums(found, x)
    assert torch.allclose(found.double(), 1 + x.double().sum(1), atol=1e-4)


def heads(n: int, h: int, q: int, c: int, dtype: torch.dtype) -> Tensor:
    """Heads as parts of projections, whose channels are farther apart than their number."""
    return torch.randn(n, q, 2, h, c).to(dtype)[:, :, 1].transpose(1, 2)


# One query or key, odd numbers of both, several parts of the queries, channels of keys other than those of values.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 1, 8, 8),
        (5, 3, 19, 23, 8, 8),
        (3, 2, 37, 64, 16, 32),
        (2, 1, 131, 1_101, 32, 8),
        (7, 4, 17, 31, 40, 72),
    ],
)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.usefixtures("three_threads")
def test_attention_of_odd_sizes_is_that_in_float64(
    dtype: torch.dtype, shape: Sequence[int], biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, h, q, k, d, c = shape
    query, key = heads(n, h, q, d, dtype) * d**-0.5, heads(n, h, k, d, dtype)
    value, gradient = heads(n, h, k, c, dtype), heads(n, h, q, c, dtype)
    bias = torch.randn(h, q, k).to(dtype) if biased else None
    mask_bias = 1e9 * ((torch.rand(n, k) > 0.2).float() - 1) if biased else None
    block = AttentionBlock(query=query, key=key, value=value, mask_bias=mask_bias, bias=bias, scratch=Scratch(CPU))
    found = torch.full_like(gradient, float("nan"))
    again = torch.full_like(gradient, float("nan"))
    grads = tuple(torch.full_like(each, float("nan")) for each in (query, key, value))
    grad_bias = torch.full((h, q, k), 1e-3) if biased else None
    monkeypatch.setattr(sizes, "LARGE_STREAM", 0)
    with loops_if_large(1):
        block.forward(found)
        block.backward(gradient, again, grads, grad_bias)

    leaves = [each.double().requires_grad_() for each in (query, key, value)]
    terms = torch.zeros(h, q, k).double() if bias is None else bias.double()
    terms.requires_grad_()
    masked = 0 if mask_bias is None else mask_bias.double()[:, None, None]
    exact = torch.softmax(leaves[0] @ leaves[1].mT + terms + masked, -1) @ leaves[2]
    right = torch.autograd.grad(exact, [*leaves, terms], gradient.double())
    tolerance = 1e-6 if dtype == torch.float32 else 6e-3
    assert relative(found, exact.detach()) < tolerance
    assert relative(again, exact.detach()) < tolerance
    for ours, theirs in zip(grads, right[:3], strict=True):
        # One key has all the weight, and so no gradient.
        assert relative(ours, theirs) < tolerance or float(theirs.norm()) < 1e-9
    if grad_bias is not None and k > 1:
        assert relative(grad_bias - 1e-3, right[3]) < tolerance


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("biased", [True, False])
def test_the_softmax_and_its_gradient_are_those_in_float64(dtype: torch.dtype, biased: bool) -> None:
    n, h, q, k = 3, 2, 5, 37
    logits, gradient = (torch.randn(n * h, q, k).to(dtype) for _ in range(2))
    bias = torch.randn(h, q, k).to(dtype) if biased else None
    mask_bias = torch.randn(n, k) if biased else None
    terms = torch.zeros(1, h, q, k).double() if bias is None else bias.double()[None]
    if mask_bias is not None:
        terms = terms + mask_bias.double()[:, None, None]
    leaf = logits.double().view(n, h, q, k).requires_grad_()
    exact = torch.softmax(leaf + terms, -1)
    softmax.write_softmax(logits, bias, mask_bias, h)
    tolerance = 1e-6 if dtype == torch.float32 else 6e-3
    assert relative(logits.view(n, h, q, k), exact.detach()) < tolerance
    (right,) = torch.autograd.grad(exact, leaf, gradient.double().view(n, h, q, k))
    grad_bias = torch.full((h, q, k), 1e-3) if biased else None
    softmax.write_gradient(gradient, logits, grad_bias, h)
    assert relative(gradient.view(n, h, q, k), right) < 2 * tolerance
    if grad_bias is not None:
        assert relative(grad_bias - 1e-3, right.sum(0)) < 2 * tolerance


def test_where_all_is_masked_the_weights_are_those_of_the_logits() -> None:
    logits = torch.randn(2, 3, 5)
    expected = torch.softmax(logits - 1e9, -1)
    softmax.write_softmax(logits, None, torch.full((2, 5), -1e9), 1)
    assert torch.allclose(logits, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("three_threads")
def test_positions_of_several_tiles_are_normalised_over_their_own_channels(dtype: torch.dtype) -> None:
    channels, rows, columns = 12, 10, 111  # two tiles of 512 positions, and a part of one
    spread = 1 + 3 * torch.rand(rows, columns)
    x = (torch.randn(channels, rows + 1, columns) * 2).to(dtype)[:, :rows]
    x.mul_(spread).add_(5 * torch.randn(rows, columns))
    gradient = torch.randn(channels, rows * columns).to(dtype)
    values, mean, scale = channels_first.normalised(x)
    found = torch.full((channels, rows, columns), float("nan")).to(dtype)
    channels_first.write_normalised_gradient(gradient, x, mean, scale, found)
    leaf = x.double().requires_grad_()
    centred = leaf - leaf.mean(0)
    exact = (centred / (centred.square().mean(0) + 1e-5).sqrt()).view(channels, -1)
    (expected,) = torch.autograd.grad(exact, leaf, gradient.double())
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert relative(values, exact.detach()) < tolerance
    assert relative(found, expected) < tolerance


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_a_number_is_not_hidden_and_spreads_no_farther(dtype: torch.dtype) -> None:
    x = torch.randn(4, 6).to(dtype)
    x[1, 2] = float("nan")
    assert norm_map.normalised(x, dtype)[0].isnan().all(1).tolist() == [False, True, False, False]
    assert channels_first.normalised(x.mT.contiguous()[..., None])[0].isnan().all(0).tolist() == [
        False,
        True,
        False,
        False,
    ]
    logits = torch.randn(1, 4, 6).to(dtype)
    logits[0, 1, 2] = float("nan")
    softmax.write_softmax(logits, None, None, 1)
    assert logits[0].isnan().all(1).tolist() == [False, True, False, False]


@pytest.mark.usefixtures("three_threads")
def test_every_row_is_computed_once_by_some_thread() -> None:
    x = torch.ones(1_000, 1)
    counts = torch.zeros(1_000)
    for _ in range(50):
        sums.add_row_sums(counts, x)
    assert counts.eq(50).all()


PRINT = """
from helixfold.ops.cpu.compiled import sums, threads
print(threads._cache_directory())
"""
COMPILE = """
import torch
found = torch.zeros(3)
sums.add_row_sums(found, torch.ones(3, 4))
assert found.tolist() == [4, 4, 4]
"""


def kept(cache: Path, program: str = PRINT + COMPILE) -> str:
    """Where a process with this cache keeps what it compiles."""
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_compiled_loops_are_kept_in_the_users_cache_and_nowhere_else(tmp_path: Path) -> None:
    directory = Path(kept(tmp_path))
    assert directory.is_relative_to(tmp_path)
    files = sorted(path for path in tmp_path.rglob("*.nb?") if path.is_file())
    assert len(files) > 1
    assert all(path.is_relative_to(directory) for path in files)
    times = [path.stat().st_mtime_ns for path in files]
    kept(tmp_path)
    assert [path.stat().st_mtime_ns for path in files] == times
    assert not list(Path(threads.__file__).parent.rglob("*.nb?"))


def test_loops_that_are_compiled_at_the_same_time_do_not_get_each_others_code(tmp_path: Path) -> None:
    directory = Path(kept(tmp_path, PRINT + COMPILE + "sums.add_row_sums(found, torch.ones(3, 4).bfloat16())"))
    places = [path.parent for path in directory.rglob("*.nbi")]
    assert len([place for place in places if "row_sums" in str(place)]) == 2
    # Numba would number several functions of one directory, each process by what it had read before.
    assert len(set(places)) == len(places) == len(list(directory.rglob("*.nbc")))


def test_compiled_loops_are_not_taken_from_a_directory_that_others_can_write(tmp_path: Path) -> None:
    directory = Path(kept(tmp_path, PRINT))
    assert directory.is_dir()
    directory.chmod(0o775)
    assert kept(tmp_path, PRINT) == "None"


def test_without_a_cache_that_can_be_written_loops_are_compiled_every_time(tmp_path: Path) -> None:
    (tmp_path / "helixfold").write_text("a file where the cache would be")
    assert kept(tmp_path) == "None"
    assert not list(Path(threads.__file__).parent.rglob("*.nb?"))
