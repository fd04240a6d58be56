"""Parameters lie aligned, one after another, and every one is found again."""

import pytest
import torch
from torch import nn

from data_pipeline.io.errors import InputError
from helixfold.ops.constants import LINE
from helixfold.optim.flat import lay_out
from tests.optim.networks import Small


def test_parameters_begin_at_lines_and_those_that_stay_float32_are_last() -> None:
    layout, parameters = lay_out(Small(), ("second", "heads"))
    names = [slot.name for slot in layout.slots]
    assert names[-4:] == ["second.weight", "second.bias", "heads.one.weight", "heads.one.bias"]
    assert "frozen" not in names
    assert "tied.weight" not in names  # it is first.weight
    end = 0
    for slot, parameter in zip(layout.slots, parameters, strict=True):
        assert slot.offset == end
        assert slot.shape == parameter.shape
        assert parameter.numel() <= slot.lines * LINE < parameter.numel() + LINE
        end += slot.lines * LINE
    assert layout.total == end
    assert layout.low == next(slot.offset for slot in layout.slots if slot.name == "second.weight")


def test_everything_or_nothing_may_stay_float32() -> None:
    assert lay_out(Small(), ())[0].low == lay_out(Small(), ())[0].total
    assert lay_out(nn.ModuleDict({"heads": nn.Linear(2, 2)}), ("heads",))[0].low == 0


def test_a_part_is_named_whole() -> None:
    model = nn.ModuleDict({"heads": nn.Linear(2, 2), "heads_of_state": nn.Linear(2, 2)})
    assert [slot.name for slot in lay_out(model, ("heads",))[0].slots][:2] == [
        "heads_of_state.weight",
        "heads_of_state.bias",
    ]


def test_an_empty_parameter_takes_no_place() -> None:
    model = nn.Linear(3, 4)
    model.register_parameter("nothing", nn.Parameter(torch.zeros(0, 4)))
    layout, _ = lay_out(model, ())
    assert sum(slot.lines for slot in layout.slots) * LINE == layout.total


@pytest.mark.parametrize(
    ("model", "keep", "match"),
    [
        (nn.ReLU(), (), "no trainable parameter"),
        (nn.Linear(2, 2).requires_grad_(False), (), "no trainable parameter"),
        (nn.Linear(2, 2).double(), (), "float64"),
        (nn.Linear(2, 2), ("head",), "'head'"),
    ],
)
def test_a_model_that_cannot_be_laid_out_is_refused(model: nn.Module, keep: tuple[str, ...], match: str) -> None:
    with pytest.raises(InputError, match=match):
        lay_out(model, keep)
