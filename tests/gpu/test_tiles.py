"""Kernels compute the same with all tiles that a GPU is asked about; here in Triton's interpreter."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.benchmark.gpu import CHOICES, KernelLaunch, block_launches
from helixfold.ops.dispatch import forced

pytest.importorskip("triton")
SUMS = "sums_at"
# What each kernel writes beside its partial sums.
WRITTEN = {
    "attention.attend": ("out", "logsum"),
    "attention_backward.to_key_and_value": ("grad_key", "grad_value"),
    "attention_backward.to_query": ("grad_query",),
    "attention_backward.to_bias": ("grad_bias",),
    "layer_norm.forward": ("y_at",),
    "layer_norm.backward": ("grad_x_at",),
    "norm_linear.forward": ("out_at",),
    "norm_linear.backward": ("grad_x_at",),
    "output_map.forward": ("sum_to",),
    "output_map.backward": ("dropped_at", "grad_attended_at", "grad_gate_at", "delta_at"),
    "outer_product.forward": ("y_to", "inverse_at"),
    "outer_product_backward.backward_of_operand": ("grad_own_at",),
    "outer_product_backward.backward_of_weight": (),
    "transition.forward": ("y_at",),
    "transition.hidden_gradients": ("units_at", "grad_units_at"),
    "triangle_backward.change_backward": ("grad_product_at", "grad_x_at", "x_at", "a_at", "grad_value_at"),
    "triangle_backward.operands_backward": ("grad_pair", "grad_maps_at"),
    "triangle_forward.change": ("change",),
    "triangle_forward.operands": ("left_at", "right_at"),
}


def tensor(given: Any) -> Tensor | None:
    return given[0] if isinstance(given, tuple) else given


def computed(launched: KernelLaunch) -> list[Tensor]:
    """What a launch writes, into memory that held no numbers, and the sum of its partial sums."""
    written = [tensor(launched.arguments[name]) for name in WRITTEN[launched.name]]
    sums = launched.arguments.get(SUMS)
    for each in written:
        if each is not None:
            each.fill_(math.nan)
    if sums is not None:
        sums.zero_()
    launched.run()
    found = [each.clone() for each in written if each is not None]
    return found if sums is None else [*found, sums.sum()]


@pytest.mark.long
@torch.no_grad()
def test_other_tiles_give_the_same() -> None:
    with forced("triton"), torch.enable_grad():
        launches = block_launches("tiny", (33, 5), torch.device("cpu"))
    tried = set()
    for launched in launches:
        if launched.name not in CHOICES:
            continue
        expected = computed(launched)
        assert all(each.isfinite().all() for each in expected), launched.name
        choices = list(launched.choices())[1:]
        for by, changed in choices[:: max(1, len(choices) // 2)]:
            tried.add(launched.name)
            for ours, theirs in zip(computed(changed), expected, strict=True):
                assert torch.allclose(ours, theirs, rtol=2**-5, atol=2**-5), f"{launched.name}, {by}"
    assert tried == CHOICES.keys() == WRITTEN.keys()
