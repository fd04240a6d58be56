"""Compute one part of a network in a short precision and the rest in float32, to see what each part costs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from helixfold.execution.nested import with_tensors_changed
from helixfold.model.alphafold import AlphaFold
from helixfold.ops.dispatch import Op, intercepted

TRUNK, STRUCTURE, HEADS = "trunk", "structure module", "output heads"


@dataclass(frozen=True, kw_only=True)
class RoundedPart:
    """A part of the network: all operators within the trunk, structure module or heads, or those of some names."""

    name: str
    within: str = TRUNK
    operators: tuple[str, ...] = ()  # none: all


# What the trunk computes by operators, and what other parts compute, which stays in float32 in every precision.
PARTS = (
    RoundedPart(name="self-attention", operators=("self_attention",)),
    RoundedPart(name="global attention", operators=("global_attention",)),
    RoundedPart(name="outer product mean", operators=("outer_product_operands", "outer_product_mean")),
    RoundedPart(name="triangle multiplication", operators=("triangle_update",)),
    RoundedPart(name="transitions", operators=("transition",)),
    RoundedPart(name="biases of attention", operators=("norm_linear",)),
    RoundedPart(name="embedders", operators=("linear", "layer_norm", "look_up")),
    RoundedPart(name="streams between updates", operators=("add_change",)),
    RoundedPart(name="structure module", within=STRUCTURE),
    RoundedPart(name="output heads", within=HEADS),
)


@dataclass
class _Place:
    """Where a pass is: the part of the network, and whether inside an operator that is rounded."""

    part: str = TRUNK
    inside: bool = field(default=False)


@contextmanager
def rounded(network: AlphaFold, part: RoundedPart, dtype: torch.dtype) -> Iterator[None]:
    """Compute the operators of a part in `dtype` inside this context: arguments are cast to it, results to float32.

    Masks and parameters are given as they are; operators cast parameters to the dtype of their activations. Operators
    of the structure module, which know float32 alone, compute in it with rounded arguments, and so do output heads.
    """
    place, widens = _Place(), part.within != TRUNK

    def short(tensor: Tensor) -> Tensor:
        if tensor.dtype != torch.float32:
            return tensor
        return tensor.to(dtype).float() if widens else tensor.to(dtype)

    def carry_out(operator: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_rounded = place.part == part.within and (not part.operators or operator.name in part.operators)
        if place.inside or not is_rounded:
            return operator.run(*args, **kwargs)
        names = signature(operator.reference).parameters
        place.inside = True
        try:
            given = [
                short(value) if isinstance(value, Tensor) and "mask" not in name else value
                for name, value in zip(names, args, strict=False)
            ]
            found = operator.run(*given, **kwargs)
        finally:
            place.inside = False
        if widens:
            return with_tensors_changed(short, found)
        return with_tensors_changed(lambda tensor: tensor.float() if tensor.dtype == dtype else tensor, found)

    with ExitStack() as hooks, intercepted(carry_out):
        modules = [(STRUCTURE, network.structure_module), *((HEADS, head) for head in network.heads.children())]
        for name, module in modules:
            _follow(hooks, place, name, module)
        yield


def _follow(hooks: ExitStack, place: _Place, name: str, module: nn.Module) -> None:
    """Let `place.part` be `name` while the module computes."""

    def enter(*_: Any) -> None:
        place.part = name

    def leave(*_: Any) -> None:
        place.part = TRUNK

    hooks.callback(module.register_forward_pre_hook(enter).remove)
    hooks.callback(module.register_forward_hook(leave).remove)
