"""How far the predictions of a model can be trusted by the origin of its parameters."""

from typing import Final, Literal, get_args

WeightsProvenance = Literal["untrained", "demonstration", "trained"]
# From the least to the most trustworthy.
WEIGHTS_PROVENANCES: Final[tuple[WeightsProvenance, ...]] = get_args(WeightsProvenance)
