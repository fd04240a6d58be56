"""Plot the progress of a training run as a PNG: losses, held-out scores, gradient norm and learning rate.

`SCORES` has the held-out scores and their labels.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from jaxtyping import Float

from helixfold.report.plots import draw_grid, new_figure, to_png
from helixfold.results.training_log import TrainingHistory
from helixfold.results.writing import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which can be distinguished with any kind of colour vision. In grey, line styles and markers
# differ.
_BLUE, _ORANGE, _GREEN, _PURPLE, _GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#777777"
# The window over which a curve is smoothed, as a fraction of all steps.
_WINDOW_SHARE = 1 / 50
# Held-out scores that are plotted, with their labels: scores of single chains, then scores of complexes.
SCORES: Final = {"lddt_ca": "CA-lDDT", "tm_score": "TM-score", "interface_lddt": "interface lDDT", "dockq": "DockQ"}


def plot_curves(history: TrainingHistory, path: Path) -> None:
    """Draw losses, held-out scores, gradient norm and learning rate over the training steps as a PNG at `path`.

    The file depends only on the history.
    """
    # matplotlib is imported here, because it loads slowly and only a run's first process draws.
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter  # noqa: PLC0415

    figure = new_figure(10.0, 6.4)
    (losses, scores), (norms, rates) = figure.subplots(2, 2, sharex=True)
    _losses(losses, history)
    _scores(scores, history)
    _norms(norms, history)
    _rates(rates, history)
    last = 1 + max([*(record.step for record in history.steps), *(record.step for record in history.evaluations), 0])
    for axes in (losses, scores, norms, rates):
        axes.set_xlim(0, last)
        axes.tick_params(labelsize=8, which="both")
        draw_grid(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8.5, loc="best")
    for axes in (norms, rates):
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlabel("Steps")
    write_file(path, to_png(figure))


def smoothed(values: Float[np.ndarray, "n"], window: int) -> Float[np.ndarray, "n"]:
    """Return the moving average over about `window` values around each value; values that are not finite are ignored.

    At the ends, fewer values are averaged. The average is NaN if no value in the window is finite.
    """
    is_finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(is_finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(is_finite)])
    indices = np.arange(len(values))
    first, stop = np.maximum(indices - window // 2, 0), np.minimum(indices + window // 2 + 1, len(values))
    count = counts[stop] - counts[first]
    return np.where(count > 0, (sums[stop] - sums[first]) / np.maximum(count, 1), np.nan)


def _losses(axes: "Axes", history: TrainingHistory) -> None:
    axes.set_ylabel("Loss (weighted sum of terms)")
    trained = [(record.step + 1, record.losses.get("weighted", math.nan)) for record in history.steps]
    _raw_and_smooth(axes, trained, _BLUE, "training")
    held_out = [(record.step + 1, record.summary["loss"]) for record in history.evaluations if "loss" in record.summary]
    _points(axes, held_out, _ORANGE, "o", "held-out")
    # The axis ignores one percent of extreme steps at each end, which would flatten the curves.
    common = np.array([value for _, value in trained if math.isfinite(value)])
    seen = [*(np.quantile(common, (0.01, 0.99)) if common.size else ()), *(value for _, value in held_out)]
    seen = [value for value in seen if math.isfinite(value)]
    if seen:
        margin = 0.08 * (max(seen) - min(seen)) or 0.5
        axes.set_ylim(min(seen) - margin, max(seen) + margin)


def _scores(axes: "Axes", history: TrainingHistory) -> None:
    axes.set(ylabel="Held-out scores", ylim=(0, 1))
    colors, markers = (_ORANGE, _GREEN, _PURPLE, _BLUE), ("o", "^", "s", "D")
    for (key, name), color, marker in zip(SCORES.items(), colors, markers, strict=True):
        points = [(record.step + 1, record.summary[key]) for record in history.evaluations if key in record.summary]
        _points(axes, points, color, marker, f"{name}, last {points[-1][1]:.3f}" if points else name)
    if not history.evaluations:
        axes.text(0.5, 0.5, "no evaluation yet", transform=axes.transAxes, ha="center", color=_GREY)


def _norms(axes: "Axes", history: TrainingHistory) -> None:
    axes.set_ylabel("Gradient norm")
    points = [
        # A logarithmic axis cannot show 0.
        (record.step + 1, record.gradient_norm if record.gradient_norm > 0 else math.nan)
        for record in history.steps
    ]
    if np.isfinite([value for _, value in points]).any():
        axes.set_yscale("log")
    _raw_and_smooth(axes, points, _BLUE, "gradient norm")
    skipped = [record.step + 1 for record in history.steps if record.skipped]
    if skipped:
        axes.plot(
            skipped,
            [0.03] * len(skipped),
            transform=axes.get_xaxis_transform(),
            color=_ORANGE,
            marker="x",
            linestyle="none",
            label=f"skipped steps ({len(skipped)})",
        )


def _rates(axes: "Axes", history: TrainingHistory) -> None:
    axes.set_ylabel("Learning rate")
    steps, rates = [record.step + 1 for record in history.steps], [record.learning_rate for record in history.steps]
    axes.plot(steps, rates, color=_BLUE, linewidth=1.4, marker="o" if len(steps) == 1 else None, markersize=3)
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))


def _raw_and_smooth(axes: "Axes", points: Sequence[tuple[int, float]], color: str, label: str) -> None:
    """Draw all values in a faint colour, and the smoothed curve over them."""
    steps = np.array([step for step, _ in points])
    values = np.array([value for _, value in points], float)
    values[~np.isfinite(values)] = np.nan
    window = 2 * round(len(values) * _WINDOW_SHARE / 2) + 1
    axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.6)
    name = f"{label} (mean of {window} steps)" if window > 1 else label
    if len(values):
        axes.plot(
            steps,
            smoothed(values, window),
            color=color,
            linewidth=1.6,
            marker="o" if len(values) == 1 else None,
            markersize=3,
            label=name,
        )


def _points(axes: "Axes", points: Sequence[tuple[int, float]], color: str, marker: str, label: str) -> None:
    if points:
        steps, values = zip(*points, strict=True)
        # Too many markers would hide the line.
        every = max(1, len(points) // 25)
        axes.plot(steps, values, color=color, linewidth=1.4, marker=marker, markersize=4, markevery=every, label=label)
