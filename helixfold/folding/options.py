"""Options of folding a target with one model."""

import math
from dataclasses import dataclass
from typing import get_args

from data_pipeline.io.config import MAX_ENSEMBLE, MAX_RECYCLES, MAX_SEED
from data_pipeline.io.errors import InputError, choice_problem, did_you_mean
from helixfold.execution.device import AUTO, DTYPES
from helixfold.model.presets import Preset
from helixfold.runtime.options import RepresentationName


@dataclass(frozen=True, kw_only=True)
class FoldingOptions:
    """Options of folding a target with one model: recycling, ensemble, seed and precision.

    `num_recycles` is the number of recycling iterations after the first. Recycling stops once the root mean square
    change of distances is below `recycle_tolerance` in Å; 0 never stops. None takes the number and the tolerance from
    the model's preset. Recycling also stops once the mean pLDDT (0 to 100) is at least `stop_at_score`; None never
    stops.

    `num_ensemble` is the number of samples per iteration, whose representations are averaged. `dtype` is the precision
    of the trunk: one of `DTYPES`, or "auto" for the one that suits the device. With `dropout`, as in training,
    predictions vary between seeds, most where confidence is low. `cyclic` has the names of chains whose ends are
    bonded; () means all, and None means none.

    Three options add outputs. `logits` returns the logits of all heads, which need much memory. `representations` are
    the names of those to return; "pair" takes r x r x c_z numbers. `save_passes` returns structures, and any
    `representations`, of all recycling iterations.
    """

    num_recycles: int | None = None

    recycle_tolerance: float | None = None
    num_ensemble: int = 1
    seed: int = 0
    dtype: str = AUTO
    logits: bool = False
    dropout: bool = False
    save_passes: bool = False
    representations: tuple[RepresentationName, ...] = ()
    stop_at_score: float | None = None
    cyclic: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("representations", "cyclic"):
            if isinstance(value := getattr(self, name), str):  # a string is one item, not a sequence of letters
                object.__setattr__(self, name, (value,))
        bounds = (("num_recycles", 0, MAX_RECYCLES), ("num_ensemble", 1, MAX_ENSEMBLE), ("seed", 0, MAX_SEED))
        for name, minimum, maximum in bounds:
            value = getattr(self, name)
            if value is not None and not minimum <= value <= maximum:
                raise InputError(f"{name} must be at least {minimum} and at most {maximum:,}, got {value}")
        if self.recycle_tolerance is not None and not 0 <= self.recycle_tolerance < math.inf:
            raise InputError(f"recycle_tolerance must be a distance in Angstrom, got {self.recycle_tolerance}")
        if self.stop_at_score is not None and not 0 < self.stop_at_score <= 100:
            raise InputError(f"stop_at_score is a mean pLDDT, above 0 and at most 100, got {self.stop_at_score}")
        if unknown := [name for name in self.representations if name not in get_args(RepresentationName)]:
            names = get_args(RepresentationName)
            hint = did_you_mean(unknown[0], names)
            raise InputError(f"representations are {', '.join(names)}, got {unknown[0]!r}{hint}")
        if self.dtype not in (AUTO, *DTYPES):
            raise InputError(f"dtype {choice_problem(self.dtype, (AUTO, *DTYPES))}")

    def recycles(self, preset: Preset) -> int:
        """Return the number of recycling iterations after the first: the option, or the preset's number."""
        return preset.num_recycles if self.num_recycles is None else self.num_recycles

    def stops_at(self, mean_plddt: float) -> bool:
        """Return whether no more predictions are made after one with this mean pLDDT (`stop_at_score`)."""
        return self.stop_at_score is not None and mean_plddt >= self.stop_at_score

    def tolerance(self, preset: Preset) -> float:
        """Return the root mean square change of distances (Å) below which recycling stops.

        It is the option, or the preset's value if the option is None.
        """
        return preset.recycle_tolerance if self.recycle_tolerance is None else self.recycle_tolerance
