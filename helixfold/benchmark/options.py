"""Define the options that several benchmarks have in common."""

from dataclasses import dataclass
from typing import Annotated

from helixfold.annotations import Group, Parameter
from helixfold.options import MAX_PROCESSES, File, Positive, reads, whole_number
from helixfold.predict.options import Dtype
from helixfold.presets import PRESETS

Model = Annotated[str, Parameter(choices=tuple(PRESETS), show_choices=False, metavar="MODEL")]
Device = Annotated[str, Parameter(metavar="NAME")]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")


@Parameter(name="*", group=Group("How to measure", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """Options of the benchmarks whose readings stand in one table."""

    device: Device = "cpu"
    """auto, cpu, cuda or cuda:N."""
    dtypes: tuple[Dtype, ...] = DTYPES
    """Precisions to measure in."""
    threads: Annotated[Positive | None, Parameter(show_default="PyTorch's")] = None
    """CPU threads."""
    repeats: Annotated[Positive | None, Parameter(show_default="1 to 7, by the benchmark")] = None
    """Number of measurements; the median is reported."""
    neighbours: Annotated[int, reads(whole_number(0, MAX_PROCESSES), "N")] = 0
    """Single-threaded processes that compute at the same time, as on a shared machine."""
    json: File | None = None
    """Also write the measurements to this file."""
