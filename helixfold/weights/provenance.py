"""Origin of a model's parameters: random, the demonstration model (or training from it), or other training.

`WeightsProvenance` is such an origin: "untrained", "demonstration" or "trained". `WEIGHTS_PROVENANCES` has all origins,
from the least to the most trustworthy.
"""

from typing import Final, Literal, get_args

WeightsProvenance = Literal["untrained", "demonstration", "trained"]
# From the least to the most trustworthy. Predictions with one are replaced by predictions with a later one.
WEIGHTS_PROVENANCES: Final[tuple[WeightsProvenance, ...]] = get_args(WeightsProvenance)
