"""What operators keep for their gradients changes no number, and only what is asked for is kept."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from helixfold.ops import precision
from helixfold.ops.cpu import outer_product as outer_product_module
from helixfold.ops.cpu import self_attention as self_attention_module
from helixfold.ops.cpu import transition as transition_module
from helixfold.ops.cpu import triangle as triangle_module
from helixfold.ops.dispatch import forced
from helixfold.ops.outer_product import outer_product_mean
from helixfold.ops.recomputed import Intermediates, SavedIntermediates, intermediates
from helixfold.ops.self_attention import self_attention
from helixfold.ops.transition import transition
from helixfold.ops.triangle import triangle_update
from helixfold.ops.weights import SelfAttentionWeights, TransitionWeights, TriangleWeights
from tests.ops.comparing import affine, mask, norm

Run = Callable[[Tensor], Tensor]
Case = tuple[Run, int, list[Tensor]]


def leaves(given: Any) -> list[Tensor]:
    """The tensors that learn among weights and arguments."""
    if isinstance(given, tuple):
        return [leaf for each in given for leaf in leaves(each)]
    return [given] if isinstance(given, Tensor) and given.requires_grad else []


def run_transition() -> tuple[Run, list[Tensor]]:
    weights = TransitionWeights(norm(32), affine(64, 32), affine(32, 64))
    return lambda x: transition(x, weights), leaves(weights)


def run_self_attention() -> tuple[Run, list[Tensor]]:
    weights = SelfAttentionWeights(norm(32), affine(96, 32, bias=False), affine(32, 32), affine(32, 32))
    given = mask(2, 24, 24), torch.randn(2, 2, 24, 24).requires_grad_()
    return lambda x: self_attention(x, *given, weights, 2), leaves((given, weights))


def run_triangle_update() -> tuple[Run, list[Tensor]]:
    weights = TriangleWeights(norm(32), affine(16, 32), affine(16, 32), norm(16), affine(32, 16), affine(32, 32))
    right, right_gate, given = affine(16, 32), affine(16, 32), mask(2, 24, 24)
    learned = leaves((right, right_gate, weights))
    return lambda x: triangle_update(x, given, right, right_gate, weights), learned


def run_outer_product_mean() -> tuple[Run, list[Tensor]]:
    out, ones = affine(32, 64), torch.ones(2, 24, 24)

    def run(x: Tensor) -> Tensor:
        return outer_product_mean(x[..., :8], x[..., 8:16], ones, ones, out)

    return run, leaves(out)


RUNS = {
    "transition": (run_transition, 2 * 24 * 24 * 64),
    "self-attention": (run_self_attention, 2 * 24 * 24 * 32),
    "triangle update": (run_triangle_update, 2 * 24 * 24 * 16),
    "outer product mean": (run_outer_product_mean, 2 * 24 * 24 * 64),
}


@pytest.fixture(params=RUNS)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    """An operator on a stream [2, 24, 24, 32], the minimum number of elements it can keep, and its trained tensors.

    Each has several blocks of both samples, not all of one size.
    """
    monkeypatch.setattr(outer_product_module, "_TILE_ROWS", 5)
    monkeypatch.setattr(outer_product_module, "_TILE_ELEMENTS", 5 * 5 * 64)
    monkeypatch.setattr(transition_module, "_HIDDEN_ELEMENTS", 500 * 64)
    monkeypatch.setattr(self_attention_module, "_BLOCK_BYTES", 10 * 24 * 128 * 2)
    monkeypatch.setattr(triangle_module, "_MIN_ROWS", 5)
    monkeypatch.setattr(triangle_module, "_BYTES", 1)
    monkeypatch.setattr(outer_product_module, "_SAVED_SEQUENCES", 1)
    monkeypatch.setattr(self_attention_module, "_SAVED_CHANNELS", 1)
    make, elements = RUNS[request.param]
    run, learned = make()
    return run, elements, learned


def stream(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, 24, 24, 32).to(dtype).requires_grad_()


def elements_kept(run: Run, x: Tensor, are: Intermediates) -> int:
    """Elements of the storages that a pass holds for its gradients, the stream apart."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // tensor.itemsize
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), intermediates(are), forced("rows"):
        run(x)
    return sum(storages.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_the_same_bit_for_bit(case: Case, dtype: torch.dtype) -> None:
    x = stream(dtype)

    def gradient(run: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        with forced("rows"):
            result = run(x)
            return result, *torch.autograd.grad(result, [x, *case[2]], result.detach().clone())

    def recomputed(x: Tensor) -> Tensor:
        with intermediates("recomputed"):
            return case[0](x)

    def checkpointed(x: Tensor) -> Tensor:
        result: Tensor = checkpoint(
            case[0], x, use_reentrant=False, context_fn=lambda: (intermediates("replaced"), intermediates("kept"))
        )
        return result

    expected = gradient(case[0])
    assert expected[1].count_nonzero() > expected[1].numel() // 3
    for run in (recomputed, checkpointed):
        assert all(torch.equal(*pair) for pair in zip(gradient(run), expected, strict=True)), run.__name__


def test_gradients_can_be_computed_twice(case: Case) -> None:
    """Nothing that is kept is overwritten."""
    x = stream()
    with forced("rows"):
        result = case[0](x)
    inputs = [x, *case[2]]
    first, second = (torch.autograd.grad(result, inputs, result.detach(), retain_graph=True) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_results_are_kept_unless_they_are_recomputed(case: Case) -> None:
    run, elements, _ = case
    x = stream()
    without = elements_kept(run, x, "recomputed")
    assert elements_kept(run, x, "kept") >= without + elements
    assert elements_kept(run, x, "replaced") < without + 64


def test_projections_of_many_channels_are_kept_in_lower_precision_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_NO_PRODUCTS", set())
    run, _ = run_self_attention()
    monkeypatch.setattr(self_attention_module, "_SAVED_CHANNELS", 16)
    kept = [
        elements_kept(run, x, "kept") - elements_kept(run, x, "recomputed") for x in (stream(), stream(torch.bfloat16))
    ]
    assert kept == [2 * 24 * 24 * 32, 2 * 24 * 24 * (4 * 32 + 32)]
    monkeypatch.setattr(self_attention_module, "_SAVED_CHANNELS", 17)
    assert elements_kept(run, stream(torch.bfloat16), "kept") < kept[1]


def test_outer_products_of_few_sequences_are_recomputed() -> None:
    x, run = stream(), run_outer_product_mean()[0]
    assert elements_kept(run, x, "kept") == elements_kept(run, x, "recomputed")


def test_a_pass_without_gradients_keeps_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers: list[Tensor | None] = []
    buffer = SavedIntermediates.buffer

    def remembered(kept: SavedIntermediates, *shape: int, like: Tensor) -> Tensor | None:
        buffers.append(buffer(kept, *shape, like=like))
        return buffers[-1]

    monkeypatch.setattr(SavedIntermediates, "buffer", remembered)
    with forced("rows"), torch.no_grad():
        case[0](stream())
    assert buffers
    assert all(each is None for each in buffers)
    with forced("rows"):
        case[0](stream())
    assert any(each is not None for each in buffers)
