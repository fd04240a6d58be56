"""Write the depth of a target's alignment, as a picture and as the table that nf-core reads."""

from pathlib import Path
from typing import Final

from data_pipeline.features.alignment_depth import AlignmentDepth, alignment_depth
from data_pipeline.features.schema import Features
from helixfold.report.plots import coverage_plot
from helixfold.write.results import write_file
from helixfold.write.tables import msa_table

COVERAGE_FILE: Final = "coverage.png"


def write_alignment(directory: Path, features: Features) -> AlignmentDepth:
    """Write `coverage.png` and `<target>_msa.tsv` into a target's directory, and return the alignment's depth.

    All models read the same alignment, so its depth is the same for all predictions of the target.
    """
    depth = alignment_depth(features.msa)
    write_file(directory / COVERAGE_FILE, coverage_plot(features.msa, depth))
    write_file(directory / f"{directory.resolve().name}_msa.tsv", msa_table(features.msa))
    return depth
