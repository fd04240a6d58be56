"""What is written of a target's alignment: how deep it is, as a picture and as nf-core's table."""

from pathlib import Path
from typing import Final

from data_pipeline.features.depth import Depth, alignment_depth
from data_pipeline.features.schema import Features
from data_pipeline.files import replacing
from helixfold.write.plots import coverage_plot
from helixfold.write.tables import msa_table

COVERAGE_FILE: Final = "coverage.png"


def write_alignment(directory: Path, features: Features) -> Depth:
    """Write coverage.png and <target>_msa.tsv; the depth is for `write_prediction`. The same for all models."""
    depth = alignment_depth(features.msa)
    with replacing(directory / COVERAGE_FILE) as temporary:
        temporary.write_bytes(coverage_plot(features.msa, depth))
    with replacing(directory / f"{directory.resolve().name}_msa.tsv") as temporary, temporary.open("wb") as stream:
        stream.writelines(msa_table(features.msa))
    return depth
