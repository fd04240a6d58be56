"""Positions of the parameters in the flat buffers of the optimizer."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from data_pipeline.errors import InputError
from helixfold.ops.constants import LINE


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Position of one parameter in a flat buffer, from element `offset` on."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def lines(self) -> int:
        """Return the number of lines that the parameter takes in the buffer."""
        return -(-torch.Size(self.shape).numel() // LINE)


@dataclass(frozen=True, kw_only=True)
class ParameterLayout:
    """Order of parameters in flat buffers, each from the start of a line; those that stay float32 are the last.

    The order does not depend on the working dtype, so a saved state fits any. `low` is the number of elements before
    the first parameter that stays float32, and `total` the number of all elements, padding included.
    """

    slots: tuple[Slot, ...]
    low: int
    total: int

    def views(self, low: Tensor, high: Tensor) -> Iterator[Tensor]:
        """Yield a view of each parameter, in its shape, from a buffer of the first `self.low` elements or of the rest.

        `low` is the buffer of the first elements and `high` that of the rest.
        """
        for slot in self.slots:
            flat, offset = (low, slot.offset) if slot.offset < self.low else (high, slot.offset - self.low)
            yield flat[offset : offset + torch.Size(slot.shape).numel()].view(slot.shape)


def lay_out(model: nn.Module, keep_float32: Collection[str]) -> tuple[ParameterLayout, tuple[nn.Parameter, ...]]:
    """Return the layout of all parameters that are trained, tied ones once, and the parameters in the same order.

    `keep_float32` are names of submodules whose parameters stay float32. Raise `InputError` if one is missing, if there
    is no parameter to train, or if a parameter is not float32 or not on the device of the others.
    """
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        raise InputError("the model has no parameter to train; leave requires_grad on for some")
    for name, parameter in trained:
        if parameter.dtype != torch.float32 or parameter.device != trained[0][1].device:
            raise InputError(
                f"parameter {name!r} is {parameter.dtype} on {parameter.device}; give the optimizer a float32 model on "
                "one device"
            )
    for prefix in keep_float32:
        if not any(name == prefix or name.startswith(f"{prefix}.") for name, _ in model.named_modules()):
            raise InputError(f"keep_float32 names {prefix!r}, which is no part of the model; name its submodules")

    def kept(name: str) -> bool:
        return any(name.startswith(f"{prefix}.") for prefix in keep_float32)

    slots, offset, low = [], 0, 0
    trained.sort(key=lambda named: kept(named[0]))
    for name, parameter in trained:
        slots.append(Slot(name=name, shape=tuple(parameter.shape), offset=offset))
        offset += slots[-1].lines * LINE
        if not kept(name):
            low = offset
    return ParameterLayout(slots=tuple(slots), low=low, total=offset), tuple(parameter for _, parameter in trained)
