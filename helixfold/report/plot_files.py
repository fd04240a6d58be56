"""Write the plots of a target into its directory, from its alignment and the files of its predictions."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.features.alignment_depth import AlignmentDepth, alignment_depth
from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.schema import Features
from helixfold.report.drawing import Drawers, Plot
from helixfold.report.maps import LARGEST_ERROR
from helixfold.report.plots import coverage_plot, pae_plot, plddt_plot
from helixfold.write.ranking import FinishedPrediction, all_notes, read_pae
from helixfold.write.results import write_file
from helixfold.write.tables import msa_table

# More lines and panels than these cannot be distinguished; the files have all predictions.
_MOST_DRAWN = 10


class PlotFiles:
    """The files of a target's plots, which are drawn and written at once, or drawn by other processes meanwhile."""

    def __init__(self, drawers: Drawers | None = None) -> None:
        self._drawers = drawers
        self._unwritten: list[tuple[Path, Callable[[], bytes]]] = []

    def add(self, path: Path, plot: Plot, *arguments: Any) -> None:
        """Add a file, whose plot is drawn from these arguments."""
        if self._drawers is None:
            write_file(path, plot(*arguments))
        else:
            self._unwritten.append((path, self._drawers.draw(plot, *arguments)))

    def write(self) -> None:
        """Write the files that have been added and are not written yet."""
        while self._unwritten:
            path, picture = self._unwritten.pop(0)
            write_file(path, picture())


def write_plots(directory: Path, order: Sequence[FinishedPrediction], files: PlotFiles | None = None) -> None:
    """Write `plddt.png` and, if a prediction has a PAE, `pae.png` into a target's directory, or add them to `files`.

    `order` are the target's predictions, the best first; only the best ten are drawn.
    """
    files = files or PlotFiles()
    best = order[:_MOST_DRAWN]
    notes = all_notes(order)
    files.add(directory / "plddt.png", plddt_plot, {each.name: each.plddt for each in best}, notes)
    paes = {
        each.name: read_pae(directory / f"pae_{each.name}.json", len(each.plddt))[0]
        for each in best
        if each.ptm is not None
    }
    if paes:
        files.add(directory / "pae.png", pae_plot, paes, LARGEST_ERROR, notes)


def write_alignment(
    directory: Path, features: Features | ComplexFeatures, files: PlotFiles | None = None
) -> AlignmentDepth:
    """Write `<target>_msa.tsv` and `coverage.png` into a target's directory, or add the plot to `files`.

    All models read the same alignment, so its depth, which is returned, is the same for all predictions of the target.
    """
    files = files or PlotFiles()
    depth = alignment_depth(features.msa)
    paired, ends = 0, np.zeros(0, np.int64)
    if isinstance(features, ComplexFeatures):
        paired, ends = features.paired_rows, np.cumsum(np.bincount(features.asym_id)[1:])[:-1]
    plot = partial(coverage_plot, paired=paired, chain_ends=ends.tolist())
    files.add(directory / "coverage.png", plot, features.msa, depth)
    write_file(directory / f"{directory.resolve().name}_msa.tsv", msa_table(features.msa))
    return depth
