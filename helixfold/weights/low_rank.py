"""Low-rank changes of weights (LoRA): the weights that a model computes with, made from its own and two small matrices.

LoRA: Hu et al. 2021, arXiv 2106.09685. Rank-stabilised scale: Kalajdzievski 2023, arXiv 2312.03732. DoRA: Liu et al.
2024, arXiv 2402.09353.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from jaxtyping import Float
from torch import Tensor

from data_pipeline.io.errors import InputError, printable
from helixfold.model.config import Config, require

# Names of the tensors of a changed weight, after the name of its linear map.
LORA_A, LORA_B, MAGNITUDE = "lora_a", "lora_b", "magnitude"
# All maps of attention in the Evoformer: those that Hu et al. adapt in other transformers.
ATTENTION = "evoformer.*attention*"
MAX_RANK = 1024


@dataclass(frozen=True, kw_only=True)
class LowRankConfig(Config):
    """Settings of low-rank changes.

    `targets` are patterns of names of linear maps, such as "evoformer.*attention*", separated by commas. The change of
    a weight is B A times `alpha` / `rank`, or with `rank_stabilised` times `alpha` / sqrt(`rank`). With `decomposed`
    (DoRA) the length of each row of a weight is trained apart from its direction.
    """

    rank: int = 4
    alpha: float = 8.0
    targets: str = ATTENTION
    rank_stabilised: bool = False
    decomposed: bool = False

    def __post_init__(self) -> None:
        self._require_positive("rank")
        self._require_at_most(MAX_RANK, "rank")
        require(self, ["alpha"], lambda value: math.isfinite(value) and value > 0, "be greater than 0")
        require(self, ["targets"], lambda value: bool(value.strip(", ")), "name at least one linear map")

    @property
    def scale(self) -> float:
        """Return the factor of the product B A."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilised else self.rank)

    def chosen(self, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Return the linear maps whose names match a pattern, given the shapes of all parameters of a model.

        Raise `InputError` for a pattern that matches none.
        """
        maps = [name.removesuffix(".weight") for name, shape in shapes.items() if is_map(name, shape)]
        found: set[str] = set()
        for pattern in filter(None, (part.strip() for part in self.targets.split(","))):
            matching = {name for name in maps if fnmatchcase(name, pattern)}
            if not matching:
                raise InputError(
                    f"no linear map has a name like '{printable(pattern)}'; there are such as {', '.join(maps[:3])}"
                )
            found |= matching
        return [name for name in maps if name in found]


def is_map(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a parameter is the weight of a linear map."""
    return name.endswith(".weight") and len(shape) == 2


def effective_weight(
    weight: Float[Tensor, "o i"],
    a: Float[Tensor, "k i"],
    b: Float[Tensor, "o k"],
    scale: float,
    magnitude: Float[Tensor, " o"] | None = None,
) -> Float[Tensor, "o i"]:
    """Return the weight that a model computes with: W + scale B A, whose rows have the given lengths, if any (DoRA).

    Autograd carries the gradient of the result to `a`, `b` and `magnitude`; the lengths of the rows of W + scale B A
    count as constants, as in DoRA (Sec. 4.3).
    """
    changed = weight + scale * (b @ a)
    if magnitude is None:
        return changed
    lengths = row_lengths(changed.detach())
    return changed * (magnitude / lengths.clamp(min=torch.finfo(lengths.dtype).tiny))[:, None]


def row_lengths(weight: Float[Tensor, "o i"]) -> Float[Tensor, " o"]:
    """Return the length of each row of a weight, with which the training of DoRA's magnitudes begins."""
    return torch.linalg.vector_norm(weight, dim=1)
