"""What an update does to its stream: add the change, of which dropout keeps a part."""

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.dispatch import Backend, Op


def add_change(
    stream: Float[Tensor, "b i j c"],
    change: Float[Tensor, "b i j c"],
    kept: Float[Tensor, "b #i #j c"] | None = None,
) -> Float[Tensor, "b i j c"]:
    """A new stream: the old one, which is not changed, plus `change` times `kept`, a mask shared by rows or columns."""
    return ADD_CHANGE(stream, change, kept)


def add_change_reference(
    stream: Float[Tensor, "b i j c"],
    change: Float[Tensor, "b i j c"],
    kept: Float[Tensor, "b #i #j c"] | None = None,
) -> Float[Tensor, "b i j c"]:
    """What `add_change` means, in plain torch."""
    return stream + change if kept is None else torch.addcmul(stream, change, kept)


ADD_CHANGE = Op("add_change", Backend(name="reference", run=add_change_reference))
