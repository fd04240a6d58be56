"""Everything that code launches on a GPU is logged, and on the meta device also what would wait for one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from helixfold.benchmark.passes import OperatorLog
from helixfold.ops.device_properties import DEVICE_MODELS, simulated_device
from helixfold.ops.linear import layer_norm
from helixfold.ops.weights import Affine

META = torch.device("meta")


def test_casts_of_parameters_are_told_from_others() -> None:
    with META:
        linear, x = nn.Linear(4, 3), torch.empty(2, 4, dtype=torch.bfloat16)
    with OperatorLog(linear) as log:
        y = x @ linear.weight.t().to(x.dtype) + linear.bias.to(x.dtype)
        y.float().to(torch.float32).to(torch.float32, copy=True)
    assert [call.cast for call in log.calls if call.name == "_to_copy"] == ["parameter", "parameter", "other", None]
    product = next(call for call in log.calls if call.name == "mm")
    assert product.moved == 2 * (2 * 4 + 4 * 3 + 2 * 3)
    assert not any(call.waits for call in log.calls)


def test_kernels_have_their_names() -> None:
    x = torch.empty(1, 8, 8, 128, dtype=torch.bfloat16, device=META)
    norm = Affine(*(torch.empty(128, device=META) for _ in range(2)))
    with simulated_device(DEVICE_MODELS["h200"]), OperatorLog() as log:
        layer_norm(x, norm)
    assert [call.name for call in log.calls if call.is_kernel] == ["forward"]


@pytest.mark.parametrize(
    ("wait", "name"),
    [
        (lambda x: x.sum().item(), "_local_scalar_dense"),
        (lambda x: 1 if (x > 0).all() else 0, "_local_scalar_dense"),
        (lambda x: x[x > 0], "index"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x.masked_select(x > 0), "masked_select"),
        (lambda x: x + torch.tensor([1.0], device=META), "tensor"),
        (lambda x: x + x.new_tensor([1.0]), "new_tensor"),
        (lambda x: x + torch.ones(2, 3).to(META), "_to_copy"),
    ],
)
def test_code_that_waits_goes_on_and_is_noticed(wait: Callable[[Tensor], object], name: str) -> None:
    x = torch.empty(2, 3, device=META)
    with OperatorLog() as log:
        wait(x)
    assert [call.name for call in log.calls if call.waits] == [name]


def test_what_depends_on_values_has_the_most_elements() -> None:
    x = torch.empty(2, 3, 4, device=META)
    with OperatorLog():
        assert x[x > 0].shape == (24,)
        assert x[x[..., 0] > 0].shape == (6, 4)
        assert x.nonzero().shape == (24, 3)
        assert x.masked_select(x > 0).shape == (24,)
