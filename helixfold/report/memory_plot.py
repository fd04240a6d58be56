"""Plot peak memory against the number of residues as a PNG: measured, estimated, and the minimum possible.

`STYLES` has the colour, marker and label of each executor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from helixfold.report.plots import draw_grid, new_figure, to_png

_GIB = 2**30
_GREY = "#555555"
_DASHES = (0, (4, 3))
# Okabe and Ito's colours, which can be distinguished with any kind of colour vision. In grey, markers differ.
# Colour, marker and label of each executor:
STYLES: Final = {
    "plain": ("#777777", "s", "plain PyTorch, everything whole (points joined)"),
    "whole": ("#D55E00", "^", "Whole"),
    "slabs": ("#0072B2", "o", "Slabs"),
    "spilled": ("#009E73", "D", "Spilled"),
}


@dataclass(frozen=True, kw_only=True)
class MemoryCurve:
    """Measured and estimated (`predicted`) peak memory in bytes, by number of residues, for one executor and dtype."""

    executor: str
    dtype: str
    measured: Mapping[int, int]
    predicted: Mapping[int, int]


def memory_plot(curves: Sequence[MemoryCurve], floors: Mapping[str, Mapping[int, int]], title: str) -> bytes:
    """Return a PNG of memory curves with one panel per dtype on common logarithmic axes.

    The last point of each curve is labelled with its multiple of the floor. `floors` has the number of bytes of the
    streams only, by dtype and number of residues.
    """
    dtypes = list(dict.fromkeys(curve.dtype for curve in curves))
    residues = sorted({length for curve in curves for length in curve.measured})
    executors = [name for name in STYLES if any(curve.executor == name for curve in curves)]
    figure = new_figure(1.2 + 4.4 * len(dtypes), 5.0)
    figure.suptitle(title, fontsize=10)
    panels = figure.subplots(1, len(dtypes), sharex=True, sharey=True, squeeze=False)[0]
    for axes, dtype in zip(panels, dtypes, strict=True):
        axes.set_title(dtype, fontsize=9.5)
        axes.plot(*_line(floors[dtype]), color="black", linestyle=_DASHES, linewidth=1.1, zorder=2)
        for curve in curves:
            if curve.dtype == dtype:
                _draw(axes, curve, floors[dtype])
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xlim(residues[0] / 1.15, residues[-1] * 1.4)
        axes.set_xticks(residues, [f"{length:,}" for length in residues])
        axes.yaxis.set_major_formatter(FuncFormatter(_gibibytes))
        axes.minorticks_off()
        axes.set_xlabel("Residues", fontsize=9)
        axes.tick_params(labelsize=8)
        draw_grid(axes)
    panels[0].set_ylabel("Peak memory beyond the loaded model\n(last points: multiples of the floor)", fontsize=9)
    handles = [
        *(Line2D([], [], color=STYLES[name][0], marker=STYLES[name][1], label=STYLES[name][2]) for name in executors),
        Line2D([], [], color=_GREY, marker="o", label="points: measured, lines: estimated"),
        Line2D([], [], color="black", linestyle=_DASHES, label="floor: 2 pair tensors + MSA + extra MSA"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(dtypes) + 1, 3), frameon=False, fontsize=8)
    return to_png(figure)


def _draw(axes: Axes, curve: MemoryCurve, floor: Mapping[int, int]) -> None:
    color, marker, _ = STYLES[curve.executor]
    if curve.predicted:
        axes.plot(*_line(curve.predicted), color=color, linewidth=1.3, alpha=0.75, zorder=3)
    else:
        axes.plot(*_line(curve.measured), color=color, linewidth=1.1, linestyle=":", zorder=3)
    axes.plot(*_line(curve.measured), color=color, marker=marker, markersize=5.5, linestyle="none", zorder=4)
    if curve.measured and max(curve.measured) in floor:
        longest = max(curve.measured)
        ratio = curve.measured[longest] / floor[longest]
        axes.annotate(
            f"{ratio:.{2 if ratio < 10 else 0}f}x",
            xy=(longest, curve.measured[longest] / _GIB),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            color=color,
        )


def _gibibytes(value: float, _: int) -> str:
    return f"{value:g} GiB" if value >= 1 else f"{value * 1024:g} MiB"


def _line(values: Mapping[int, int]) -> tuple[list[int], list[float]]:
    residues = sorted(values)
    return residues, [values[length] / _GIB for length in residues]
