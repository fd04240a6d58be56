"""Low-rank adaptation (LoRA): effective weights from the original weight and two small matrices.

LoRA: Hu et al. 2021, arXiv 2106.09685. Rank-stabilised scale: Kalajdzievski 2023, arXiv 2312.03732. DoRA: Liu et al.
2024, arXiv 2402.09353. `LORA_A`, `LORA_B` and `MAGNITUDE` are the last parts of the names of the tensors of an adapted
weight. `ATTENTION` is the pattern of the default linear maps, and `MAX_RANK` the max rank.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from data_pipeline.io.config import POSITIVE, Bound, Config, at_least, at_most
from data_pipeline.io.errors import InputError, printable

# Names of the tensors of an adapted weight, after the name of its linear map.
LORA_A, LORA_B, MAGNITUDE = "lora_a", "lora_b", "magnitude"
# All linear maps of attention in the Evoformer; Hu et al. adapt the same maps of other transformers.
ATTENTION = "evoformer.*attention*"
MAX_RANK = 1024


@dataclass(frozen=True, kw_only=True)
class LowRankConfig(Config):
    """Settings of LoRA.

    `targets` are comma-separated patterns of names of linear maps, such as "evoformer.*attention*". The change of a
    weight is B A times `alpha` / `rank`, or times `alpha` / sqrt(`rank`) with `rank_stabilised`. With `decomposed`
    (DoRA) the length of each row of a weight is trained separately from its direction.
    """

    rank: Annotated[int, at_least(1), at_most(MAX_RANK)] = 4
    alpha: Annotated[float, POSITIVE] = 8.0
    targets: Annotated[str, Bound("name at least one linear map", lambda value: bool(value.strip(", ")))] = ATTENTION
    rank_stabilised: bool = False
    decomposed: bool = False

    @property
    def scale(self) -> float:
        """Factor of the product B A."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilised else self.rank)

    def matching_maps(self, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Return the names of the linear maps to adapt; `shapes` has the shapes of all parameters of the model.

        Raise `InputError` if a pattern matches none.
        """
        maps = [name.removesuffix(".weight") for name, shape in shapes.items() if is_map(name, shape)]
        matches: set[str] = set()
        for pattern in filter(None, (part.strip() for part in self.targets.split(","))):
            matching = {name for name in maps if fnmatchcase(name, pattern)}
            if not matching:
                raise InputError(
                    f"no linear map has a name like '{printable(pattern)}'; some names are {', '.join(maps[:3])}"
                )
            matches |= matching
        return [name for name in maps if name in matches]


def is_map(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a parameter is the weight of a linear map: its name ends in .weight, and it has two axes."""
    return name.endswith(".weight") and len(shape) == 2


def effective_weight(
    weight: Float[Tensor, "o i"],
    a: Float[Tensor, "k i"],
    b: Float[Tensor, "o k"],
    scale: float,
    magnitude: Float[Tensor, " o"] | None = None,
) -> Float[Tensor, "o i"]:
    """Return the weight that a model computes with: W + scale B A, with row lengths `magnitude` in DoRA.

    Gradients flow to `a`, `b` and `magnitude`; the row lengths of W + scale B A are treated as constants, as in DoRA
    (Sec. 4.3).
    """
    changed = weight + scale * (b @ a)
    if magnitude is None:
        return changed
    lengths = row_lengths(changed.detach())
    return changed * (magnitude / lengths.clamp(min=torch.finfo(lengths.dtype).tiny))[:, None]


def row_lengths(weight: Float[Tensor, "o i"]) -> Float[Tensor, " o"]:
    """Return the Euclidean length of each row of a weight, the initial magnitudes of DoRA."""
    return torch.linalg.vector_norm(weight, dim=1)
