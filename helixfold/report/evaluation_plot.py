"""Plot an evaluation: confidence against accuracy, and the scores of all targets."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from helixfold.analysis.evaluation import Evaluated, first_ranks, summary_of
from helixfold.report.plots import new_figure, to_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SCORE_SERIES = (
    ("lddt_ca", "lDDT-CA", "#0053D6"),
    ("tm_score", "TM-score", "#B0128B"),
    ("gdt_ts", "GDT-TS", "#00695C"),
)
_MAX_NAMED_TARGETS = 24  # With more targets, their names are left out, because they could not be read.
_MIN_TARGETS = 3  # With fewer targets, confidence is drawn by residue.


def evaluation_plot(results: Sequence[Evaluated]) -> bytes:
    """Return a PNG with pLDDT against lDDT-CA on the left and the scores of all targets on the right.

    Only the best-ranked prediction of each target is drawn. The right panel has lDDT-CA, TM-score and GDT-TS. With
    fewer than three targets that have a pLDDT, the left panel shows residues instead of targets.
    """
    best = first_ranks(results)
    figure = new_figure(10.0, 4.6)
    confidence, spread = figure.subplots(1, 2, width_ratios=[1, 1.25])
    _draw_confidence(confidence, best)
    _draw_spread(spread, best)
    for axes in (confidence, spread):
        axes.spines[["top", "right"]].set_visible(False)
    return to_png(figure)


def _draw_confidence(axes: "Axes", best: Sequence[Evaluated]) -> None:
    summary = summary_of(best)
    scored = [each for each in best if each.scores.plddt is not None and each.residues.plddt is not None]
    by_residue = len(scored) < _MIN_TARGETS
    points = [each.residues if by_residue else each.scores for each in scored]
    x, y = (np.hstack([[], *(getattr(each, name) for each in points)]) for name in ("plddt", "lddt_ca"))
    what, pearson = ("residue", summary.pearson_residues) if by_residue else ("target", summary.pearson_targets)
    axes.plot([0, 100], [0, 100], color="#999999", linewidth=0.8, linestyle="--")
    axes.scatter(x, 100 * y, s=9.0 if by_residue else 26.0, color="#0053D6", alpha=0.65, edgecolors="none")
    axes.set(xlim=(0, 100), ylim=(0, 100), aspect="equal", xlabel="pLDDT", ylabel="lDDT-CA x 100")
    title = f"Each {what}" + ("" if pearson is None else f", Pearson's r = {pearson:.2f}")
    axes.set_title(title if scored else "B-factors are not pLDDT", fontsize=10)


def _draw_spread(axes: "Axes", best: Sequence[Evaluated]) -> None:
    """Draw the scores of a few named targets in the order of lDDT-CA, or of many targets with each score sorted."""
    ordered = sorted(best, key=lambda each: -each.scores.lddt_ca)
    positions = np.arange(1, len(ordered) + 1)
    few = len(ordered) <= _MAX_NAMED_TARGETS
    for (name, label, color), marker in zip(_SCORE_SERIES, "o^s", strict=True):
        values = np.array([getattr(each.scores, name) for each in ordered])
        axes.plot(
            positions,
            values if few else np.sort(values)[::-1],
            color=color,
            marker=marker if few else "",
            markersize=5,
            linestyle="none" if few else "-",
            label=f"{label} (mean {values.mean():.2f})" if len(values) else label,
        )
    axes.set(xlim=(0.5, max(1, len(ordered)) + 0.5), ylim=(0, 1.02), ylabel="Score")
    if few:
        names = [each.target if each.reference == each.target else each.reference for each in ordered]
        short = [name if len(name) <= 16 else f"{name[:15]}…" for name in names]
        axes.set_xticks(positions, short, rotation=60, ha="right", fontsize=7.5, parse_math=False)
    else:
        axes.set_xlabel("Targets, from the best to the worst")
    axes.legend(frameon=False, fontsize=8.5, loc="lower left")
    axes.grid(axis="both" if few else "y", color="#E5E5E5", linewidth=0.6)
