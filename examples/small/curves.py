"""Plot a training of several runs: losses, and the scores of held-out chains."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from stages import Stage

from data_pipeline.io.files import atomic_write
from helixfold.report.training_curves import SCORES, smoothed

# Okabe and Ito's colours, which people with any kind of colour vision can distinguish.
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
_DOTS_PER_INCH = 150


def plot_stages(stages: Sequence[Stage], path: Path) -> None:
    """Draw losses and scores over all steps as one PNG of two panels."""
    figure = Figure(figsize=(10.0, 4.0), dpi=_DOTS_PER_INCH, facecolor="white")
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    losses, scores = figure.subplots(1, 2)
    start = 0
    for index, stage in enumerate(stages):
        stop = start + len(stage.history.steps)
        _losses(losses, stage, start)
        _scores(scores, stage, start, labelled=index == 0)
        for axes in (losses, scores):
            if index:
                axes.axvline(start, color=_GREY, linewidth=0.8, linestyle=":")
        middle, height = (start + stop) / 2, losses.get_xaxis_transform()
        # Vertical text, because stages may be short.
        losses.text(
            middle, 1.01, stage.name, transform=height, rotation=90, ha="center", va="bottom", fontsize=7, color=_GREY
        )
        start = stop
    losses.set_ylabel("Loss (weighted sum of terms)")
    scores.set_ylabel("Score of held-out chains")
    for axes in (losses, scores):
        axes.set_xlim(0, max(1, start))
        axes.set_xlabel("Steps")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.grid(color="#E5E5E5", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    scores.set_ylim(0, max(0.5, scores.get_ylim()[1]))
    if scores.get_legend_handles_labels()[0]:
        scores.legend(frameon=False, fontsize=8.5, loc="upper left")
    with atomic_write(path) as temporary:
        # Without this, matplotlib writes its own version into the file.
        figure.savefig(temporary, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})


def _losses(axes: Axes, stage: Stage, start: int) -> None:
    values = np.array([step.losses.get("weighted", math.nan) for step in stage.history.steps])
    values[~np.isfinite(values)] = np.nan
    if len(values):
        window = 2 * max(1, len(values) // 100) + 1
        axes.plot(start + 1 + np.arange(len(values)), smoothed(values, window), color=_BLUE, linewidth=1.4)


def _scores(axes: Axes, stage: Stage, start: int, *, labelled: bool) -> None:
    evaluations = stage.history.evaluations
    for key, color, marker in (("lddt_ca", _ORANGE, "o"), ("tm_score", _GREEN, "^")):  # scores of single chains
        points = [(start + 1 + each.step, each.summary[key]) for each in evaluations if key in each.summary]
        steps, values = zip(*points, strict=True) if points else ((), ())
        axes.plot(steps, values, color=color, marker=marker, markersize=4, label=SCORES[key] if labelled else None)
