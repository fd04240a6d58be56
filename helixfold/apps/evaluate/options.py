"""Options of `helixfold evaluate --benchmark`: the benchmark, and options of `helixfold predict` for its predictions.

The docstring of an option is its line in the help. This module imports nothing that takes long to load.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from helixfold.apps.options import (
    ComputeOptions,
    DeviceOptions,
    MemoryLimits,
    ModelOptions,
    PredictOptions,
    ScreenOptions,
    SearchOptions,
)
from helixfold.runtime.annotations import Group, Parameter
from helixfold.runtime.options import MOST_USED, option_group, values_of


@option_group(Group.create_ordered("Benchmark", sort_key=-1))
@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options for the targets of a benchmark."""

    benchmark: Annotated[str | None, Parameter(metavar="FILE", group=MOST_USED)] = None
    """Predict the targets of this table (.tsv or .csv: id, sequence, references, msa, templates, date) or of a packaged
    list (casp14, casp15, cameo_2021, cameo_2022, pdb_2022_2025), and compare them with their references."""
    data: Annotated[tuple[Path, ...], Parameter(metavar="PATH...")] = ()
    """Directories with files that the table does not name (known structures, <id>.fasta, <id>.a3m), or FASTA files."""
    overwrite: bool = False
    """Predict finished targets again."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(
    ScreenOptions, MemoryLimits, DeviceOptions, ComputeOptions, ModelOptions, SearchOptions, TableOptions
):
    """All options of `helixfold evaluate --benchmark`."""

    def predict_options(self, output: Path, command: tuple[str, ...] = ()) -> PredictOptions:
        """Return the options of `helixfold predict` for the benchmark's targets.

        Predictions are written to the directory `output`. `command` is the words of the command, for provenance.
        """
        return PredictOptions(**values_of(self, PredictOptions), output=output, command=command)
