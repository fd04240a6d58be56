"""Fused attention equals its plain meaning, in value, gradient and precision, at awkward sizes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helixfold.execution.whole import Whole
from helixfold.ops.attention import attention
from helixfold.ops.dispatch import forced, intercepted
from tests.gpu.devices import DEVICES
from tests.ops.comparing import assert_equal, by_triton
from tests.support.networks import random_batch, relative_error, tiny_config, with_every_parameter_random

SIZES = [(1, 1), (7, 7), (63, 65), (65, 7), (1, 65), (65, 1)]
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]


def inputs(queries: int, keys: int, *, b: int = 2, bias: bool = True, masked: str = "some") -> Inputs:
    """Query, key, value, mask and bias of three rows with four heads; `masked` keys: none, some, or a row's all."""
    n, h = 3, 4
    mask = torch.ones(b, n, keys)
    if masked != "none":
        mask = (torch.rand(b, n, keys) > 0.3).float()
        mask[..., 0] = 1
    if masked == "row":
        mask[:, 1] = 0
    return (
        torch.randn(b, n, h, queries, 8),
        torch.randn(b, n, h, keys, 8),
        torch.randn(b, n, h, keys, 8),
        mask,
        2 * torch.randn(b, h, queries, keys) if bias else None,
    )


def cast(given: Inputs, dtype: torch.dtype) -> Inputs:
    query, key, value, mask, bias = given
    return query.to(dtype), key.to(dtype), value.to(dtype), mask, None if bias is None else bias.to(dtype)


def plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, bias: Tensor | None) -> Tensor:
    """The same in the precision of its inputs throughout."""
    logits = query @ key.mT * query.shape[-1] ** -0.5
    if bias is not None:
        logits = logits + bias[:, None]
    logits = logits.masked_fill(mask[:, :, None, None] == 0, -1e9)
    return logits.softmax(-1) @ value


def root_mean_square(difference: Tensor) -> float:
    return float(difference.double().square().mean().sqrt())


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("masked", ["none", "some", "row"])
@pytest.mark.parametrize("backend", ["rows", "sdpa"])
def test_each_backend_equals_the_reference(queries: int, keys: int, bias: bool, masked: str, backend: str) -> None:
    given = inputs(queries, keys, bias=bias, masked=masked)
    with torch.no_grad(), forced(backend) as used:
        found, expected = attention(*given), attention.reference(*given)
    assert used == {"attention": 1}
    assert torch.isfinite(found).all()
    assert relative_error(found, expected) < 1e-5


def test_kernels_compute_keys_of_several_tiles() -> None:
    pytest.importorskip("triton")
    query, key, value, mask, bias = inputs(18, 130, b=1)
    heads = [each[:, :1, :1].requires_grad_() for each in (query, key, value)]
    given = [*heads, mask[:, :1], bias[:, :1].requires_grad_()]
    assert_equal(by_triton(attention), attention.reference, given, 5e-5)


@pytest.mark.parametrize("backend", ["reference", "rows", "sdpa"])
def test_a_row_without_keys_is_the_mean_of_values_beside_large_logits(backend: str) -> None:
    query, key, value, mask, bias = inputs(7, 9, masked="row")
    with torch.no_grad(), forced(backend):
        found = attention(30 * query, key, value, mask, bias)
    assert relative_error(found[:, 1], value[:, 1].mean(-2, keepdim=True).expand_as(found[:, 1])) < 1e-6


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_the_reference_and_its_gradients_equal_float64(queries: int, keys: int, bias: bool) -> None:
    single = cast(inputs(queries, keys, bias=bias), torch.float32)
    double = cast(single, torch.float64)
    weight = torch.randn(2, 3, 4, queries, 8)
    results = []
    for given, function in ((single, attention), (double, plain)):
        differentiable = [each.requires_grad_() for each in (*given[:3], given[4]) if each is not None]
        output = function(*given)
        results.append((output, *torch.autograd.grad((output * weight).sum(), differentiable)))
    for ours, exact in zip(*results, strict=True):
        assert relative_error(ours, exact) < 1e-5 or exact.abs().max() < 1e-12


@pytest.mark.parametrize("masked", ["some", "row"])
def test_masked_keys_get_no_weight(masked: str) -> None:
    query, key, value, mask, bias = inputs(7, 9, masked=masked)
    counted = mask.sum(-1) > 0
    other = torch.where(mask[:, :, None, :, None] == 1, value, 1e3 * torch.randn_like(value))
    with torch.no_grad():
        found, expected = attention(query, key, other, mask, bias), attention(query, key, value, mask, bias)
    assert (found[counted] == expected[counted]).all()
    assert torch.isfinite(expected).all()
    if masked == "row":
        assert not counted.all()
        # Nothing counts, so everything counts alike.
        mean = value.mean(-2, keepdim=True).expand_as(expected)
        torch.testing.assert_close(expected[~counted], mean[~counted])


def test_masked_rows_have_finite_gradients() -> None:
    given = inputs(7, 7, masked="row")
    differentiable = [each.requires_grad_() for each in (*given[:3], given[4])]
    for gradient in torch.autograd.grad(attention(*given).sum(), differentiable):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("masked", ["none", "some", "row"])
@pytest.mark.parametrize("backend", ["rows", "sdpa"])
def test_bfloat16_is_at_most_twice_as_far_off_as_plain_torch(
    queries: int, keys: int, masked: str, backend: str
) -> None:
    given = cast(inputs(queries, keys, masked=masked), torch.bfloat16)
    with torch.no_grad(), forced(backend):
        exact = attention.reference(*cast(given, torch.float32))
        fused, reference = attention(*given), attention.reference(*given)
        allowed = 2 * root_mean_square(plain(*given) - exact)
    assert fused.dtype == reference.dtype == torch.bfloat16
    assert torch.isfinite(fused).all()
    assert root_mean_square(fused - exact) <= allowed
    assert root_mean_square(reference - exact) <= allowed


def test_the_softmax_is_taken_in_float32() -> None:
    """100 and 100.25 are the same in bfloat16, a quarter on its own is not lost."""
    query, key = torch.ones(1, 1, 1, 1, 4), torch.stack([torch.zeros(4), torch.full((4,), 0.125)])[None, None, None]
    value, bias = torch.eye(2)[None, None, None], torch.full((1, 1, 1, 2), 100.0)
    given = cast((query, key, torch.cat([value, value], -1), torch.ones(1, 1, 2), bias), torch.bfloat16)
    expected = torch.tensor([0.0, 0.25]).softmax(-1)
    for function in (attention, attention.reference):
        with torch.no_grad():
            found = function(*given)[0, 0, 0, 0, :2].float()
        assert (found - expected).abs().max() < 4e-3


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_the_references_softmax_is_given_float32_logits(bias: bool) -> None:
    given = cast(inputs(7, 9, bias=bias), torch.bfloat16)
    seen: list[torch.dtype] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten._softmax.default:
                seen.append(args[0].dtype)
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Watch():
        attention.reference(*given)
    assert seen == [torch.float32]


def test_bfloat16_gradients_are_at_most_twice_as_far_off_as_plain_torch() -> None:
    rounded = cast(inputs(63, 65), torch.bfloat16)
    weight = torch.randn(2, 3, 4, 63, 8)

    def gradients(function: Callable[..., Tensor], given: Inputs) -> tuple[Tensor, ...]:
        differentiable = [each.detach().requires_grad_() for each in (*given[:3], given[4])]
        query, key, value, bias = differentiable
        return torch.autograd.grad((function(query, key, value, given[3], bias) * weight).sum(), differentiable)

    exact = gradients(attention.reference, cast(rounded, torch.float32))
    ours, plains = gradients(attention, rounded), gradients(plain, rounded)
    for found, simple, right in zip(ours, plains, exact, strict=True):
        assert found.dtype == torch.bfloat16
        assert root_mean_square(found - right) <= 2 * root_mean_square(simple - right)


def gradients_by_sdpa(given: Inputs, weight: Tensor, gate: Tensor) -> list[tuple[Tensor, ...]]:
    """Result and gradients by PyTorch's kernel, as on NVIDIA GPUs, and by the reference."""
    (kernel,) = (backend.function for backend in attention.backends if backend.name == "sdpa")
    results = []
    for function in (kernel, attention.reference):
        leaves = [each.detach().requires_grad_() for each in (*given[:3], given[4], gate) if each is not None]
        query, key, value, *bias, gates = leaves
        output = function(query, key, value, given[3], *(bias or [None]), gates)
        results.append((output, *torch.autograd.grad((output * weight).sum(), leaves)))
    return results


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("masked", ["none", "some", "row"])
@pytest.mark.parametrize("device", DEVICES)
def test_gradients_by_sdpa_equal_the_references(queries: int, keys: int, bias: bool, masked: str, device: str) -> None:
    with torch.device(device):
        given = inputs(queries, keys, bias=bias, masked=masked)
        weight, gate = torch.randn(2, 2, 3, 4, queries, 8)
    if masked == "row":  # nothing in the network reads the result of a row without keys
        weight[:, 1] = 0
    for ours, expected in zip(*gradients_by_sdpa(given, weight, gate), strict=True):
        assert relative_error(ours, expected) < 1e-5 or (ours - expected).abs().max() < 1e-5


@pytest.mark.parametrize("device", DEVICES)
def test_float16_gradients_by_sdpa_are_at_most_twice_as_far_off_as_the_references(device: str) -> None:
    with torch.device(device):
        short = cast(inputs(63, 65), torch.float16)
        weight, gate = torch.randn(2, 2, 3, 4, 63, 8).half()
    _, exact = gradients_by_sdpa(cast(short, torch.float32), weight.float(), gate.float())
    for found, simple, right in zip(*gradients_by_sdpa(short, weight, gate), exact, strict=True):
        assert found.dtype == torch.float16
        assert root_mean_square((found - right).detach()) <= 2 * root_mean_square((simple - right).detach())


def test_gradients_of_a_padded_network_by_sdpa_equal_the_references() -> None:
    """Rows without keys, whose gradients PyTorch's kernel gets wrong, have no gradient in a network."""
    model, whole = with_every_parameter_random(tiny_config()).train(), random_batch()
    (kernel,) = (backend.function for backend in attention.backends if backend.name == "sdpa")
    mask = torch.ones_like(whole.seq_mask)
    mask[:, -3:] = 0
    masks = {name: getattr(whole, name) * mask[:, None] for name in ("msa_mask", "extra_msa_mask")}
    batch = replace(whole, seq_mask=mask, template_mask=torch.tensor([[1.0, 0.0]]), **masks)
    calls, results = 0, []

    def by_kernel(op: Any, args: Any, kwargs: Any) -> Any:
        nonlocal calls
        if op is not attention or args[0].shape[2] != args[1].shape[2]:
            return op.run(*args, **kwargs)
        calls += 1
        return kernel(*args, **kwargs)

    for interceptor in (by_kernel, lambda op, args, kwargs: op.run(*args, **kwargs)):
        torch.manual_seed(0)
        with forced("reference"), intercepted(interceptor):
            pair = model.fold(Whole(), [batch]).representations.pair * mask[:, :, None, None] * mask[:, None, :, None]
            results.append(
                torch.autograd.grad((pair * torch.randn_like(pair)).sum(), model.parameters(), allow_unused=True)
            )
    assert calls > 10
    largest = max(gradient.abs().max() for gradient in results[1] if gradient is not None)
    for ours, expected in zip(*results, strict=True):
        assert (ours is None) == (expected is None)
        if ours is not None and expected is not None:
            assert (ours - expected).abs().max() < 1e-5 * largest


def test_values_may_be_wider_than_keys() -> None:
    query, key, _, mask, bias = inputs(7, 9)
    value = torch.randn(2, 3, 4, 9, 5)
    with torch.no_grad():
        found = attention(query, key, value, mask, bias)
    assert found.shape == (2, 3, 4, 7, 5)
    assert relative_error(found, plain(query, key, value, mask, bias)) < 1e-5


@pytest.mark.parametrize("gradients", [True, False])
def test_no_rows_are_no_result(gradients: bool) -> None:
    query, key, value, mask, bias = inputs(7, 7)
    with torch.set_grad_enabled(gradients):
        assert attention(query[:, :0], key[:, :0], value[:, :0], mask[:, :0], bias).shape == (2, 0, 4, 7, 8)
        nobody = attention(query[:0], key[:0], value[:0], mask[:0], None)
    assert nobody.shape == (0, 3, 4, 7, 8)


def test_the_bias_of_a_sample_reaches_all_its_rows_and_no_other_sample() -> None:
    query, key, value, mask, bias = inputs(7, 7, masked="none")
    changed = bias.clone()
    changed[1] += torch.randn_like(changed[1])
    with torch.no_grad():
        before, after = attention(query, key, value, mask, bias), attention(query, key, value, mask, changed)
    different = (before != after).any(-1).any(-1).any(-1)
    assert different.tolist() == [[False] * 3, [True] * 3]


def test_float16_masks_keys_by_its_own_largest_number() -> None:
    query, key, value, mask, bias = inputs(7, 9, masked="row")
    short = cast((query, key, value, mask, bias), torch.float16)
    with torch.no_grad():
        expected = attention.reference(query, key, value, mask, bias)
        for backend in ("reference", "rows", "sdpa"):
            with forced(backend):
                found = attention(*short)
            # Beside 65,504, PyTorch's kernel tells apart the logits of a row without keys.
            compared = slice(None) if backend != "sdpa" else [0, 2]
            assert relative_error(found[:, compared], expected[:, compared]) < 0.02, backend
            assert found.isfinite().all(), backend
