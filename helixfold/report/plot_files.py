"""Write the plots of a target, from its alignment and its predictions' files, into its directory."""

from collections.abc import Sequence
from pathlib import Path

from data_pipeline.features.alignment_depth import AlignmentDepth, alignment_depth
from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.schema import Features
from helixfold.folding.prediction import Prediction
from helixfold.report.maps import LARGEST_ERROR
from helixfold.report.plots import coverage_plot, pae_plot, paired_rows_and_ends, plddt_plot
from helixfold.results.file_table import COVERAGE_PLOT, MSA_TABLE, PAE, PAE_PLOT, PLDDT_PLOT
from helixfold.results.prediction import all_notes, read_pae
from helixfold.results.tables import msa_table
from helixfold.results.writing import write_file

# Only this many predictions are drawn, because more curves and panels cannot be distinguished.
_MAX_DRAWN = 10


def write_plots(directory: Path, order: Sequence[Prediction]) -> None:
    """Write `plddt.png` and, if a prediction has a PAE, `pae.png` into a target's directory.

    `order` has the target's predictions, the best first; only the best ten are drawn. PAE is read from their files.
    """
    best = order[:_MAX_DRAWN]
    notes = all_notes(order)
    write_file(PLDDT_PLOT.path(directory), plddt_plot({each.name: each.plddt for each in best}, notes))
    paes = {
        each.name: read_pae(PAE.path(directory, prediction=each.name), len(each.plddt))[0]
        for each in best
        if each.ptm is not None
    }
    if paes:
        summary = order[0].summary
        chains = () if summary is None else [(chain.name, chain.residues) for chain in summary.chains]
        write_file(PAE_PLOT.path(directory), pae_plot(paes, LARGEST_ERROR, notes, chains))


def write_alignment(directory: Path, features: Features | ComplexFeatures) -> AlignmentDepth:
    """Write `<target>_msa.tsv` into a target's directory, and return the depth of the alignment.

    All models use the same alignment, so its depth is the same for all predictions of the target.
    """
    write_file(MSA_TABLE.path(directory, target=directory.resolve().name), msa_table(features.msa))
    return alignment_depth(features.msa)


def write_coverage(directory: Path, features: Features | ComplexFeatures, depth: AlignmentDepth) -> None:
    """Write `coverage.png`, the picture of the alignment's rows, into a target's directory.

    `depth` is the depth of the alignment, as `write_alignment` returns it.
    """
    paired, ends = paired_rows_and_ends(features)
    plot = coverage_plot(features.msa, depth, paired=paired, chain_ends=ends)
    write_file(COVERAGE_PLOT.path(directory), plot)
